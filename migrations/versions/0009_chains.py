"""Jobs that start after others, and those that they wait for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("waits", sa.Boolean, nullable=False, server_default=sa.text("false")))
    op.create_table(
        "predecessors",
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("predecessor_id", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("ends", sa.Text, nullable=False),
        sa.Column("files", sa.Boolean, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("ended_state", sa.Text),
        sa.Column("ended_reason", sa.Text),
    )
    op.create_index("ix_predecessors_predecessor_id", "predecessors", ["predecessor_id"])


def downgrade() -> None:
    op.drop_table("predecessors")
    op.drop_column("jobs", "waits")
