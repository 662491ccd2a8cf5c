"""Control characters of a job's text on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.table import Table
from rich.text import Text

from headway.cli.plain import PlainConsole, visible

CLEAR = "\x1b[2Jgone\x9b2J\x07"


def test_they_are_shown_and_the_layout_of_a_text_stays() -> None:
    assert visible(CLEAR) == r"\x1b[2Jgone\x9b2J\x07"
    assert visible("a\tb\nç 中 🙂") == "a\tb\nç 中 🙂"


@pytest.mark.parametrize("what", ["text", "string", "cell"])
def test_a_console_writes_only_its_own(what: str) -> None:
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=True, width=80, highlight=False, markup=False)
    table = Table("name")
    table.add_row(CLEAR)
    console.print({"text": Text(CLEAR, style="bold"), "string": CLEAR, "cell": table}[what])
    written = out.getvalue()
    assert "\x1b[2J" not in written
    assert not {"\x9b", "\x07"} & set(written)
    assert r"\x1b[2Jgo" in written
