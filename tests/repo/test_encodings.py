"""Every text file that a program reads or writes has an explicit encoding, so that no locale changes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_POSITIONS = {"read_text": 0, "write_text": 1}
"""Index of the positional argument that is the encoding."""


def without_encoding(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that open a text file in the encoding of the locale."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(one.arg == "encoding" for one in node.keywords):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        is_text = any(
            one.arg == "text" and getattr(one.value, "value", None) is True for one in node.keywords
        )
        if isinstance(node.func, ast.Attribute) and name in _POSITIONS:
            is_text = len(node.args) <= _POSITIONS[name]
        elif name in {"open", "fdopen"}:
            modes = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
            is_text = any(mode in {"r", "w", "a", "x", "w+", "r+", "a+"} for mode in modes)
            is_text |= isinstance(node.func, ast.Name) and not modes
        if is_text:
            yield node.lineno


@pytest.mark.parametrize("package", ["headway", "service", "worker_agent"])
def test_text_files_of_a_package_are_opened_as_utf8(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line in without_encoding(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_opening_in_the_locale_is_found() -> None:
    source = 'open(a)\nb.open("w")\nc.read_text()\nd.write_text("x")\nrun(text=True)\ne.open("rb")\nf.read_text("utf-8")\n'
    assert list(without_encoding(ast.parse(source))) == [1, 2, 3, 4, 5]
