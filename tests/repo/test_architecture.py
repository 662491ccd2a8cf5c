"""The paths through the code that docs/architecture.md lists are those that the code takes."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
STEP = re.compile(
    r"^\d+\. `(?P<path>[\w/]+\.py)`: `(?P<name>\w+)`(?:, then by (?P<boundary>[A-Za-z ]+))?", re.MULTILINE
)


@dataclass(frozen=True)
class ListedStep:
    path: str
    name: str
    boundary: str | None

    @property
    def text(self) -> str:
        return (ROOT / self.path).read_text()

    def defines_its_name(self) -> bool:
        nodes = ast.walk(ast.parse(self.text))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return any(isinstance(node, kinds) and node.name == self.name for node in nodes)


def steps_of(heading: str) -> list[ListedStep]:
    _, found, rest = PAGE.read_text().partition(f"\n### {heading}\n")
    assert found, heading
    section = re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return [ListedStep(one["path"], one["name"], one["boundary"]) for one in STEP.finditer(section)]


@pytest.mark.parametrize(
    ("heading", "most"),
    [("Follow a submit", 7), ("Follow a resize in place", 15), ("Follow a report", 13)],
)
def test_each_step_leads_to_the_next(heading: str, most: int) -> None:
    steps = steps_of(heading)
    assert 3 <= len(steps) <= most
    assert [one.path for one in steps if not one.defines_its_name()] == []
    broken = [
        (before.path, after.name)
        for before, after in pairwise(steps)
        if before.boundary is None and not re.search(rf"\b{after.name}\b", before.text)
    ]
    assert broken == []
