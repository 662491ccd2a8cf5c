"""Tables of webhooks and their messages. `migrations/` must produce exactly these."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Integer, LargeBinary, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from headway.contract.views.webhooks import DeliveryState, WebhookFormat
from service.adapters.postgres.tables.core import Moment, listed, metadata

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, ForeignKey("projects.name", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("url_key_id", Text, nullable=False),
    Column("url_sealed", LargeBinary, nullable=False),
    Column("format", Text, nullable=False),
    Column("topics", ARRAY(Text), nullable=False),
    Column("secret_key_id", Text, nullable=False),
    Column("secret_sealed", LargeBinary, nullable=False),
    Column("old_secret_key_id", Text),
    Column("old_secret_sealed", LargeBinary),
    Column("old_secret_until", Moment),
    Column("disabled_at", Moment),
    Column("message", Text, nullable=False, server_default=""),
    Column("failing_since", Moment),
    Column("created_by", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    CheckConstraint(f"format IN ({listed([*WebhookFormat])})", name="format_known"),
    Index("uq_webhooks_name", "project", "name", unique=True),
)
"""Webhooks of projects. URL and secrets are sealed; `address` is the URL without path and query."""

webhook_messages = Table(
    "webhook_messages",
    metadata,
    Column("id", Text, primary_key=True),
    Column("webhook_id", Text, ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
    Column("topic", Text, nullable=False),
    Column("data", JSONB, nullable=False),
    Column("state", Text, nullable=False, server_default=DeliveryState.WAITING.value),
    Column("created_at", Moment, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("next_at", Moment),
    Column("ended_at", Moment),
    Column("status", Integer),
    Column("answer", Text, nullable=False, server_default=""),
    CheckConstraint(f"state IN ({listed([*DeliveryState])})", name="state_known"),
    CheckConstraint("(next_at IS NULL) = (ended_at IS NOT NULL)", name="due_until_ended"),
    Index("ix_webhook_messages_due", "webhook_id", "next_at", postgresql_where=text("next_at IS NOT NULL")),
    Index("ix_webhook_messages_listing", "webhook_id", "created_at", "id"),
    Index("ix_webhook_messages_created_at", "created_at"),
)
"""Outbox of the webhooks: a message is a row in the transaction of its event, and is sent later."""
