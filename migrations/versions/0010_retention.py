"""what stays of allocations that are deleted, how far thinning is, and grants by job"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.adapters.postgres.online import create_index_online

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # First, since it is no part of the transaction: what comes after it is done once.
    create_index_online(op, "ix_slot_grants_job_id", "slot_grants", ["job_id"])
    op.create_table(
        "past_allocations",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("device_kind", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("slot_s", sa.Float(), nullable=False),
        sa.CheckConstraint("seconds >= 0 AND slot_s >= 0", name=op.f("ck_past_allocations_not_negative")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_past_allocations_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "device_kind", name=op.f("pk_past_allocations")),
    )
    op.create_table(
        "retention_cursors",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_retention_cursors")),
    )


def downgrade() -> None:
    op.drop_index("ix_slot_grants_job_id", table_name="slot_grants")
    for table in ("retention_cursors", "past_allocations"):
        op.drop_table(table)
