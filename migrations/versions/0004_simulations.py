"""what-if simulations of the live cluster"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    json = postgresql.JSONB(none_as_null=True, astext_type=sa.Text())
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "simulations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("request", json, nullable=False),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("progress", sa.Float(), server_default="0", nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("result", json, nullable=True),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("started_at", moment, nullable=True),
        sa.Column("finished_at", moment, nullable=True),
        sa.CheckConstraint(
            "status IN ('cancelled', 'done', 'failed', 'queued', 'running')",
            name=op.f("ck_simulations_status_known"),
        ),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (status IN ('cancelled', 'done', 'failed'))",
            name=op.f("ck_simulations_finished_when_ended"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_simulations")),
    )
    op.create_index(
        "uq_simulations_idempotency_key",
        "simulations",
        ["idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index("ix_simulations_listing", "simulations", ["created_at", "id"], unique=False)
    op.create_index(
        "ix_simulations_open",
        "simulations",
        ["created_at", "id"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_table("simulations")
