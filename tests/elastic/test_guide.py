"""The guide shows how a real script becomes elastic: what it shows is what runs."""

from __future__ import annotations

import difflib
import re
import runpy
from collections.abc import Callable

import pytest

from headway.contract.runtime import EpochClosed
from tests.elastic.harness import Job, codes
from tests.elastic.test_examples import DONE, EXAMPLES, final, in_training, stopped_once
from tools.pages import ROOT, blocks

FOLDER = EXAMPLES / "convert"
PAGE = ROOT / "docs" / "guides" / "convert.md"


def difference() -> str:
    """Without the docstrings, and without what a reader does not need: names of files, places of lines."""
    before, after = ((FOLDER / name).read_text().splitlines()[1:] for name in ("before.py", "after.py"))
    lines = list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]
    return "\n".join("" if line.startswith("@@") else line for line in lines[1:])


def test_the_page_shows_the_difference() -> None:
    assert [block.text for block in blocks(PAGE) if block.language == "diff"] == [difference()]


@pytest.mark.long
def test_the_script_before_learns(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "before.py"))
    assert accuracies(capsys.readouterr().out)[-1] > 0.9


def test_the_script_after_learns_the_same_though_it_was_stopped_and_resized(job: Callable[..., Job]) -> None:
    convert = job(FOLDER / "after.py")
    second = stopped_once(convert, (1, 2), in_training)
    assert codes(second) == [DONE] * 2
    assert final(convert, "accuracy") > 0.9
    assert [audit.exactly_once for audit in convert.messages(EpochClosed)] == [True] * 5


def accuracies(printed: str) -> list[float]:
    return [float(found) for found in re.findall(r"accuracy ([\d.]+)", printed)]
