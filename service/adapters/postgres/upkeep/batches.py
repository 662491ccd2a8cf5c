"""Deletion of rows in batches."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from service.adapters.postgres.engine.session import Session
from service.usecases.ports.upkeep import BATCH


async def delete_batch(session: Session, table: str, where: str, limit: int = BATCH, **values: Any) -> int:
    """Delete at most `limit` rows of a table; return their number.

    It selects rows by their physical position (ctid), so the limit costs nothing.
    """
    statement = (
        f"DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} WHERE {where} LIMIT :limit))"  # noqa: S608
    )
    return (await session.execute(text(statement), {"limit": limit, **values})).rowcount
