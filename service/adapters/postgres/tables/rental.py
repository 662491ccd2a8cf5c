"""Tables of rented machines, leases, charges and budgets. `migrations/` must produce exactly these."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from headway.contract.values.markets import Market
from headway.contract.views.money import BudgetKind, Category, Period, Scope
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
    Column("job_id", Text),
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

leases = Table(
    "leases",
    metadata,
    Column("id", Text, primary_key=True),
    Column("node_id", Text),
    Column("machine_id", Text),
    Column("slots", JSONB, nullable=False),
    Column("device_kind", Text, nullable=False),
    Column("market", Text, nullable=False),
    Column("usd_per_slot_h", Float),
    Column("from_at", Moment, nullable=False),
    Column("to_at", Moment, nullable=False),
    Column("open", Boolean, nullable=False),
    Column("settled_at", Moment),
    CheckConstraint(f"market IN ({listed([*Market])})", name="market_known"),
    CheckConstraint("usd_per_slot_h >= 0", name="price_not_negative"),
    CheckConstraint("to_at >= from_at", name="forward"),
    Index("ix_leases_open", "node_id", postgresql_where=text("open")),
    Index("ix_leases_node_id", "node_id", "to_at"),
    Index("ix_leases_to_at", "to_at"),
)
"""Periods that are paid for: a rented machine, or a time in which an owned host had the same slots and price.

`charges` has all of its slots from `from_at` to `to_at`, to the microsecond. `usd_per_slot_h` is null where
no price is known. The time before `settled_at` is settled; null: nothing is settled yet.
"""

charges = Table(
    "charges",
    metadata,
    Column("lease_id", Text, ForeignKey("leases.id", ondelete="CASCADE"), primary_key=True),
    Column("hour", Moment, primary_key=True),
    Column("job_id", Text, primary_key=True),
    Column("category", Text, primary_key=True),
    Column("cause", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("slot_us", BigInteger, nullable=False),
    Column("settled_us", BigInteger, nullable=False, server_default="0"),
    CheckConstraint(f"category IN ({listed([*Category])})", name="category_known"),
    CheckConstraint("slot_us > 0", name="something"),
    CheckConstraint("(category = 'idle') = (job_id = '')", name="idle_is_nobodys"),
    Index("ix_charges_hour", "hour"),
    Index("ix_charges_job_id", "job_id"),
)
"""Slot-microseconds of a lease within an hour, by job, category and cause.

Price, market, device kind and node are those of the lease, so dollars are computed and add up. `job_id` and
`project` are empty for idle slots, `cause` where nothing was lost. `settled_us` is the part before the
lease's `settled_at` while its hour is not over.
"""

ledger_state = Table(
    "ledger_state",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("accrued_at", Moment),
    Column("events_to", BigInteger, nullable=False),
    Column("events_before", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="only_one"),
)
"""Progress of the ledger, in one row that a pass locks.

`events_to` is the last event that the latest pass saw, `events_before` that of the pass before: event numbers
can be committed out of order.
"""

budgets = Table(
    "budgets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("scope", Text, nullable=False),
    Column("project", Text),
    Column("kind", Text, nullable=False),
    Column("usd", Float, nullable=False),
    Column("period", Text),
    Column("hard", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    CheckConstraint(f"scope IN ({listed([*Scope])})", name="scope_known"),
    CheckConstraint(f"kind IN ({listed([*BudgetKind])})", name="kind_known"),
    CheckConstraint(f"period IN ({listed([*Period])})", name="period_known"),
    CheckConstraint("usd >= 0 AND usd < 'Infinity'", name="usd_is_an_amount"),
    CheckConstraint("(scope = 'project') = (project IS NOT NULL)", name="project_of_its_scope"),
    CheckConstraint("(kind = 'period') = (period IS NOT NULL)", name="period_of_its_kind"),
    Index(
        "uq_budgets_long_run", "kind", unique=True, postgresql_where=text(f"kind = '{BudgetKind.LONG_RUN}'")
    ),
)

budget_notices = Table(
    "budget_notices",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("since", Moment, nullable=False),
    Column("share", Float, nullable=False),
    Column("given_at", Moment, nullable=False),
)
"""Latest share of a budget (`budget/NAME`) or of a job's money (`job/ID`) about which a notice was given.

It ensures one notice for each share. `since` is the start of the period.
"""
