"""Text types that every store accepts (PostgreSQL refuses a NUL, and programs may print one), and messages as one line."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_SURROGATE = re.compile("[\ud800-\udfff]")


def brief(message: str) -> str:
    """Return a message as one line: the first and the last line of a longer one, such as a traceback."""
    first, *others = message.strip().split("\n")
    last = others[-1].strip() if others else ""
    return first if last in first else f"{first} … {last}"


def _without_nul(value: str) -> str:
    return value.replace("\0", "\ufffd")


def _refuse_uncarried(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a NUL character, which no command line and no store can carry")
    if found := _SURROGATE.search(value):
        raise ValueError(f"holds U+{ord(found[0]):04X}, half a character; write the whole character")
    return value


PrintedText = Annotated[str, AfterValidator(_without_nul)]
"""Text printed by a program, in which a replacement character takes the place of each NUL."""
GivenText = Annotated[str, AfterValidator(_refuse_uncarried)]
"""Text written by a person, in which a NUL or half a character is an error."""
