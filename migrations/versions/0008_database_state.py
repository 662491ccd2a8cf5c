"""which code may start on this schema, and from which backup it comes"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "database_state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("oldest_revision", sa.Text(), nullable=False),
        sa.Column("backed_up_at", _MOMENT, nullable=True),
        sa.Column("restored_at", _MOMENT, nullable=True),
        sa.CheckConstraint("id = 1", name=op.f("ck_database_state_only_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_database_state")),
    )
    op.execute("INSERT INTO database_state (id, oldest_revision) VALUES (1, '0008')")


def downgrade() -> None:
    op.drop_table("database_state")
