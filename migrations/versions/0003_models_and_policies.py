"""predictions, policies, and what rounds decide by"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def _json(name: str, default: str) -> sa.Column[object]:
    json = postgresql.JSONB(astext_type=sa.Text())
    return sa.Column(name, json, server_default=sa.text(f"'{default}'::jsonb"), nullable=False)


def upgrade() -> None:
    op.add_column("jobs", sa.Column("job_class", sa.Text(), server_default="", nullable=False))
    # As `class_of` in service/domain/jobs.py.
    op.execute(
        "UPDATE jobs SET job_class = project || '/'"
        " || COALESCE(NULLIF(regexp_replace(name, '(-?[0-9]+)+$', ''), ''), name)"
    )
    op.create_index(
        "ix_jobs_class_started",
        "jobs",
        ["job_class", "submitted_at"],
        unique=False,
        postgresql_where=sa.text("started_at IS NOT NULL"),
    )
    op.add_column("measurements", sa.Column("local_batch", sa.Integer(), server_default="0", nullable=False))
    op.add_column("measurements", sa.Column("accumulation", sa.Integer(), server_default="1", nullable=False))
    for name in ("predicted_samples_per_s", "predicted_low", "predicted_high"):
        op.add_column("allocations", sa.Column(name, sa.Float(), nullable=True))
    op.create_index(
        "ix_allocations_predicted",
        "allocations",
        ["granted_at"],
        unique=False,
        postgresql_where=sa.text("predicted_samples_per_s IS NOT NULL"),
    )
    op.add_column("rounds", sa.Column("gap", sa.Float(), server_default="0", nullable=False))
    op.add_column("rounds", sa.Column("policy", sa.Text(), server_default="", nullable=False))
    op.add_column("rounds", _json("parameters", "{}"))
    op.add_column("rounds", sa.Column("inputs_digest", sa.Text(), server_default="", nullable=False))
    op.add_column("rounds", sa.Column("unit", sa.Text(), server_default="", nullable=False))
    op.add_column("rounds", _json("prices", "[]"))
    op.add_column("rounds", _json("times", "{}"))
    op.drop_index("ix_rounds_at", table_name="rounds")
    op.create_index("ix_rounds_at", "rounds", ["at", "id"], unique=False)
    op.create_index(
        "ix_rounds_idle", "rounds", ["id"], unique=False, postgresql_where=sa.text("changes = '[]'::jsonb")
    )
    op.create_table(
        "cluster_settings",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("parameters", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        _json("policy_state", "{}"),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_cluster_settings_only_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cluster_settings")),
    )


def downgrade() -> None:
    op.drop_table("cluster_settings")
    op.drop_index("ix_rounds_idle", table_name="rounds", postgresql_where=sa.text("changes = '[]'::jsonb"))
    op.drop_index("ix_rounds_at", table_name="rounds")
    op.create_index("ix_rounds_at", "rounds", ["at"], unique=False)
    for name in ("times", "prices", "unit", "inputs_digest", "parameters", "policy", "gap"):
        op.drop_column("rounds", name)
    op.drop_index("ix_allocations_predicted", table_name="allocations")
    for name in ("predicted_high", "predicted_low", "predicted_samples_per_s"):
        op.drop_column("allocations", name)
    op.drop_column("measurements", "accumulation")
    op.drop_column("measurements", "local_batch")
    op.drop_index("ix_jobs_class_started", table_name="jobs")
    op.drop_column("jobs", "job_class")
