"""Facts about hosts, and the connections between them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "host_facts",
        sa.Column("node_id", sa.Text, sa.ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("source_address", sa.Text, nullable=False),
        sa.Column("facts", JSONB, nullable=False),
        sa.Column("probe_key", sa.Text, nullable=False),
        sa.Column("clock_ahead_s", sa.Float),
        sa.Column("reported_at", _MOMENT, nullable=False),
    )
    op.create_table(
        "host_links",
        sa.Column("source_id", sa.Text, sa.ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("target_id", sa.Text, sa.ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("port", sa.Integer, nullable=False),
        sa.Column("failure", sa.Text, nullable=False),
        sa.Column("since", _MOMENT, nullable=False),
        sa.Column("probed_at", _MOMENT, nullable=False),
        sa.Column("job_at", _MOMENT),
        sa.Column("transferred_at", _MOMENT),
        sa.Column("connect_s", sa.Float),
        sa.Column("bytes_per_s", sa.Float),
    )
    op.create_index("ix_host_links_target", "host_links", ["target_id"])
    op.create_index(
        "ix_host_links_failing", "host_links", ["source_id"], postgresql_where=sa.text("failure <> ''")
    )


def downgrade() -> None:
    op.drop_table("host_links")
    op.drop_table("host_facts")
