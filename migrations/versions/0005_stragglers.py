"""Marks of slots whose ranks stay slower than the others of their job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stragglers",
        sa.Column("node_id", sa.Text, sa.ForeignKey("nodes.id", ondelete="CASCADE"), nullable=False),
        sa.Column("slot", sa.Integer, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("times", sa.Float, nullable=False),
        sa.Column("marked_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("node_id", "slot"),
    )


def downgrade() -> None:
    op.drop_table("stragglers")
