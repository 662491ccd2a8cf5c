"""Ranks that nothing of Headway has started end with the exit code that was asked for, and none aborts or hangs.

Their interpreters finalise themselves, unlike those of the launcher's program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import endings

ROOT = Path(__file__).parents[2]
RANK_SCRIPT = ROOT / "benchmarks" / "scripts" / "ending_rank.py"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_ranks_by_hand_or_launched_end_as_asked() -> None:
    figures = endings.run(100, steps=4)
    assert figures["endings"] >= 100
    assert (figures["aborted"], figures["hung"]) == (0, 0), figures["failures"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("ending", "codes"), [("end", {0}), ("error", {1}), ("exit", {1}), ("lost", {1})])
def test_two_ranks_under_torchrun_end_as_asked(ending: str, codes: set[int], tmp_path: Path) -> None:
    for turn in range(3):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
                *(str(RANK_SCRIPT), ending, "4", str(turn % 2)),
            ],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode in codes, done.stderr
        assert "SIGABRT" not in done.stderr, done.stderr
        assert "terminate called" not in done.stderr, done.stderr
