"""the ledger and budgets"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _ledger()
    _budgets()
    op.create_index("ix_slot_grants_released", "slot_grants", ["node_id", "released_at"], unique=False)


def _ledger() -> None:
    op.create_table(
        "leases",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=True),
        sa.Column("machine_id", sa.Text(), nullable=True),
        sa.Column("slots", postgresql.JSONB(), nullable=False),
        sa.Column("device_kind", sa.Text(), nullable=False),
        sa.Column("market", sa.Text(), nullable=False),
        sa.Column("usd_per_slot_h", sa.Float(), nullable=True),
        sa.Column("from_at", _MOMENT, nullable=False),
        sa.Column("to_at", _MOMENT, nullable=False),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.CheckConstraint("market IN ('on-demand', 'spot')", name=op.f("ck_leases_market_known")),
        sa.CheckConstraint("usd_per_slot_h >= 0", name=op.f("ck_leases_price_not_negative")),
        sa.CheckConstraint("to_at >= from_at", name=op.f("ck_leases_forward")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
    )
    op.create_index("ix_leases_open", "leases", ["node_id"], unique=False, postgresql_where=sa.text("open"))
    op.create_index("ix_leases_node_id", "leases", ["node_id", "to_at"], unique=False)
    op.create_index("ix_leases_to_at", "leases", ["to_at"], unique=False)
    op.create_table(
        "charges",
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.Column("hour", _MOMENT, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("slot_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "category IN ('idle', 'lost', 'resize', 'useful')", name=op.f("ck_charges_category_known")
        ),
        sa.CheckConstraint("slot_us > 0", name=op.f("ck_charges_something")),
        sa.CheckConstraint("(category = 'idle') = (job_id = '')", name=op.f("ck_charges_idle_is_nobodys")),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_charges_lease_id_leases"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("lease_id", "hour", "job_id", "category", "cause", name=op.f("pk_charges")),
    )
    op.create_index("ix_charges_hour", "charges", ["hour"], unique=False)
    op.create_index("ix_charges_job_id", "charges", ["job_id"], unique=False)
    op.create_table(
        "ledger_state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("accrued_at", _MOMENT, nullable=True),
        sa.Column("events_to", sa.BigInteger(), nullable=False),
        sa.Column("events_before", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_ledger_state_only_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_state")),
    )


def _budgets() -> None:
    op.create_table(
        "budgets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("usd", sa.Float(), nullable=False),
        sa.Column("period", sa.Text(), nullable=True),
        sa.Column("hard", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
        sa.CheckConstraint("scope IN ('cluster', 'project')", name=op.f("ck_budgets_scope_known")),
        sa.CheckConstraint(
            "kind IN ('hourly_cap', 'long_run', 'period')", name=op.f("ck_budgets_kind_known")
        ),
        sa.CheckConstraint("period IN ('day', 'month', 'week')", name=op.f("ck_budgets_period_known")),
        sa.CheckConstraint("usd >= 0 AND usd < 'Infinity'", name=op.f("ck_budgets_usd_is_an_amount")),
        sa.CheckConstraint(
            "(scope = 'project') = (project IS NOT NULL)", name=op.f("ck_budgets_project_of_its_scope")
        ),
        sa.CheckConstraint(
            "(kind = 'period') = (period IS NOT NULL)", name=op.f("ck_budgets_period_of_its_kind")
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_budgets")),
    )
    op.create_index(
        "uq_budgets_long_run",
        "budgets",
        ["kind"],
        unique=True,
        postgresql_where=sa.text("kind = 'long_run'"),
    )
    op.create_table(
        "budget_notices",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("since", _MOMENT, nullable=False),
        sa.Column("share", sa.Float(), nullable=False),
        sa.Column("given_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("subject", name=op.f("pk_budget_notices")),
    )


def downgrade() -> None:
    op.drop_index("ix_slot_grants_released", table_name="slot_grants")
    for table in ("budget_notices", "budgets", "ledger_state", "charges", "leases"):
        op.drop_table(table)
