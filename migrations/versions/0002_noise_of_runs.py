"""Sums of the logarithm of the gradient noise scale over the steps of a measurement."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("measurements", sa.Column("noise_steps", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("measurements", sa.Column("log_noise_sum", sa.Float, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("measurements", "log_noise_sum")
    op.drop_column("measurements", "noise_steps")
