"""Hosts whose measured link is slow, and measurements of one generation with and without such a link."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_KEY = ["job_id", "generation", "global_batch"]


def upgrade() -> None:
    op.add_column("host_facts", sa.Column("slow_link", sa.Text, nullable=False, server_default=""))
    op.add_column("host_facts", sa.Column("suspected_at", sa.DateTime(timezone=True)))
    op.drop_constraint("pk_measurements", "measurements", type_="primary")
    op.create_primary_key("pk_measurements", "measurements", [*_KEY, "crossed"])


def downgrade() -> None:
    op.execute(
        """
        DELETE FROM measurements AS one USING measurements AS other
        WHERE one.job_id = other.job_id AND one.generation = other.generation AND one.global_batch = other.global_batch
            AND one.crossed > other.crossed
        """
    )
    op.drop_constraint("pk_measurements", "measurements", type_="primary")
    op.create_primary_key("pk_measurements", "measurements", _KEY)
    op.drop_column("host_facts", "suspected_at")
    op.drop_column("host_facts", "slow_link")
