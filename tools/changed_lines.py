"""Count the lines in which a script and its elastic version differ."""

from __future__ import annotations

import difflib
from pathlib import Path


def changed_lines(before: Path, after: Path) -> int:
    """Return the lines that are replaced, added or removed. The first line, a docstring, and empty lines do not count."""
    old, new = (
        list(filter(None, file.read_text(encoding="utf-8").splitlines()[1:])) for file in (before, after)
    )
    parts = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in parts if kind != "equal")
