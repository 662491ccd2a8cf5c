"""State of the database itself. `migrations/` must produce exactly this."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Integer, Table, Text

from service.adapters.postgres.tables.core import Moment, metadata

database_state = Table(
    "database_state",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("oldest_revision", Text, nullable=False),
    Column("backed_up_at", Moment),
    Column("restored_at", Moment),
    CheckConstraint("id = 1", name="only_one"),
)
"""State of the database, in one row.

Code of a revision before `oldest_revision` must not start on this schema. `restored_at` is the time of the
last restoration from a backup, and `backed_up_at` the time of that backup; both are null if there was none.
"""
