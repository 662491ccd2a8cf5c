"""Totals of deleted rows, and the progress of thinning. `migrations/` must produce exactly these."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Float, ForeignKey, Index, Table, Text

from service.adapters.postgres.tables.core import metadata, slot_grants

past_allocations = Table(
    "past_allocations",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("device_kind", Text, primary_key=True),
    Column("seconds", Float, nullable=False),
    Column("slot_s", Float, nullable=False),
    CheckConstraint("seconds >= 0 AND slot_s >= 0", name="not_negative"),
)
"""Totals of a job's deleted allocations by device kind: seconds and slot-seconds.

Policies weigh everything that a job received in its life.
"""

retention_cursors = Table(
    "retention_cursors",
    metadata,
    Column("name", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
)
"""Progress of each tier of thinning: the last id that it has examined."""

Index("ix_slot_grants_job_id", slot_grants.c.job_id)
"""Index for the deletion of a job, which deletes its grants without a scan of all grants."""
