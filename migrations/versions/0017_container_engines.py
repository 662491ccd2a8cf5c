"""which nodes have a container engine, so that rounds place jobs with an image there alone"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("container_engine", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("nodes", "container_engine")
