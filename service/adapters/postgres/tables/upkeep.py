"""Tables of quarantines, leadership, retention and the state of the database. `migrations/` must produce exactly these."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    text,
)

from headway.contract.health import FaultCause, FaultGrade
from service.adapters.postgres.tables.core import Moment, listed, metadata, slot_grants

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("renewed_at", Moment, nullable=False),
    CheckConstraint("id = 1", name="only_one"),
)
"""The present leader, in one row. `term` grows with every leader; writes of an older term are refused."""

quarantines = Table(
    "quarantines",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("node_id", Text, ForeignKey("nodes.id", ondelete="CASCADE"), nullable=False),
    Column("slot", Integer, nullable=False),
    Column("device", Text, nullable=False, server_default=""),
    Column("grade", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("since", Moment, nullable=False),
    Column("probe_at", Moment),
    Column("probes", Integer, nullable=False, server_default="0"),
    Column("released_at", Moment),
    Column("release_message", Text),
    CheckConstraint(f"grade IN ({listed([*FaultGrade])})", name="grade_known"),
    CheckConstraint(f"cause IN ({listed([*FaultCause])})", name="cause_known"),
    Index(
        "uq_quarantines_open", "node_id", "slot", unique=True, postgresql_where=text("released_at IS NULL")
    ),
    Index("ix_quarantines_released", "released_at"),
)
"""Open and released quarantines of slots.

`device` is the UUID of the GPU. Another GPU in the same slot is not in quarantine.
"""

stragglers = Table(
    "stragglers",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("job", Text, nullable=False),
    Column("times", Float, nullable=False),
    Column("marked_at", Moment, nullable=False),
)
"""The last mark of each slot on which a rank stayed slower than the others of its job. Old ones no longer count."""

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

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("at", Moment, nullable=False),
    CheckConstraint("id = 1", name="only_one"),
)
"""The latest delivery of commands, in one row.

`number` grows with every delivery. A queue that knows a higher number proves that the database has lost commits.
"""

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
