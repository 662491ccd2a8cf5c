"""Table of rented machines. `migrations/` must produce exactly this."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Float, Index, Integer, Table, Text, text

from headway.contract.values.markets import Market
from service.adapters.postgres.tables.core import Moment, listed, metadata
from service.domain.rental.machines import ENDED, MachineState

ENDED_SQL = f"state IN ({listed([*ENDED])})"

machines = Table(
    "machines",
    metadata,
    Column("id", Text, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("zone", Text, nullable=False),
    Column("instance_type", Text, nullable=False),
    Column("device_kind", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("market", Text, nullable=False),
    Column("usd_per_h", Float, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("external_id", Text),
    Column("join_token_sha256", Text),
    Column("requested_at", Moment, nullable=False),
    Column("state_since", Moment, nullable=False),
    Column("billed_from", Moment),
    Column("billed_to", Moment),
    Column("min_billed_s", Float, nullable=False),
    CheckConstraint(f"state IN ({listed([*MachineState])})", name="state_known"),
    CheckConstraint(f"market IN ({listed([*Market])})", name="market_known"),
    CheckConstraint("slots > 0", name="slots_positive"),
    CheckConstraint("usd_per_h >= 0", name="price_not_negative"),
    CheckConstraint("billed_to IS NULL OR billed_to >= billed_from", name="billed_forward"),
    Index(
        "uq_machines_external_id",
        "provider",
        "external_id",
        unique=True,
        postgresql_where=text("external_id IS NOT NULL"),
    ),
    Index("ix_machines_open", "requested_at", postgresql_where=text(f"NOT ({ENDED_SQL})")),
    Index("ix_machines_listing", "requested_at", "id"),
)
"""All rented machines, open and ended. Bills are computed from these rows."""
