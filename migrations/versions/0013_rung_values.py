"""Values of trials at their rungs, and the best values of all trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_BEST = """
    UPDATE trials SET lowest = least(trials.lowest, found.lowest), highest = greatest(trials.highest, found.highest)
    FROM (
        SELECT trials.job_id, min(value) AS lowest, max(value) AS highest
        FROM trials JOIN sweeps ON sweeps.id = trials.sweep_id
            JOIN metrics ON metrics.job_id = trials.job_id AND metrics.name = sweeps.sweep ->> 'metric'
        GROUP BY trials.job_id
    ) AS found
    WHERE trials.job_id = found.job_id
"""
"""The service keeps the extremes with each report from now on; so far they were read from the reported values."""


def upgrade() -> None:
    op.create_table(
        "rung_values",
        sa.Column("job_id", sa.Text, sa.ForeignKey("trials.job_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("rung", sa.Integer, primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
    )
    op.add_column("trials", sa.Column("stopped_at", sa.DateTime(timezone=True)))
    op.execute(_BEST)


def downgrade() -> None:
    op.drop_column("trials", "stopped_at")
    op.drop_table("rung_values")
