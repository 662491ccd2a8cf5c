"""with which token another was made, so that who revokes one ends what came of it"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("parent_id", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("tokens", "parent_id")
