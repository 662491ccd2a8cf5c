"""The tables. `migrations/` must produce exactly these (`alembic check` runs in the tests)."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from headway.contract.agents import NodeState
from headway.contract.jobs import TERMINAL_STATES, JobState
from headway.contract.markets import Market
from headway.contract.simulations import ENDED, SimulationStatus

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def listed(values: list[str]) -> str:
    """Values for `IN (...)`."""
    return ", ".join(f"'{value}'" for value in sorted(values))


TERMINAL_SQL = f"state IN ({listed([*TERMINAL_STATES])})"
"""Derived from the lifecycle, like the CHECKs below."""

Moment = DateTime(timezone=True)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("job_class", Text, nullable=False, server_default=""),
    Column("spec", JSONB, nullable=False),
    Column("idempotency_key", Text),
    Column("request_digest", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("generation", Integer, nullable=False, server_default="0"),
    Column("newest_generation", Integer, nullable=False, server_default="0"),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("allocation", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("target", JSONB(none_as_null=True)),
    Column("live", Boolean, nullable=False, server_default=text("false")),
    Column("switch", JSONB(none_as_null=True)),
    Column("pinned_size", Integer),
    Column("pause_requested", Boolean, nullable=False, server_default=text("false")),
    Column("preemptions", Integer, nullable=False, server_default="0"),
    Column("infrastructure_failures", Integer, nullable=False, server_default="0"),
    Column("user_errors", Integer, nullable=False, server_default="0"),
    Column("failures", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("retry_at", Moment),
    Column("samples_at_loss", BigInteger),
    Column("growth_failures", Integer, nullable=False, server_default="0"),
    Column("grow_after", Moment),
    Column("progress", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("traceparent", Text),
    Column("submitted_at", Moment, nullable=False),
    Column("state_since", Moment, nullable=False),
    Column("started_at", Moment),
    Column("finished_at", Moment),
    CheckConstraint(f"state IN ({listed([*JobState])})", name="state_known"),
    CheckConstraint("generation >= 0", name="generation_grows_from_zero"),
    CheckConstraint("newest_generation >= generation", name="newest_generation_is_newest"),
    CheckConstraint(f"(finished_at IS NOT NULL) = ({TERMINAL_SQL})", name="finished_when_terminal"),
    CheckConstraint("target IS NULL OR state = 'RESIZING'", name="target_while_resizing"),
    CheckConstraint(
        "switch IS NULL OR state IN ('CANCELLING', 'RECOVERING', 'RESIZING')", name="switch_while_changing"
    ),
    Index(
        "uq_jobs_live_name", "project", "name", unique=True, postgresql_where=text(f"NOT ({TERMINAL_SQL})")
    ),
    Index(
        "uq_jobs_idempotency_key",
        "project",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index("ix_jobs_live", "submitted_at", postgresql_where=text(f"NOT ({TERMINAL_SQL})")),
    Index("ix_jobs_switching", "id", postgresql_where=text("switch IS NOT NULL")),
    Index("ix_jobs_listing", "submitted_at", "id"),
    Index("ix_jobs_name", "name"),
    Index("ix_jobs_bundle", text("(spec ->> 'bundle')")),
    Index(
        "ix_jobs_class_started", "job_class", "submitted_at", postgresql_where=text("started_at IS NOT NULL")
    ),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("instance", Text, nullable=False),
    Column("token_sha256", Text, nullable=False),
    Column("previous_token_sha256", Text),
    Column("token_since", Moment),
    Column("join_token_id", Text),
    Column("container_engine", Text),
    Column("state", Text, nullable=False),
    Column("wanted_state", Text, nullable=False),
    Column("message", Text, nullable=False, server_default=""),
    Column("address", Text, nullable=False),
    Column("first_port", Integer, nullable=False),
    Column("last_port", Integer, nullable=False),
    Column("slots", JSONB, nullable=False),
    Column("agent_version", Text, nullable=False),
    Column("last_sequence", BigInteger, nullable=False, server_default="0"),
    Column("joined_at", Moment, nullable=False),
    Column("seen_at", Moment, nullable=False),
    Column("market", Text, nullable=False, server_default="on-demand"),
    Column("machine_id", Text),
    Column("usd_per_slot_h", Float),
    Column("reclaim_at", Moment),
    CheckConstraint(f"state IN ({listed([*NodeState])})", name="state_known"),
    CheckConstraint(f"market IN ({listed([*Market])})", name="market_known"),
)
"""`machine_id` is null for hosts that nobody rented, and `usd_per_slot_h` where the prices by device kind hold.
`reclaim_at` is when a spot machine is taken away, once that is known. `token_since` is when the node's token was used for the
first time: until then the previous one works too. `join_token_id` is null for those that joined with the permanent one,
`container_engine` for hosts that cannot start containers.
"""

allocations = Table(
    "allocations",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("slots", JSONB, nullable=False),
    Column("size", Integer, nullable=False),
    Column("device_kind", Text, nullable=False),
    Column("first_node", Text, nullable=False),
    Column("master_port", Integer, nullable=False),
    Column("members", JSONB(none_as_null=True)),
    Column("stores", JSONB(none_as_null=True)),
    Column("started_nodes", Integer, nullable=False, server_default="0"),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("round_id", Text),
    Column("granted_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("predicted_samples_per_s", Float),
    Column("predicted_low", Float),
    Column("predicted_high", Float),
    CheckConstraint("size > 0", name="size_positive"),
    Index(
        "ix_allocations_predicted", "granted_at", postgresql_where=text("predicted_samples_per_s IS NOT NULL")
    ),
)
"""Every allocation that a job ever ran on, or prepared, by generation. `members` and `stores` are null in rows from
before members could change in place: there they follow from the slots and the rendezvous. The prediction is null where
no round expected anything, as of those that go on after a loss.
"""

slot_grants = Table(
    "slot_grants",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("node_id", Text, ForeignKey("nodes.id"), nullable=False),
    Column("slot", Integer, nullable=False),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("granted_at", Moment, nullable=False),
    Column("released_at", Moment),
    Index(
        "uq_slot_grants_held", "node_id", "slot", unique=True, postgresql_where=text("released_at IS NULL")
    ),
    Index("ix_slot_grants_held_by", "job_id", postgresql_where=text("released_at IS NULL")),
    Index("ix_slot_grants_released", "node_id", "released_at"),
)
"""Who holds which slot. The partial unique index is the promise that none is granted twice."""

commands = Table(
    "commands",
    metadata,
    Column("id", Text, primary_key=True),
    Column("sequence", BigInteger, Identity(), nullable=False),
    Column("node_id", Text, ForeignKey("nodes.id"), nullable=False),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("body", JSONB, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("pushed_at", Moment),
    Column("pushes", Integer, nullable=False, server_default="0"),
    Column("acknowledged_at", Moment),
    Index("ix_commands_waiting", "sequence", postgresql_where=text("acknowledged_at IS NULL")),
    Index("ix_commands_job_id", "job_id"),
)
"""The outbox: a command is a row here before it is a message in Redis."""

rank_exits = Table(
    "rank_exits",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("exit_code", Integer),
    Column("signal", Integer),
    Column("stopped_by_agent", Boolean, nullable=False),
    Column("completed", Boolean, nullable=False),
    Column("log_tail", JSONB, nullable=False),
    Column("start_error", Text),
    Column("at", Moment, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("sequence", BigInteger, Identity(), primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("at", Moment, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text),
    Column("reason", Text),
    Column("message", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("data", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Index("ix_events_job_id_sequence", "job_id", "sequence"),
)

measurements = Table(
    "measurements",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("global_batch", Integer, primary_key=True),
    Column("device_kind", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("step_s_sum", Float, nullable=False),
    Column("step_s_squares", Float, nullable=False),
    Column("sync_s_sum", Float, nullable=False, server_default="0"),
    Column("local_batch", Integer, nullable=False, server_default="0"),
    Column("accumulation", Integer, nullable=False, server_default="1"),
    Column("gradient_sqr", Float),
    Column("gradient_var", Float),
    Column("updated_at", Moment, nullable=False),
)
"""Sufficient statistics of step time per generation and batch plan; models are fitted from them. `local_batch` is 0 in
rows from before it was noted.
"""

metrics = Table(
    "metrics",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("at", Moment, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("value", Float, nullable=False),
    Index("ix_metrics_job_id_id", "job_id", "id"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("round_id", Text, nullable=False),
    Column("decided_at", Moment, nullable=False),
    Column("action", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("options", JSONB, nullable=False),
)
"""The last decision about each job: what `explain` shows."""

rounds = Table(
    "rounds",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("took_s", Float, nullable=False),
    Column("status", Text, nullable=False),
    Column("objective", Float, nullable=False),
    Column("bound", Float, nullable=False),
    Column("gap", Float, nullable=False, server_default="0"),
    Column("policy", Text, nullable=False, server_default=""),
    Column("parameters", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("inputs_digest", Text, nullable=False, server_default=""),
    Column("unit", Text, nullable=False, server_default=""),
    Column("prices", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("times", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("jobs", Integer, nullable=False),
    Column("changes", JSONB, nullable=False),
    Index("ix_rounds_at", "at", "id"),
    Index("ix_rounds_idle", "id", postgresql_where=text("changes = '[]'::jsonb")),
)
"""Rounds that changed something, and the latest one."""

cluster_settings = Table(
    "cluster_settings",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("policy", Text, nullable=False),
    Column("parameters", JSONB, nullable=False),
    Column("policy_state", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("updated_at", Moment, nullable=False),
    CheckConstraint("id = 1", name="only_one"),
)
"""What operators choose at run time: one row, or none as long as everything is at its default. `policy_state` is what
the policy carries from round to round.
"""

simulations = Table(
    "simulations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("idempotency_key", Text),
    Column("request", JSONB(none_as_null=True), nullable=False),
    Column("request_digest", Text, nullable=False),
    Column("projects", ARRAY(Text)),
    Column("status", Text, nullable=False),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("progress", Float, nullable=False, server_default="0"),
    Column("message", Text, nullable=False),
    Column("result", JSONB(none_as_null=True)),
    Column("created_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("finished_at", Moment),
    CheckConstraint(f"status IN ({listed([*SimulationStatus])})", name="status_known"),
    CheckConstraint(
        f"(finished_at IS NOT NULL) = (status IN ({listed([*ENDED])}))", name="finished_when_ended"
    ),
    Index(
        "uq_simulations_idempotency_key",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index("ix_simulations_listing", "created_at", "id"),
    Index("ix_simulations_open", "created_at", "id", postgresql_where=text("finished_at IS NULL")),
)
"""What-if simulations. `attempt` is which try of running it this is: who runs an older one has lost it. `projects` are those that
whoever asked could see: only jobs of theirs are named in the result, to those who may see all of them; null: everything.
"""

bundles = Table(
    "bundles",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("files", JSONB, nullable=False),
    Column("created_at", Moment, nullable=False),
)

bundle_uploads = Table(
    "bundle_uploads",
    metadata,
    Column("digest", Text, ForeignKey("bundles.digest", ondelete="CASCADE"), primary_key=True),
    Column("uploader", Text, primary_key=True),
)
"""Who has shown that they have the bytes: `domain.access.Principal.key`."""

api_processes = Table(
    "api_processes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("up_since", Moment, nullable=False),
    Column("seen_at", Moment, nullable=False),
    Column("late_at", Moment),
)
"""API replicas that are up. A node is called lost only for silence while an API could hear it. `late_at` is when the replica
last refused reports of agents or was late with them, null where it never was.
"""
