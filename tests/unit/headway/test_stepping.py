"""Steps that a script without the library reports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headway
from headway.contract.rank_lines import from_line
from headway.contract.runtime import Message, Stepped
from headway.stepping import EVERY_S, Stepper


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def said(folder: Path) -> list[Message]:
    path = folder / "rank-0.jsonl"
    return [from_line(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps(folder: Path) -> list[int]:
    return [one.step for one in said(folder) if isinstance(one, Stepped)]


def test_steps_that_come_fast_are_told_now_and_then_and_the_last_one_at_once(tmp_path: Path) -> None:
    clock = Clock()
    stepper = Stepper(tmp_path, 3, clock)
    for step in range(11):
        stepper.step(step, 100, {"loss": 1.0 / (step + 1)})
        clock.now_s += EVERY_S / 5
    assert steps(tmp_path) == [0, 5, 10]
    stepper.step(11, 100, {})
    stepper.flush()
    stepper.flush()
    stepper.step(100, 100, {})
    assert steps(tmp_path) == [0, 5, 10, 11, 100]
    first = said(tmp_path)[0]
    assert first == Stepped(rank=0, generation=3, at_s=1000.0, step=0, total=100, values={"loss": 1.0})


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    stepper = Stepper(tmp_path, 1)
    stepper.step(1, None, {"loss": 0.5, "nan": float("nan"), "name": "x"})  # type: ignore[dict-item]
    (only,) = said(tmp_path)
    assert isinstance(only, Stepped)
    assert only.values == {"loss": 0.5}


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    Stepper(tmp_path / "gone", 1).step(1, None, {})


@pytest.mark.parametrize(("step", "error"), [(-1, ValueError), (1.5, TypeError)])
def test_wrong_steps_are_refused_outside_headway_too(step: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        headway.progress(step)


def test_the_two_lines_work_outside_headway_and_import_no_torch() -> None:
    script = (
        "import headway, sys\nheadway.progress(1, 10, loss=0.5)\nheadway.progress(step=2, total=10)\n"
        "assert 'torch' not in sys.modules and 'pydantic' not in sys.modules, sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("rank", "told"), [("0", [7]), ("1", [])])
def test_only_rank_0_tells_and_the_last_step_is_told_at_the_end(
    tmp_path: Path, rank: str, told: list[int]
) -> None:
    script = "import headway\nfor step in range(8): headway.progress(step)"
    env = {"HEADWAY_CONTROL": str(tmp_path), "HEADWAY_GENERATION": "2", "RANK": rank}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    assert steps(tmp_path)[-1:] == told


FORKS = """
import os, sys
import headway
headway.progress(1)
headway.progress(2)
if (child := os.fork()) == 0:
    sys.exit(0)
os.waitpid(child, 0)
"""


def test_step_pending_at_a_fork_is_reported_once(tmp_path: Path) -> None:
    env = {"HEADWAY_CONTROL": str(tmp_path), "HEADWAY_GENERATION": "1"}
    subprocess.run([sys.executable, "-c", FORKS], check=True, env=env)
    (messages,) = tmp_path.iterdir()
    assert len(messages.read_text(encoding="utf-8").splitlines()) == 2
