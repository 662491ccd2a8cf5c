"""Control characters of a job's text on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.table import Table
from rich.text import Text

from headway.cli.plain import PlainConsole
from headway.visible_text import visible, visible_line

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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("safe\u202eexe.txt", r"safe\u202eexe.txt"),
        ("a\u2066b\u2069", r"a\u2066b\u2069"),
        ("a\u2028b", r"a\u2028b"),
        ("\ufeffa\u200b\u00ad", r"\ufeffa\u200b\xad"),
        ("tag\U000e0041", r"tag\U000e0041"),
    ],
)
def test_format_characters_are_shown_and_joiners_of_words_and_emoji_stay(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible("می\u200cخواهم 👩\u200d🔬") == "می\u200cخواهم 👩\u200d🔬"


def test_a_name_of_several_lines_is_shown_on_one() -> None:
    assert visible_line("a\n\tb\r\u202e") == r"a\n\tb\x0d\u202e"
    assert visible_line("plain name.txt") == "plain name.txt"
