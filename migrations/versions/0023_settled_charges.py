"""settle charges by minutes, so that a pass of the ledger does not write everything of an hour again"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leases", sa.Column("settled_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("charges", sa.Column("settled_us", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("charges", "settled_us")
    op.drop_column("leases", "settled_at")
