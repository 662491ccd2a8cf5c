"""rented machines"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "machines",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("instance_type", sa.Text(), nullable=False),
        sa.Column("device_kind", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("market", sa.Text(), nullable=False),
        sa.Column("usd_per_h", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("external_id", sa.Text(), nullable=True),
        sa.Column("join_token_sha256", sa.Text(), nullable=True),
        sa.Column("requested_at", moment, nullable=False),
        sa.Column("state_since", moment, nullable=False),
        sa.Column("billed_from", moment, nullable=True),
        sa.Column("billed_to", moment, nullable=True),
        sa.Column("min_billed_s", sa.Float(), nullable=False),
        sa.CheckConstraint(
            "state IN ('ending', 'failed', 'gone', 'launching', 'running', 'wanted')",
            name=op.f("ck_machines_state_known"),
        ),
        sa.CheckConstraint("market IN ('on-demand', 'spot')", name=op.f("ck_machines_market_known")),
        sa.CheckConstraint("slots > 0", name=op.f("ck_machines_slots_positive")),
        sa.CheckConstraint("usd_per_h >= 0", name=op.f("ck_machines_price_not_negative")),
        sa.CheckConstraint(
            "billed_to IS NULL OR billed_to >= billed_from", name=op.f("ck_machines_billed_forward")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_machines")),
    )
    op.create_index(
        "uq_machines_external_id",
        "machines",
        ["provider", "external_id"],
        unique=True,
        postgresql_where=sa.text("external_id IS NOT NULL"),
    )
    op.create_index(
        "ix_machines_open",
        "machines",
        ["requested_at"],
        unique=False,
        postgresql_where=sa.text("NOT (state IN ('failed', 'gone'))"),
    )
    op.create_index("ix_machines_listing", "machines", ["requested_at", "id"], unique=False)
    op.add_column("nodes", sa.Column("market", sa.Text(), server_default="on-demand", nullable=False))
    op.add_column("nodes", sa.Column("machine_id", sa.Text(), nullable=True))
    op.add_column("nodes", sa.Column("usd_per_slot_h", sa.Float(), nullable=True))
    op.add_column("nodes", sa.Column("reclaim_at", moment, nullable=True))
    op.create_check_constraint(op.f("ck_nodes_market_known"), "nodes", "market IN ('on-demand', 'spot')")


def downgrade() -> None:
    for column in ("reclaim_at", "usd_per_slot_h", "machine_id", "market"):
        op.drop_column("nodes", column)
    op.drop_table("machines")
