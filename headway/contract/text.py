"""Text that every store takes. PostgreSQL refuses a NUL, and programs print what they like."""

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
"""What a program printed: a NUL in it is shown as a replacement character."""
GivenText = Annotated[str, AfterValidator(_refuse_nul)]
"""What a person wrote: a NUL in it is an error."""
