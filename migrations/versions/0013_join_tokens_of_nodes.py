"""with which join token a node joined, so that an agent that did not hear the answer may ask again"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("join_token_id", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("nodes", "join_token_id")
