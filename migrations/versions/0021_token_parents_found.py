"""find what was made with a token; a migration of its own, since others write meanwhile"""

from __future__ import annotations

from alembic import op

from service.adapters.postgres.online import create_index_online

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_online(op, "ix_tokens_parent_id", "tokens", ["parent_id"])


def downgrade() -> None:
    op.drop_index("ix_tokens_parent_id", "tokens")
