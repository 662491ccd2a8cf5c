"""Cursors of listings that are ordered by a time and an id."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime

from service.domain.errors import InvalidField


def write_cursor(at: datetime, row_id: str) -> str:
    """A cursor behind the row."""
    return base64.urlsafe_b64encode(f"{at.isoformat()}|{row_id}".encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[datetime, str]:
    """The row that a cursor is behind. Raises InvalidField."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        at, _, row_id = base64.urlsafe_b64decode(padded).decode().partition("|")
        return datetime.fromisoformat(at), row_id
    except (ValueError, binascii.Error) as error:
        raise InvalidField("cursor", "not a cursor of this listing; start without one") from error
