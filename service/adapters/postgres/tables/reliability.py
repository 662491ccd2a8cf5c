"""Tables of leadership and quarantines. `migrations/` must produce exactly these."""

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
from service.adapters.postgres.tables.core import Moment, listed, metadata

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
