"""Standard streams of Headway's programs on terminals and in locales that are not UTF-8."""

from __future__ import annotations

import io
import os
import sys
from typing import Final

_NEVER_RAISE: Final = frozenset({"replace", "backslashreplace", "ignore", "namereplace", "xmlcharrefreplace"})


def make_streams_tolerant() -> None:
    """Make output replace characters that its encoding lacks, and input UTF-8 whatever the locale.

    Without it, the first arrow of a table ends a command in cron, where the terminal is ASCII. Output to a closed stream
    (`headway ps >&-`) is dropped, and nothing that is opened later takes its place.
    """
    for number in range(3):
        _open_if_closed(number)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for the program's life
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors not in _NEVER_RAISE:
            stream.reconfigure(errors="replace")
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")


def _open_if_closed(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        found = os.open(os.devnull, os.O_RDWR)  # the lowest free number, so that of the closed one
        if found != number:
            os.dup2(found, number)
            os.close(found)


def json_for(encoding: str | None, text: str) -> str:
    r"""Return JSON with `\uNNNN` in place of characters if the output's encoding lacks any of them."""
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return "".join(one if one < "\x80" else _escaped(one) for one in text)
    return text


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
