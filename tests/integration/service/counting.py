"""How many statements the service sends to its database: the cost that no busy machine changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from service.adapters.postgres.database import Database

_OWN = (
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "WITH RECURSIVE typeinfo_tree",
    "SELECT current_setting('jit')",
    "SELECT set_config('jit'",
)
"""Beginnings of what the driver sends for itself, when it meets a type for the first time, and of transactions."""


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Yield a list that grows by each statement while the block runs, apart from BEGIN and COMMIT.

    The driver logs what is sent through it; SQLAlchemy prepares its statements first, and tells of them itself.
    """
    sent: list[str] = []
    drivers: list[Any] = []

    def log(record: Any) -> None:
        if not " ".join(record.query.split()).startswith(_OWN):
            sent.append(record.query)

    def listen(_: Any, record: Any, __: Any) -> None:
        record.driver_connection.add_query_logger(log)
        drivers.append(record.driver_connection)

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        sent.append(statement)

    engine = database.pool.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    event.listen(engine, "checkout", listen)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)
        event.remove(engine, "checkout", listen)
        for driver in drivers:
            driver.remove_query_logger(log)
