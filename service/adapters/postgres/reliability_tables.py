"""The tables of who leads, and of slots that are kept from jobs. `migrations/` must produce exactly these."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    text,
)

from headway.contract.health import FaultCause, FaultGrade
from service.adapters.postgres.tables import Moment, listed, metadata

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("renewed_at", Moment, nullable=False),
    CheckConstraint("id = 1", name="only_one"),
)
"""Who leads: one row. `term` grows with every leader; whatever a leader of an older term still writes is refused."""

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
"""Slots that no job gets, and those that were. `device` is the GPU's UUID: another device in its place is free of it."""
