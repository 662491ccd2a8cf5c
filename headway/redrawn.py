"""Lines that a progress bar redraws, as a terminal shows them in the end: of each line, its last state.

A program redraws a line with a carriage return before the next state. All functions take time linear in the
length of the text, because a bar can write millions of states without a line end.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

_UP: Final = "\x1b[A"
_UP_ONE: Final = "\x1b[1A"


def last_state(line: str) -> str:
    """Return the last state of one line, which has no line feed. Carriage returns at its end redraw nothing."""
    return line.rstrip("\r").rpartition("\r")[2]


def last_states(text: str) -> str:
    """Return the text with the last state of each line."""
    return "\n".join(map(last_state, text.split("\n"))) if "\r" in text else text


def shown_lines(text: str) -> list[str]:
    r"""Return the lines that a terminal would show, where several bars move up with `\x1b[A` to redraw."""
    if _UP not in text and _UP_ONE not in text:
        return last_states(text).split("\n")
    rows: list[str] = []
    row = -1
    for line in text.replace(_UP_ONE, _UP).split("\n"):
        row += 1
        for number, part in enumerate(line.split(_UP)):
            row = max(0, row - (number > 0))
            state = last_state(part)
            if row == len(rows):
                rows.append(state)
            elif state:
                rows[row] = state
    return rows


class ReversedStates:
    """Last states of the lines of several streams, each of which arrives in pieces from its end backwards.

    A piece may begin and end within a line.
    """

    def __init__(self) -> None:
        self._continued: dict[Hashable, tuple[bool, bool]] = {}
        """For each stream, whether its earliest line so far has text, and whether it has been redrawn."""

    def before(self, stream: Hashable, text: str) -> str:
        """Return what remains of the piece of `stream` that precedes all pieces so far.

        A carriage return at the end of the stream stays, because more of the stream may follow it.
        """
        has_text, is_redrawn = self._continued.get(stream, (False, False))
        is_last = stream not in self._continued
        *whole, end = text.split("\n")
        if is_redrawn or (has_text and end.endswith("\r")):
            kept = ""
        else:
            kept = last_state(end) + ("\r" if is_last and end.endswith("\r") else "")
        redraws = is_redrawn or "\r" in (end if has_text else end.rstrip("\r"))
        begin_has_text = has_text or bool(end.strip("\r"))
        if whole:
            begin_has_text, redraws = bool(whole[0].strip("\r")), "\r" in whole[0].rstrip("\r")
        self._continued[stream] = begin_has_text, redraws
        return "\n".join([*map(last_state, whole), kept])
