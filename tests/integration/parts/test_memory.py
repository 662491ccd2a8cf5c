"""Memory of a host that is kept: a process of its own, since its heap changes for good."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch
from headway.train.state.memory import keep_freed_memory, touch

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def taken_and_freed():
    before = faults()
    for _ in range(3):
        torch.empty(48 << 20, dtype=torch.uint8).fill_(0)
    print(faults() - before)

torch.empty(4096).fill_(0)
taken_and_freed()
keep_freed_memory()
touch(192 << 20)
taken_and_freed()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_memory_that_was_touched_before_is_at_hand() -> None:
    """First touches of pages when 48 MiB are taken and freed three times over.

    More is touched before than one block needs: glibc takes another one where its alignment does not fit.
    """
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, kept = map(int, done.stdout.split())
    assert kept * 10 < before
