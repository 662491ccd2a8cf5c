"""members that change in place"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _json() -> postgresql.JSONB:
    return postgresql.JSONB(none_as_null=True, astext_type=sa.Text())


def upgrade() -> None:
    op.add_column("jobs", sa.Column("newest_generation", sa.Integer(), server_default="0", nullable=False))
    op.execute("UPDATE jobs SET newest_generation = generation")
    op.add_column("jobs", sa.Column("live", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("jobs", sa.Column("switch", _json(), nullable=True))
    op.add_column("jobs", sa.Column("samples_at_loss", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("growth_failures", sa.Integer(), server_default="0", nullable=False))
    op.add_column("jobs", sa.Column("grow_after", sa.DateTime(timezone=True), nullable=True))
    op.create_check_constraint(
        op.f("ck_jobs_newest_generation_is_newest"), "jobs", "newest_generation >= generation"
    )
    op.create_check_constraint(
        op.f("ck_jobs_switch_while_changing"),
        "jobs",
        "switch IS NULL OR state IN ('CANCELLING', 'RECOVERING', 'RESIZING')",
    )
    op.create_index(
        "ix_jobs_switching", "jobs", ["id"], unique=False, postgresql_where=sa.text("switch IS NOT NULL")
    )
    op.add_column("allocations", sa.Column("members", _json(), nullable=True))
    op.add_column("allocations", sa.Column("stores", _json(), nullable=True))
    op.add_column("measurements", sa.Column("sync_s_sum", sa.Float(), server_default="0", nullable=False))
    op.add_column("measurements", sa.Column("gradient_sqr", sa.Float(), nullable=True))
    op.add_column("measurements", sa.Column("gradient_var", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("measurements", "gradient_var")
    op.drop_column("measurements", "gradient_sqr")
    op.drop_column("measurements", "sync_s_sum")
    op.drop_column("allocations", "stores")
    op.drop_column("allocations", "members")
    op.drop_index("ix_jobs_switching", table_name="jobs", postgresql_where=sa.text("switch IS NOT NULL"))
    op.drop_constraint(op.f("ck_jobs_switch_while_changing"), "jobs", type_="check")
    op.drop_constraint(op.f("ck_jobs_newest_generation_is_newest"), "jobs", type_="check")
    op.drop_column("jobs", "grow_after")
    op.drop_column("jobs", "growth_failures")
    op.drop_column("jobs", "samples_at_loss")
    op.drop_column("jobs", "switch")
    op.drop_column("jobs", "live")
    op.drop_column("jobs", "newest_generation")
