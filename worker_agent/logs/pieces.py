"""Division of a rank's output into pieces that end at lines or characters, and its last lines."""

from __future__ import annotations

import codecs
import os
import re
from pathlib import Path
from typing import Final

from headway.redrawn import shown_lines

CHUNK_BYTES: Final = 256 << 10
TAIL_LINES: Final = 20
KEPT_BYTES: Final = 1 << 20
"""Shipped bytes that stay on disk, because the log tail of a failure is read from them."""
_TAIL_BYTES: Final = 16 << 10
_LONGEST_CHARACTER: Final = 4
_CONTINUATION: Final = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that continue a character."""


def cut(data: bytes, *, idle: bool, final: bool) -> int:
    """Return the number of bytes of `data` to ship now: whole lines, or whole characters if idle, or all if `final`.

    A full chunk without a line end is cut between two characters.
    """
    if final:
        return len(data)
    line_end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    if not idle and (line_end or len(data) < CHUNK_BYTES):
        return line_end
    return len(data) - _cut_character(data)


def _cut_character(data: bytes) -> int:
    """Return the number of bytes at the end of `data` that begin a character of UTF-8 without its end."""
    end = data[-_LONGEST_CHARACTER:]
    return len(end) - codecs.utf_8_decode(end, "replace", False)[1]  # noqa: FBT003  # C function


def from_character(data: bytes) -> int:
    """Return the number of bytes at the beginning of `data` that end a character without its beginning."""
    begin = data[: _LONGEST_CHARACTER - 1]
    return len(begin) - len(begin.lstrip(_CONTINUATION))


def tail(path: Path) -> list[str]:
    """Return the last lines of a log. Of a line that was redrawn, such as a progress bar, it is the last state."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - KEPT_BYTES)
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return []
    if start and (begun := re.search(rb"[\r\n]", data)):
        data = data[begun.end() :]
    lines = shown_lines(data.decode(errors="replace"))
    last = "\n".join(lines[:-1] if lines[-1] == "" else lines).encode()
    if not last:
        return []
    kept = last[-_TAIL_BYTES:]
    lines = kept[from_character(kept) :].decode().split("\n")
    return (lines[1:] if len(last) > _TAIL_BYTES and len(lines) > 1 else lines)[-TAIL_LINES:]
