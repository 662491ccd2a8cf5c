"""Names of the users and robots that submitted jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("owner", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "owner")
