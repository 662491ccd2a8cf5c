"""Sequence numbers of reports."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

MOST: Final = 2**53
"""Largest sequence number: a float of JSON holds it exactly, and a 64-bit column of the database holds it."""

SequenceNumber = Annotated[int, Field(ge=0, le=MOST)]
"""Position of an entry among those of its agent instance."""
