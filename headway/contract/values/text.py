"""Text types that every store accepts: PostgreSQL refuses a NUL, and programs may print one."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def _without_nul(value: str) -> str:
    return value.replace("\0", "\ufffd")


def _refuse_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a NUL character, which no command line and no store can carry")
    return value


PrintedText = Annotated[str, AfterValidator(_without_nul)]
"""Text printed by a program, in which a replacement character takes the place of each NUL."""
GivenText = Annotated[str, AfterValidator(_refuse_nul)]
"""Text written by a person, in which a NUL is an error."""
