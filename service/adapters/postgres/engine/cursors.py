"""Cursors of listings that are ordered by time and id."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime

from service.domain.shared.errors import InvalidField


def write_cursor(at: datetime, row_id: str) -> str:
    """Return the cursor for the page that follows this row."""
    return base64.urlsafe_b64encode(f"{at.isoformat()}|{row_id}".encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[datetime, str]:
    """Return the time and id of the row before the cursor's page. Raises InvalidField."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        at, _, row_id = base64.urlsafe_b64decode(padded).decode().partition("|")
        return datetime.fromisoformat(at), row_id
    except (ValueError, binascii.Error) as error:
        raise InvalidField(
            "cursor", "this is not a cursor of this listing; repeat the request without a cursor"
        ) from error
