"""Webhooks of projects, and the outbox of their messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("project", sa.Text, sa.ForeignKey("projects.name", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("url_key_id", sa.Text, nullable=False),
        sa.Column("url_sealed", sa.LargeBinary, nullable=False),
        sa.Column("format", sa.Text, nullable=False),
        sa.Column("topics", ARRAY(sa.Text), nullable=False),
        sa.Column("secret_key_id", sa.Text, nullable=False),
        sa.Column("secret_sealed", sa.LargeBinary, nullable=False),
        sa.Column("old_secret_key_id", sa.Text),
        sa.Column("old_secret_sealed", sa.LargeBinary),
        sa.Column("old_secret_until", _MOMENT),
        sa.Column("disabled_at", _MOMENT),
        sa.Column("message", sa.Text, nullable=False, server_default=""),
        sa.Column("failing_since", _MOMENT),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.CheckConstraint("format IN ('slack', 'standard')", name="format_known"),
    )
    op.create_index("uq_webhooks_name", "webhooks", ["project", "name"], unique=True)
    op.create_table(
        "webhook_messages",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("webhook_id", sa.Text, sa.ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("data", JSONB, nullable=False),
        sa.Column("state", sa.Text, nullable=False, server_default="waiting"),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("next_at", _MOMENT),
        sa.Column("ended_at", _MOMENT),
        sa.Column("status", sa.Integer),
        sa.Column("answer", sa.Text, nullable=False, server_default=""),
        sa.CheckConstraint("state IN ('delivered', 'failed', 'waiting')", name="state_known"),
        sa.CheckConstraint("(next_at IS NULL) = (ended_at IS NOT NULL)", name="due_until_ended"),
    )
    op.create_index(
        "ix_webhook_messages_due",
        "webhook_messages",
        ["webhook_id", "next_at"],
        postgresql_where=sa.text("next_at IS NOT NULL"),
    )
    op.create_index("ix_webhook_messages_listing", "webhook_messages", ["webhook_id", "created_at", "id"])
    op.create_index("ix_webhook_messages_created_at", "webhook_messages", ["created_at"])


def downgrade() -> None:
    op.drop_table("webhook_messages")
    op.drop_table("webhooks")
