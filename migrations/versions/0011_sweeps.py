"""Sweeps, and the jobs that are their trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("sweep", sa.JSON, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("request_digest", sa.Text, nullable=False),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index(
        "uq_sweeps_idempotency_key",
        "sweeps",
        ["project", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index("ix_sweeps_listing", "sweeps", ["submitted_at", "id"])
    op.create_index("ix_sweeps_name", "sweeps", ["name"])
    op.create_table(
        "trials",
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("sweep_id", sa.Text, sa.ForeignKey("sweeps.id", ondelete="CASCADE"), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("lowest", sa.Float),
        sa.Column("highest", sa.Float),
    )
    op.create_index("uq_trials_sweep_id_number", "trials", ["sweep_id", "number"], unique=True)


def downgrade() -> None:
    op.drop_table("trials")
    op.drop_table("sweeps")
