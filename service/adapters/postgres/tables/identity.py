"""Tables of users, roles, tokens and secrets. `migrations/` must produce exactly these.

Tokens and join tokens are stored only as digests, secrets only encrypted.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from headway.contract.views.identity import Role
from service.adapters.postgres.tables.core import Moment, listed, metadata

_ROLES = listed([*Role])

projects = Table(
    "projects",
    metadata,
    Column("name", Text, primary_key=True),
    Column("description", Text, nullable=False, server_default=""),
    Column("slots", Integer),
    Column("max_slots", Integer),
    Column("usd_per_month", Float),
    Column("weight", Float, nullable=False, server_default="1"),
    Column("created_at", Moment, nullable=False),
    CheckConstraint("slots >= 0 AND max_slots >= 0 AND usd_per_month >= 0", name="not_negative"),
    CheckConstraint("weight > 0", name="weight_positive"),
)
"""Projects, with the quotas of `headway.contract.views.identity.ProjectQuota`."""

users = Table(
    "users",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("issuer", Text),
    Column("subject", Text),
    Column("created_at", Moment, nullable=False),
    Column("last_seen_at", Moment),
    Column("disabled_at", Moment),
    Index("uq_users_subject", "issuer", "subject", unique=True, postgresql_where=text("subject IS NOT NULL")),
)
"""Users. The first sign-in sets `issuer` and `subject`, so a later person of the same name is another user."""

members = Table(
    "members",
    metadata,
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    Column("project", Text, primary_key=True),
    Column("role", Text, nullable=False),
    CheckConstraint(f"role IN ({_ROLES})", name="role_known"),
    Index("ix_members_project", "project"),
)
"""Roles of users. The project `*` means all projects."""

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("sha256", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("user_id", Text, ForeignKey("users.id", ondelete="CASCADE")),
    Column("role", Text),
    Column("project", Text, nullable=False, server_default="*"),
    Column("session", Text),
    Column("parent_id", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("revoked_at", Moment),
    Column("last_used_at", Moment),
    CheckConstraint(f"role IN ({_ROLES})", name="role_known"),
    CheckConstraint("user_id IS NOT NULL OR role IS NOT NULL", name="robot_has_role"),
    Index("ix_tokens_user_id", "user_id"),
    Index("ix_tokens_parent_id", "parent_id"),
    Index("ix_tokens_expires_at", "expires_at"),
)
"""Bearer tokens. `session` identifies the sign-in of a browser; it is null for a token that a client carries.

`parent_id` is the token that authorised the creation of this one.
"""

join_tokens = Table(
    "join_tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("sha256", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False, server_default=""),
    Column("uses_left", Integer, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    CheckConstraint("uses_left >= 0", name="uses_left_not_negative"),
)

storage_tickets = Table(
    "storage_tickets",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("node_id", Text, ForeignKey("nodes.id", ondelete="CASCADE"), nullable=False),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Index("ix_storage_tickets_node_id", "node_id"),
    Index("ix_storage_tickets_job_id", "job_id"),
    Index("ix_storage_tickets_expires_at", "expires_at"),
)
"""Digests of the tickets with which ranks on a node get requests for their job's checkpoints signed."""

logins = Table(
    "logins",
    metadata,
    Column("state_sha256", Text, primary_key=True),
    Column("verifier", Text, nullable=False),
    Column("nonce", Text, nullable=False),
    Column("return_to", Text, nullable=False),
    Column("expires_at", Moment, nullable=False),
)
"""Pending sign-ins of browsers at the identity provider. Each row is used once."""

secrets = Table(
    "secrets",
    metadata,
    Column("project", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
)
"""Sealed secrets. `sealed` is nonce and ciphertext; `key_id` names the key that opens it."""

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("at", Moment, nullable=False),
    Column("actor", Text, nullable=False),
    Column("token_id", Text),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("project", Text),
    Column("status", Integer, nullable=False),
    Column("address", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Index("ix_audit_at", "at"),
    Index("ix_audit_project", "project", "id"),
)
"""Audit log of every change.

A trigger refuses to change a row, and to delete a row younger than a year.
"""
