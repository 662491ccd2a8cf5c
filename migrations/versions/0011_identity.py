"""who may do what: projects, users, roles, tokens, join tokens, sign-ins, secrets, audit"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_ROLES = "role IN ('admin', 'operator', 'user', 'viewer')"
_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _projects()
    _people()
    _tokens()
    _secrets()
    _audit()
    op.add_column("nodes", sa.Column("previous_token_sha256", sa.Text(), nullable=True))
    op.add_column("nodes", sa.Column("token_since", _MOMENT, nullable=True))


def _projects() -> None:
    op.create_table(
        "projects",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False, server_default=""),
        sa.Column("slots", sa.Integer(), nullable=True),
        sa.Column("max_slots", sa.Integer(), nullable=True),
        sa.Column("usd_per_month", sa.Float(), nullable=True),
        sa.Column("weight", sa.Float(), nullable=False, server_default="1"),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.CheckConstraint(
            "slots >= 0 AND max_slots >= 0 AND usd_per_month >= 0", name=op.f("ck_projects_not_negative")
        ),
        sa.CheckConstraint("weight > 0", name=op.f("ck_projects_weight_positive")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
    )
    op.execute(
        "INSERT INTO projects (name, created_at) "
        "SELECT DISTINCT project, now() FROM (SELECT project FROM jobs UNION SELECT project FROM budgets "
        "WHERE project IS NOT NULL UNION SELECT 'default') AS known"
    )


def _people() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=True),
        sa.Column("subject", sa.Text(), nullable=True),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("last_seen_at", _MOMENT, nullable=True),
        sa.Column("disabled_at", _MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("name", name=op.f("uq_users_name")),
    )
    op.create_index(
        "uq_users_subject",
        "users",
        ["issuer", "subject"],
        unique=True,
        postgresql_where=sa.text("subject IS NOT NULL"),
    )
    op.create_table(
        "members",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.CheckConstraint(_ROLES, name=op.f("ck_members_role_known")),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_members_user_id_users"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "project", name=op.f("pk_members")),
    )
    op.create_index("ix_members_project", "members", ["project"])
    op.create_table(
        "logins",
        sa.Column("state_sha256", sa.Text(), nullable=False),
        sa.Column("verifier", sa.Text(), nullable=False),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("return_to", sa.Text(), nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("state_sha256", name=op.f("pk_logins")),
    )


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("project", sa.Text(), nullable=False, server_default="*"),
        sa.Column("session", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=True),
        sa.Column("revoked_at", _MOMENT, nullable=True),
        sa.Column("last_used_at", _MOMENT, nullable=True),
        sa.CheckConstraint(_ROLES, name=op.f("ck_tokens_role_known")),
        sa.CheckConstraint("user_id IS NOT NULL OR role IS NOT NULL", name=op.f("ck_tokens_robot_has_role")),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_tokens_user_id_users"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_tokens_sha256")),
    )
    op.create_index("ix_tokens_user_id", "tokens", ["user_id"])
    op.create_index("ix_tokens_expires_at", "tokens", ["expires_at"])
    op.create_table(
        "join_tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False, server_default=""),
        sa.Column("uses_left", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.CheckConstraint("uses_left >= 0", name=op.f("ck_join_tokens_uses_left_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_join_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_join_tokens_sha256")),
    )


def _secrets() -> None:
    op.create_table(
        "secrets",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_secrets")),
    )


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("token_id", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column(
            "detail",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            server_default=sa.text("'{}'::jsonb"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_audit_project", "audit", ["project", "id"])
    op.execute(
        """
        CREATE FUNCTION refuse_to_forget() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'DELETE' AND OLD.at < now() - interval '1 year' THEN
                RETURN OLD;
            END IF;
            RAISE EXCEPTION 'the audit log is append-only';
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON audit "
        "FOR EACH ROW EXECUTE FUNCTION refuse_to_forget()"
    )


def downgrade() -> None:
    op.drop_column("nodes", "token_since")
    op.drop_column("nodes", "previous_token_sha256")
    for table in ("audit", "secrets", "join_tokens", "tokens", "logins", "members", "users", "projects"):
        op.drop_table(table)
    op.execute("DROP FUNCTION refuse_to_forget()")
