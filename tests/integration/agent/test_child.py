"""A fork that does not come to its script ends and is reported."""

from __future__ import annotations

import subprocess
import sys

from headway.contract.runtime import EXIT_RETRY

SCRIPT = """
import os
from worker_agent.launcher import child

def on_a_full_disk():
    raise OSError(28, "No space left on device")

print(os.waitstatus_to_exitcode(os.waitpid(child.fork(on_a_full_disk), 0)[1]))
"""


def test_a_rank_that_never_came_to_its_script_asks_for_another_start() -> None:
    """Any other code would be the script's, and the job would fail for what its host lacked."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(EXIT_RETRY)]
    assert "No space left on device" in done.stderr
