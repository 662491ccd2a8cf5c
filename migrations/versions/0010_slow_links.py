"""Hosts whose measured link is slow, and measurements of steps behind such a link."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.add_column("host_facts", sa.Column("slow_link", sa.Text, nullable=False, server_default=""))
    op.add_column("host_facts", sa.Column("suspected_at", moment))
    op.add_column("host_facts", sa.Column("doubted_at", moment))
    op.create_table(
        "slow_link_measurements",
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("generation", sa.Integer, primary_key=True),
        sa.Column("global_batch", sa.Integer, primary_key=True),
        sa.Column("device_kind", sa.Text, nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("step_s_sum", sa.Float, nullable=False),
        sa.Column("step_s_squares", sa.Float, nullable=False),
        sa.Column("sync_s_sum", sa.Float, nullable=False, server_default="0"),
        sa.Column("local_batch", sa.Integer, nullable=False, server_default="0"),
        sa.Column("accumulation", sa.Integer, nullable=False, server_default="1"),
        sa.Column("gradient_sqr", sa.Float),
        sa.Column("gradient_var", sa.Float),
        sa.Column("updated_at", moment, nullable=False),
        sa.Column("noise_steps", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("log_noise_sum", sa.Float, nullable=False, server_default="0"),
        sa.Column("crossed", sa.Text, nullable=False, server_default=""),
    )


def downgrade() -> None:
    op.drop_table("slow_link_measurements")
    op.drop_column("host_facts", "doubted_at")
    op.drop_column("host_facts", "suspected_at")
    op.drop_column("host_facts", "slow_link")
