"""Memory of a host that is kept: a process of its own, since its heap changes for good."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
from headway.train.memory import keep_freed_memory, touch

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

torch.empty(4096).fill_(0)
if sys.argv[1] == "kept":
    keep_freed_memory()
    touch(192 << 20)
before = faults()
for _ in range(3):
    torch.empty(48 << 20, dtype=torch.uint8).fill_(0)
print(faults() - before)
"""


def faults(how: str) -> int:
    """First touches of pages when 48 MiB are taken and freed three times over.

    More is touched before than one block needs: glibc takes another one where its alignment does not fit.
    """
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_memory_that_was_touched_before_is_at_hand() -> None:
    assert faults("kept") * 10 < faults("not kept")
