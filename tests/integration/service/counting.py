"""How many statements the service sends to its database: the cost that no busy machine changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from service.adapters.postgres.database import Database


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """What is sent as long as the block runs; BEGIN and COMMIT are not among it."""
    sent: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        sent.append(statement)

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)
