"""The guide shows how a real script becomes elastic: what it shows is what runs."""

from __future__ import annotations

import difflib
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.contract.runtime import EpochClosed
from tests.elastic.harness import Job, codes
from tests.elastic.test_examples import DONE, EXAMPLES, final, in_training, stopped_once
from tools.changed_lines import changed_lines
from tools.pages import ROOT, blocks

FOLDER = EXAMPLES / "convert"
GUIDES = ROOT / "docs" / "guides"
MOST_CHANGED = 15
"""Lines that the second guide may change in a loop by steps."""


def texts(folder: Path) -> tuple[list[str], list[str]]:
    """The lines of both scripts without the docstrings."""
    before, after = ((folder / name).read_text().splitlines()[1:] for name in ("before.py", "after.py"))
    return before, after


def difference(folder: Path, context: int) -> str:
    """Without what a reader does not need: names of files, places of lines."""
    lines = list(difflib.unified_diff(*texts(folder), n=context, lineterm=""))[2:]
    return "\n".join("" if line.startswith("@@") else line for line in lines[1:])


@pytest.mark.parametrize(
    ("page", "folder", "context"), [("convert", "convert", 1), ("convert-steps", "gpt_loop", 0)]
)
def test_the_page_shows_the_difference(page: str, folder: str, context: int) -> None:
    shown = [block.text for block in blocks(GUIDES / f"{page}.md") if block.language == "diff"]
    assert shown == [difference(EXAMPLES / folder, context)]


def test_a_loop_by_steps_changes_in_few_lines() -> None:
    folder = EXAMPLES / "gpt_loop"
    assert changed_lines(folder / "before.py", folder / "after.py") <= MOST_CHANGED


@pytest.mark.slow
def test_the_script_before_learns(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "before.py"))
    assert accuracies(capsys.readouterr().out)[-1] > 0.9


@pytest.mark.slow
def test_the_script_after_learns_the_same_though_it_was_stopped_and_resized(job: Callable[..., Job]) -> None:
    convert = job(FOLDER / "after.py")
    second = stopped_once(convert, (1, 2), in_training)
    assert codes(second) == [DONE] * 2
    assert final(convert, "accuracy") > 0.9
    assert [audit.exactly_once for audit in convert.messages(EpochClosed)] == [True] * 5


def accuracies(printed: str) -> list[float]:
    return [float(found) for found in re.findall(r"accuracy ([\d.]+)", printed)]
