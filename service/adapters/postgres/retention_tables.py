"""What stays of rows that are deleted, and how far thinning is. `migrations/` must produce exactly these."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Float, ForeignKey, Index, Table, Text

from service.adapters.postgres.tables import metadata, slot_grants

past_allocations = Table(
    "past_allocations",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("device_kind", Text, primary_key=True),
    Column("seconds", Float, nullable=False),
    Column("slot_s", Float, nullable=False),
    CheckConstraint("seconds >= 0 AND slot_s >= 0", name="not_negative"),
)
"""What the allocations of a job that are not kept any more add up to: seconds, and slot-seconds, by device kind. Policies
weigh what a job was given in all of its life.
"""

retention_cursors = Table(
    "retention_cursors",
    metadata,
    Column("name", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
)
"""How far each tier of thinning is: the last id that it has looked at."""

Index("ix_slot_grants_job_id", slot_grants.c.job_id)
"""A job that is deleted takes its grants along, and must not look through everybody's for them."""
