"""What the database knows of itself. `migrations/` must produce exactly this."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Integer, Table, Text

from service.adapters.postgres.tables import Moment, metadata

database_state = Table(
    "database_state",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("oldest_revision", Text, nullable=False),
    Column("backed_up_at", Moment),
    Column("restored_at", Moment),
    CheckConstraint("id = 1", name="only_one"),
)
"""One row. Code of a revision older than `oldest_revision` must not start on this schema. `restored_at` is when the
content was last brought back from a backup, which was of `backed_up_at`; null for a database that never was.
"""
