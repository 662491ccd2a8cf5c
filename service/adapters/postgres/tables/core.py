"""Tables of jobs, nodes and rounds. `migrations/` must produce exactly these (a test runs `alembic check`)."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
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
from headway.contract.values.markets import Market
from headway.contract.views.jobs import TERMINAL_STATES, JobState
from headway.contract.views.simulations import ENDED, SimulationStatus

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
    """Return the values as a list for `IN (...)`."""
    return ", ".join(f"'{value}'" for value in sorted(values))


TERMINAL_SQL = f"state IN ({listed([*TERMINAL_STATES])})"
"""Condition that a job has ended, derived from the lifecycle like the CHECKs below."""

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
    Column("target_batch", Integer),
    Column("live", Boolean, nullable=False, server_default=text("false")),
    Column("sharded", Boolean, nullable=False, server_default=text("false")),
    Column("switch", JSONB(none_as_null=True)),
    Column("pinned_size", Integer),
    Column("pause_requested", Boolean, nullable=False, server_default=text("false")),
    Column("waits", Boolean, nullable=False, server_default=text("false")),
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
    Column("owner", Text),
    Column("market_limit", JSONB(none_as_null=True)),
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

predecessors = Table(
    "predecessors",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("predecessor_id", Text, primary_key=True),
    Column("key", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("ends", Text, nullable=False),
    Column("files", Boolean, nullable=False),
    Column("position", Integer, nullable=False),
    Column("ended_state", Text),
    Column("ended_reason", Text),
    Index("ix_predecessors_predecessor_id", "predecessor_id"),
)
"""Jobs that others wait for or waited for. A row outlives the job `predecessor_id`, so that the chain can be shown."""

sweeps = Table(
    "sweeps",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("sweep", JSON, nullable=False),
    Column("owner", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("request_digest", Text, nullable=False),
    Column("submitted_at", Moment, nullable=False),
    Index(
        "uq_sweeps_idempotency_key",
        "project",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index("ix_sweeps_listing", "submitted_at", "id"),
    Index("ix_sweeps_name", "name"),
)

trials = Table(
    "trials",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("sweep_id", Text, ForeignKey("sweeps.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("lowest", Float),
    Column("highest", Float),
    Column("stopped_at", Moment),
    Index("uq_trials_sweep_id_number", "sweep_id", "number", unique=True),
)
"""Jobs of sweeps. `lowest` and `highest` are the extremes of the sweep's metric so far. `stopped_at`: ended early."""

rung_values = Table(
    "rung_values",
    metadata,
    Column("job_id", Text, ForeignKey("trials.job_id", ondelete="CASCADE"), primary_key=True),
    Column("rung", Integer, primary_key=True),
    Column("value", Float, nullable=False),
)
"""The first value of the sweep's metric that each trial reported at or after each rung of `sweep.stop`."""

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
    Column("labels", JSONB, nullable=False, server_default="{}"),
    CheckConstraint(f"state IN ({listed([*NodeState])})", name="state_known"),
    CheckConstraint(f"market IN ({listed([*Market])})", name="market_known"),
)
"""Nodes.

`machine_id` is null for hosts that are not rented, `usd_per_slot_h` where the prices by device kind apply. `reclaim_at` is
the reclaim time of a spot machine. `token_since` is the first use of the node's token; until then the previous one works too.
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
    Column("members", JSONB(none_as_null=True), nullable=False),
    Column("stores", JSONB(none_as_null=True), nullable=False),
    Column("started_nodes", Integer, nullable=False, server_default="0"),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("round_id", Text),
    Column("granted_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("predicted_samples_per_s", Float),
    Column("predicted_low", Float),
    Column("predicted_high", Float),
    Column("crossed", Text, nullable=False, server_default=""),
    CheckConstraint("size > 0", name="size_positive"),
    Index(
        "ix_allocations_predicted", "granted_at", postgresql_where=text("predicted_samples_per_s IS NOT NULL")
    ),
)
"""Every allocation that a job ran on or prepared, by generation. Without a prediction, as after a loss, that is null."""

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
"""Grants of slots to jobs. The partial unique index ensures that no slot is granted twice."""

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
"""Outbox: a command is a row here before it is a message in Redis."""

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


def _measured(name: str) -> Table:
    return Table(
        name,
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
        Column("noise_steps", BigInteger, nullable=False, server_default="0"),
        Column("log_noise_sum", Float, nullable=False, server_default="0"),
        Column("crossed", Text, nullable=False, server_default=""),
    )


measurements = _measured("measurements")
"""Sufficient statistics of step time by generation and batch plan, from which models are fitted."""

slow_link_measurements = _measured("slow_link_measurements")
"""Statistics of steps behind a link that was marked as slow, apart from those of the same generation without."""
_COLUMNS = ", ".join(measurements.c.keys())
ALL_MEASUREMENTS = f"""
    (SELECT {_COLUMNS} FROM measurements UNION ALL SELECT {_COLUMNS} FROM slow_link_measurements) AS measurements
"""  # noqa: S608 - constants
"""Both tables of measurements, for a FROM clause."""

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
    Column("starts_at", Moment, nullable=True),
)
"""Latest decision about each job, as `explain` shows it."""

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
"""Rounds that changed something, and the latest round."""

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
"""Settings that operators choose at run time: one row, or none while all are at their defaults.

`policy_state` is the state that the policy carries from round to round.
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
"""What-if simulations. `attempt` counts the runs; a process with an older attempt has lost its run.

`projects` are those that the requester could see, null for all. The result names only their jobs, and only
readers who may see all of these projects get it.
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
"""Principals that have shown possession of a bundle's bytes: `service.domain.identity.access.Principal.key`."""

api_processes = Table(
    "api_processes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("up_since", Moment, nullable=False),
    Column("seen_at", Moment, nullable=False),
    Column("late_at", Moment),
)
"""API replicas that are up. A node becomes LOST only by silence during which an API process could hear it.

`late_at` is the last time that the replica refused or delayed reports; null if never."""
