"""whose simulations may be seen by whom"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Those of before were asked with the one token that there was: they are everybody's who may see everything.
    op.add_column("simulations", sa.Column("projects", postgresql.ARRAY(sa.Text())))


def downgrade() -> None:
    op.drop_column("simulations", "projects")
