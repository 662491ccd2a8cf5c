"""initial schema"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_processes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("up_since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_processes")),
    )
    op.create_table(
        "bundles",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("files", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_bundles")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), server_default="0", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "allocation",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("target", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("pinned_size", sa.Integer(), nullable=True),
        sa.Column("pause_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("preemptions", sa.Integer(), server_default="0", nullable=False),
        sa.Column("infrastructure_failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("user_errors", sa.Integer(), server_default="0", nullable=False),
        sa.Column("retry_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "progress",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (state IN ('CANCELLED', 'FAILED', 'SUCCEEDED'))",
            name=op.f("ck_jobs_finished_when_terminal"),
        ),
        sa.CheckConstraint(
            "state IN ('CANCELLED', 'CANCELLING', 'FAILED', 'PAUSED', 'PENDING', 'RECOVERING', 'RESIZING', 'RUNNING', 'STARTING', 'SUCCEEDED')",
            name=op.f("ck_jobs_state_known"),
        ),
        sa.CheckConstraint(
            "target IS NULL OR state = 'RESIZING'", name=op.f("ck_jobs_target_while_resizing")
        ),
        sa.CheckConstraint("generation >= 0", name=op.f("ck_jobs_generation_grows_from_zero")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_listing", "jobs", ["submitted_at", "id"], unique=False)
    op.create_index(
        "ix_jobs_live",
        "jobs",
        ["submitted_at"],
        unique=False,
        postgresql_where=sa.text("NOT (state IN ('CANCELLED', 'FAILED', 'SUCCEEDED'))"),
    )
    op.create_index("ix_jobs_name", "jobs", ["name"], unique=False)
    op.create_index(
        "uq_jobs_idempotency_key",
        "jobs",
        ["project", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index(
        "uq_jobs_live_name",
        "jobs",
        ["project", "name"],
        unique=True,
        postgresql_where=sa.text("NOT (state IN ('CANCELLED', 'FAILED', 'SUCCEEDED'))"),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("wanted_state", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("first_port", sa.Integer(), nullable=False),
        sa.Column("last_port", sa.Integer(), nullable=False),
        sa.Column("slots", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("agent_version", sa.Text(), nullable=False),
        sa.Column("last_sequence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("joined_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('CORDONED', 'DRAINED', 'DRAINING', 'LOST', 'READY')", name=op.f("ck_nodes_state_known")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
        sa.UniqueConstraint("name", name=op.f("uq_nodes_name")),
    )
    op.create_table(
        "rounds",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("took_s", sa.Float(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("objective", sa.Float(), nullable=False),
        sa.Column("bound", sa.Float(), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("changes", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
    )
    op.create_index("ix_rounds_at", "rounds", ["at"], unique=False)
    op.create_table(
        "allocations",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("slots", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("device_kind", sa.Text(), nullable=False),
        sa.Column("first_node", sa.Text(), nullable=False),
        sa.Column("master_port", sa.Integer(), nullable=False),
        sa.Column("started_nodes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("round_id", sa.Text(), nullable=True),
        sa.Column("granted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("size > 0", name=op.f("ck_allocations_size_positive")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_allocations_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "generation", name=op.f("pk_allocations")),
    )
    op.create_table(
        "commands",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("body", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("pushed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pushes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("acknowledged_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_commands_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_commands_node_id_nodes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_commands")),
    )
    op.create_index("ix_commands_job_id", "commands", ["job_id"], unique=False)
    op.create_index(
        "ix_commands_waiting",
        "commands",
        ["sequence"],
        unique=False,
        postgresql_where=sa.text("acknowledged_at IS NULL"),
    )
    op.create_table(
        "decisions",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("round_id", sa.Text(), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("options", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_decisions_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_decisions")),
    )
    op.create_table(
        "events",
        sa.Column("sequence", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column(
            "data",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_events_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_events")),
    )
    op.create_index("ix_events_job_id_sequence", "events", ["job_id", "sequence"], unique=False)
    op.create_table(
        "measurements",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("global_batch", sa.Integer(), nullable=False),
        sa.Column("device_kind", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("step_s_sum", sa.Float(), nullable=False),
        sa.Column("step_s_squares", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_measurements_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "generation", "global_batch", name=op.f("pk_measurements")),
    )
    op.create_table(
        "metrics",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_metrics_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metrics")),
    )
    op.create_index("ix_metrics_job_id_id", "metrics", ["job_id", "id"], unique=False)
    op.create_table(
        "rank_exits",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("signal", sa.Integer(), nullable=True),
        sa.Column("stopped_by_agent", sa.Boolean(), nullable=False),
        sa.Column("completed", sa.Boolean(), nullable=False),
        sa.Column("log_tail", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("start_error", sa.Text(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_rank_exits_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "generation", "rank", name=op.f("pk_rank_exits")),
    )
    op.create_table(
        "slot_grants",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("granted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("released_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_slot_grants_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_slot_grants_node_id_nodes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_slot_grants")),
    )
    op.create_index(
        "ix_slot_grants_held_by",
        "slot_grants",
        ["job_id"],
        unique=False,
        postgresql_where=sa.text("released_at IS NULL"),
    )
    op.create_index(
        "uq_slot_grants_held",
        "slot_grants",
        ["node_id", "slot"],
        unique=True,
        postgresql_where=sa.text("released_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_index(
        "uq_slot_grants_held", table_name="slot_grants", postgresql_where=sa.text("released_at IS NULL")
    )
    op.drop_index(
        "ix_slot_grants_held_by", table_name="slot_grants", postgresql_where=sa.text("released_at IS NULL")
    )
    op.drop_table("slot_grants")
    op.drop_table("rank_exits")
    op.drop_index("ix_metrics_job_id_id", table_name="metrics")
    op.drop_table("metrics")
    op.drop_table("measurements")
    op.drop_index("ix_events_job_id_sequence", table_name="events")
    op.drop_table("events")
    op.drop_table("decisions")
    op.drop_index(
        "ix_commands_waiting", table_name="commands", postgresql_where=sa.text("acknowledged_at IS NULL")
    )
    op.drop_index("ix_commands_job_id", table_name="commands")
    op.drop_table("commands")
    op.drop_table("allocations")
    op.drop_index("ix_rounds_at", table_name="rounds")
    op.drop_table("rounds")
    op.drop_table("nodes")
    op.drop_index(
        "uq_jobs_live_name",
        table_name="jobs",
        postgresql_where=sa.text("NOT (state IN ('CANCELLED', 'FAILED', 'SUCCEEDED'))"),
    )
    op.drop_index(
        "uq_jobs_idempotency_key", table_name="jobs", postgresql_where=sa.text("idempotency_key IS NOT NULL")
    )
    op.drop_index("ix_jobs_name", table_name="jobs")
    op.drop_index(
        "ix_jobs_live",
        table_name="jobs",
        postgresql_where=sa.text("NOT (state IN ('CANCELLED', 'FAILED', 'SUCCEEDED'))"),
    )
    op.drop_index("ix_jobs_listing", table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("bundles")
    op.drop_table("api_processes")
