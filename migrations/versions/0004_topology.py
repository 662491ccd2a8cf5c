"""Topology labels of nodes, and the level that allocations and measurements crossed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("labels", JSONB, nullable=False, server_default="{}"))
    op.add_column("allocations", sa.Column("crossed", sa.Text, nullable=False, server_default=""))
    op.add_column("measurements", sa.Column("crossed", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("measurements", "crossed")
    op.drop_column("allocations", "crossed")
    op.drop_column("nodes", "labels")
