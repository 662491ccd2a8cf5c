"""Cursors of listings that are ordered by time and id."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, tuple_

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


def newest_first(
    query: Select[Any], at: ColumnElement[Any], row_id: ColumnElement[Any], *, limit: int, cursor: str | None
) -> Select[Any]:
    """Return the query of a page by time and id. One row beyond `limit` shows that another page follows."""
    query = query.order_by(at.desc(), row_id.desc()).limit(limit + 1)
    return query if cursor is None else query.where(tuple_(at, row_id) < tuple_(*read_cursor(cursor)))


def cursor_after(rows: Sequence[Any], limit: int, at: str) -> str | None:
    """Return the cursor of the page after `limit` rows with the time `at`, or None if that page is empty."""
    return write_cursor(getattr(rows[limit - 1], at), rows[limit - 1].id) if len(rows) > limit else None
