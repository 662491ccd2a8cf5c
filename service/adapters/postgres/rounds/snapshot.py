"""The snapshot that a scheduling round decides on, read in few queries."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import select, text

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.values.topology import placed_labels
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import FetchedRow, Session, Statement
from service.adapters.postgres.jobs.jobs import COLUMNS, row_to_job
from service.adapters.postgres.money.tenants import tenants_of
from service.adapters.postgres.nodes.links import PostgresHostLinks
from service.adapters.postgres.nodes.nodes import PostgresNodes
from service.adapters.postgres.rental.hazards import history_of_kinds
from service.adapters.postgres.rounds.loss_histories import loss_histories_of
from service.adapters.postgres.rounds.money_snapshot import caps_and_limits, spent_for
from service.adapters.postgres.tables.core import ALL_MEASUREMENTS, TERMINAL_SQL, cluster_settings
from service.domain.allocation.inputs.policy_state import unsized_jobs
from service.domain.cluster.contention_rules import ContentionRules
from service.domain.cluster.market_limits import MarketLimit
from service.domain.cluster.snapshot import (
    CLASS_JOBS,
    LATEST_ARRIVALS,
    LATEST_RESTARTS,
    LEAST_STEPS,
    EndedJob,
    EndedRun,
    MeasuredRestart,
    Measurement,
    Node,
    Orders,
    PolicySetting,
    Served,
    SlotKey,
    Snapshot,
)
from service.domain.jobs.job import Job, class_of
from service.domain.nodes.links import apart_of
from service.domain.rental.spot.history import SpotRisk

OTHER_JOBS = 64
"""Number of succeeded jobs of any class, the latest ones, whose run times predict jobs of a new class."""
_PLAN = "device_kind, slots, nodes, global_batch, local_batch, accumulation, crossed"
_STATISTICS = f"""
    {_PLAN}, max(generation), sum(steps), sum(step_s_sum), sum(step_s_squares), sum(sync_s_sum),
    (array_agg(gradient_sqr ORDER BY updated_at DESC) FILTER (WHERE gradient_sqr IS NOT NULL))[1],
    (array_agg(gradient_var ORDER BY updated_at DESC) FILTER (WHERE gradient_var IS NOT NULL))[1]
"""
"""Statistics of steps, added up: one row for every configuration and batch plan of a job.

Gradient noise changes during training. Its latest estimate counts for the job, and its mean over whole runs for later
jobs of the class.
"""
_MEASUREMENTS = text(
    f"""
    SELECT job_id, {_STATISTICS}, sum(noise_steps), sum(log_noise_sum) FROM {ALL_MEASUREMENTS}
    WHERE job_id = ANY(CAST(:jobs AS text[])) AND steps >= {LEAST_STEPS}
    GROUP BY job_id, {_PLAN} ORDER BY job_id, max(generation), {_PLAN}
    """  # noqa: S608 - constants
)
_CLASS_MEASUREMENTS = text(
    f"""
    SELECT latest.job_class, {_STATISTICS}, coalesce(sum(noise_steps) FILTER (WHERE latest.succeeded), 0),
        coalesce(sum(log_noise_sum) FILTER (WHERE latest.succeeded), 0), latest.reference_batch, latest.min_depth
    FROM unnest(CAST(:classes AS text[])) AS wanted
    CROSS JOIN LATERAL (
        SELECT id, job_class, CAST(spec->'batch'->>'global' AS int) AS reference_batch,
            CAST(spec #>> '{{elastic,partial_backprop,min_depth}}' AS float) AS min_depth,
            state = 'SUCCEEDED' AS succeeded
        FROM jobs
        WHERE job_class = wanted AND started_at IS NOT NULL
        ORDER BY submitted_at DESC LIMIT {CLASS_JOBS}
    ) AS latest
    JOIN {ALL_MEASUREMENTS} ON measurements.job_id = latest.id AND steps >= {LEAST_STEPS}
    GROUP BY latest.job_class, latest.reference_batch, latest.min_depth, {_PLAN}
    ORDER BY latest.job_class, max(updated_at), {_PLAN}, latest.reference_batch, latest.min_depth
    """  # noqa: S608
)
_ARRIVALS = text(
    f"SELECT submitted_at FROM jobs WHERE NOT spec ? 'after' ORDER BY submitted_at DESC, id DESC LIMIT {LATEST_ARRIVALS}"  # noqa: S608
)
_RESTARTS = text(
    f"""
    SELECT CAST(progress->>'stop_s' AS float) AS stop_s, CAST(progress->>'start_s' AS float) AS start_s FROM (
        SELECT progress FROM jobs WHERE ({TERMINAL_SQL}) AND started_at IS NOT NULL
        ORDER BY submitted_at DESC, id DESC LIMIT {LATEST_RESTARTS}
    ) AS latest
    """  # noqa: S608 - constants
)
_WORK = """
    CAST(CASE WHEN progress->>'total_progress' IS NULL THEN progress->>'samples' ELSE progress->>'progress' END AS float)
"""
"""Work that a job has done, as `JobProgress.work_done`."""
_ENDED_SAMPLES = text(
    f"""
    SELECT latest.job_class, latest.samples
    FROM unnest(CAST(:classes AS text[])) AS wanted
    CROSS JOIN LATERAL (
        SELECT job_class, {_WORK} AS samples FROM jobs
        WHERE job_class = wanted AND started_at IS NOT NULL AND state = 'SUCCEEDED'
        ORDER BY submitted_at DESC LIMIT {CLASS_JOBS}
    ) AS latest
    WHERE latest.samples > 0
    """  # noqa: S608
)
_ENDED_RUNS = text(
    f"""
    WITH latest AS (
        SELECT one.* FROM unnest(CAST(:classes AS text[])) AS wanted
        CROSS JOIN LATERAL (
            SELECT id, job_class, spec, submitted_at, progress, started_at, finished_at FROM jobs
            WHERE job_class = wanted AND started_at IS NOT NULL AND state = 'SUCCEEDED'
            ORDER BY submitted_at DESC LIMIT {CLASS_JOBS}
        ) AS one
        UNION
        SELECT * FROM (
            SELECT id, job_class, spec, submitted_at, progress, started_at, finished_at FROM jobs
            WHERE started_at IS NOT NULL AND state = 'SUCCEEDED'
            ORDER BY submitted_at DESC LIMIT {OTHER_JOBS}
        ) AS other
    )
    SELECT job_class, coalesce({_WORK}, 0) AS samples,
        greatest(0, extract(epoch FROM finished_at - started_at))::float AS run_s,
        CAST(progress #>> '{{loss_curve,converged_work}}' AS float) AS converged_samples,
        spec->>'run' AS run
    FROM latest ORDER BY submitted_at, id
    """  # noqa: S608
)
SERVED = text(
    """
    SELECT job_id, device_kind, sum(seconds) AS seconds, sum(slot_s) AS slot_s
    FROM (
        SELECT job_id, device_kind, seconds, size * seconds AS slot_s FROM (
            SELECT job_id, device_kind, size,
                   greatest(0, extract(epoch FROM coalesce(ended_at, :now) - greatest(granted_at, CAST(:since AS timestamptz),
                       max(ended_before) OVER (PARTITION BY job_id ORDER BY generation)))) AS seconds
            FROM (
                SELECT *, lag(coalesce(ended_at, :now)) OVER (PARTITION BY job_id ORDER BY generation) AS ended_before
                FROM allocations WHERE job_id = ANY(CAST(:jobs AS text[]))
            ) AS generations
        ) AS turns
        UNION ALL
        SELECT job_id, device_kind, seconds, slot_s FROM past_allocations
        WHERE job_id = ANY(CAST(:jobs AS text[])) AND CAST(:since AS timestamptz) IS NULL
    ) AS kept_and_past
    GROUP BY job_id, device_kind
    """
)
"""Seconds and slot-seconds of each job and device kind, after `since` or in total (NULL).

A generation counts from the end of the previous ones. Until then it is only being prepared, or is abandoned.
Allocations that were deleted count only in the total.
"""

_JOBS = Statement(f"SELECT {COLUMNS} FROM jobs WHERE NOT ({TERMINAL_SQL}) AND NOT waits")  # noqa: S608 - constants
_NODES = Statement(
    """
    SELECT id, name, state, slots::text, market, usd_per_slot_h, reclaim_at, container_engine IS NOT NULL,
        nullif(labels::text, '{}'), machine_id FROM nodes
    """
)
_HELD = Statement("SELECT node_id, slot, job_id FROM slot_grants WHERE released_at IS NULL")
_ENDED = text(
    f"""
    SELECT job_class, coalesce({_WORK}, 0) AS samples FROM jobs
    WHERE id = ANY(CAST(:jobs AS text[])) AND state = 'SUCCEEDED' ORDER BY id
    """  # noqa: S608
)
_ORDERS = text(
    """
    SELECT (SELECT count(*) FROM commands JOIN nodes ON nodes.id = commands.node_id
            WHERE commands.acknowledged_at IS NULL AND nodes.state <> 'LOST'),
           EXISTS (SELECT FROM api_processes WHERE late_at BETWEEN :since AND :until)
    """
)
_STATES = {state.value: state for state in NodeState}
_MARKETS = {market.value: market for market in Market}
LATE_S = 5.0
"""Distance in seconds from now within which a late report makes its API process count as late."""


async def take_snapshot(
    session: Session,
    now: datetime,
    usd_per_slot_h: Mapping[str, float],
    *,
    share_half_life_s: float,
    contention: ContentionRules,
) -> Snapshot:
    """Return one consistent snapshot of all live jobs, all nodes and all held slots.

    It must be the first statement of its transaction. Slot use that is `share_half_life_s` old counts half.
    """
    await session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    job_rows = await session.fetch(_JOBS)
    node_rows = await session.fetch(_NODES)
    held = {SlotKey(node, slot): job for node, slot, job in await session.fetch(_HELD)}
    confined: dict[str, dict[int, str]] = {}
    for one in await PostgresNodes(session).open_quarantines():
        confined.setdefault(one.node_id, {})[one.slot] = one.message
    job_ids = [row.id for row in job_rows]
    settings = await session.first(select(cluster_settings))
    policy = PolicySetting() if settings is None else PolicySetting(settings.policy, settings.parameters)
    policy_state = {} if settings is None else settings.policy_state
    caps, limits = await caps_and_limits(session, now)
    found = {row.id: row_to_job(row) for row in job_rows}
    nodes, hazard_per_h = await _nodes_with_risks(session, node_rows, confined, now)
    return Snapshot(
        now=now,
        jobs=found,
        nodes=nodes,
        held=held,
        measurements=_by_owner(await session.rows(_MEASUREMENTS, {"jobs": job_ids})),
        class_measurements=await measured_of_classes(session, sorted({row.job_class for row in job_rows})),
        ended_samples=await ended_samples_of(
            session,
            sorted({class_of(job.spec) for job in found.values() if job.spec.goal.deadline is not None}),
        ),
        loss_histories=await loss_histories_of(
            session, sorted({class_of(job.spec) for job in found.values() if job.adapts})
        ),
        ended_runs=await _ended_runs(session, found.values()),
        arrivals=tuple(row.submitted_at for row in await session.rows(_ARRIVALS)),
        restarts=tuple(MeasuredRestart(row.stop_s, row.start_s) for row in await session.rows(_RESTARTS)),
        served=await _served(session, job_ids, now),
        usd_per_slot_h=dict(usd_per_slot_h),
        hazard_per_h=hazard_per_h,
        projects=await tenants_of(session, now, share_half_life_s),
        caps=caps,
        limits=limits,
        market_limits=_market_limits(job_rows),
        spent=await spent_for(session, policy_state),
        ended=await _ended(session, policy_state),
        stragglers={mark.key: mark.sentence for mark in await PostgresNodes(session).stragglers(now)},
        orders=await _orders(session, now),
        apart=apart_of(await PostgresHostLinks(session).concerning_failures(), now),
        contention=contention,
        policy=policy,
        policy_state=policy_state,
    )


def _market_limits(job_rows: Sequence[FetchedRow]) -> dict[str, MarketLimit]:
    """Return the market limits by job."""
    limits = {row.id: row.market_limit for row in job_rows}
    return {job_id: record_of(MarketLimit, limit) for job_id, limit in limits.items() if limit is not None}


async def _ended(session: Session, carried: Mapping[str, Any]) -> tuple[EndedJob, ...]:
    """Return the jobs of unknown length in the previous round that have succeeded since."""
    ids = unsized_jobs(carried)
    if not ids:
        return ()
    found = await session.rows(_ENDED, {"jobs": ids})
    return tuple(EndedJob(job_class=row.job_class, samples=row.samples) for row in found)


async def _ended_runs(session: Session, jobs: Iterable[Job]) -> tuple[EndedRun, ...]:
    """Return the ended jobs that predict the work of the jobs of unknown length; without any, no query."""
    classes = {class_of(job.spec) for job in jobs if job.progress.work_total is None}
    rows = await session.rows(_ENDED_RUNS, {"classes": sorted(classes)}) if classes else []
    return tuple(
        EndedRun(row.job_class, row.samples, row.run_s, row.converged_samples, row.run) for row in rows
    )


async def _orders(session: Session, now: datetime) -> Orders:
    near = timedelta(seconds=LATE_S)
    row = (await session.execute(_ORDERS, {"since": now - near, "until": now + near})).one()
    return Orders(*row)


def _node(row: FetchedRow, confined: Mapping[int, str], slow_link: str) -> Node:
    """Return the node in a row of `_NODES`.

    `confined` are its slots in quarantine. Slots that its agent withholds are treated like those. `slow_link`
    says what was measured of a slow link.
    """
    node_id, name, state, slots, market, usd_per_slot_h, reclaim_at, containers, labels, _ = row
    kinds, withheld = _slots(slots)
    if confined or withheld:
        confined = {**withheld, **confined}
        kinds = {index: kind for index, kind in kinds.items() if index not in confined}
    return Node(
        id=node_id,
        name=name,
        state=_STATES[state],
        slots=kinds,
        market=_MARKETS[market],
        usd_per_slot_h=usd_per_slot_h,
        reclaim_at=reclaim_at,
        containers=containers,
        quarantined=confined,
        labels=placed_labels({} if labels is None else json.loads(labels), node_id, slow_link),
        slow_link=slow_link,
    )


async def _nodes_with_risks(
    session: Session,
    node_rows: Sequence[FetchedRow],
    confined: Mapping[str, Mapping[int, str]],
    now: datetime,
) -> tuple[dict[str, Node], Mapping[str, float]]:
    """Return the nodes by id, and the interruptions of spot machines per hour by the name of the pool."""
    slow = await PostgresHostLinks(session).slow()
    nodes = {row[0]: _node(row, confined.get(row[0], {}), slow.get(row[0], "")) for row in node_rows}
    on_spot = [node for node in nodes.values() if node.market is Market.SPOT]
    history = await history_of_kinds(session, {kind for node in on_spot for kind in node.slots.values()}, now)
    rented = {row[0]: history.by_machine.get(row[-1]) for row in node_rows if row[-1]}
    return nodes | {node: _with_risk(nodes[node], risk) for node, risk in rented.items()}, history.by_pool


def _with_risk(node: Node, risk: SpotRisk | None) -> Node:
    return node if risk is None else replace(node, hazard_per_h=risk.per_h, together=risk.together)


@lru_cache(maxsize=256)
def _slots(slots: str) -> tuple[Mapping[int, str], Mapping[int, str]]:
    """Return the device kind of each slot, and the reasons why slots are withheld.

    The result is cached by the stored text, because many of thousands of nodes have the same slots.
    """
    known = json.loads(slots)
    return (
        {slot["index"]: slot["device_kind"] for slot in known},
        {slot["index"]: slot["withheld"] for slot in known if slot.get("withheld")},
    )


async def measured_of_classes(session: Session, classes: Sequence[str]) -> dict[str, tuple[Measurement, ...]]:
    """Return the measurements of the latest jobs of each class, by class."""
    return _by_owner(await session.rows(_CLASS_MEASUREMENTS, {"classes": list(classes)}))


async def ended_samples_of(session: Session, classes: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Return the samples that the latest succeeded jobs of each class took, by class; without classes, no query."""
    found: dict[str, tuple[float, ...]] = {}
    rows = await session.rows(_ENDED_SAMPLES, {"classes": list(classes)}) if classes else []
    for row in rows:
        found[row.job_class] = (*found.get(row.job_class, ()), float(row.samples))
    return found


def _by_owner(rows: Sequence[Sequence[Any]]) -> dict[str, tuple[Measurement, ...]]:
    """Group rows of an owner, `_STATISTICS` and, for a class, the reference batch and the depth by their owner."""
    found: dict[str, list[Measurement]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(_measurement(row))
    return {owner: tuple(measured) for owner, measured in found.items()}


def _measurement(row: Sequence[Any]) -> Measurement:
    (
        _,
        device_kind,
        slots,
        nodes,
        global_batch,
        local_batch,
        accumulation,
        crossed,
        generation,
        total,
        step_s_sum,
        step_s_squares,
        sync_s_sum,
        gradient_sqr,
        gradient_var,
        noise_steps,
        log_noise_sum,
        *of_class,
    ) = row
    steps = int(total)
    step_s = step_s_sum / steps
    variance = step_s_squares / steps - step_s * step_s
    return Measurement(
        device_kind,
        slots,
        max(global_batch, 1) / step_s,  # a batch of 0 is unknown: each step then counts as one sample
        steps,
        nodes=nodes,
        generation=generation,
        global_batch=global_batch,
        local_batch=local_batch,
        accumulation=accumulation,
        step_s=step_s,
        step_s_spread=math.sqrt(max(variance, 0.0)),
        # Ranks that do not measure the synchronisation report 0, which is impossible with several ranks.
        sync_s=None if slots > 1 and sync_s_sum <= 0 else sync_s_sum / steps,
        gradient_sqr=gradient_sqr,
        gradient_var=gradient_var,
        noise_steps=int(noise_steps),
        log_noise_sum=log_noise_sum,
        reference_batch=of_class[0] if of_class else None,
        min_depth=of_class[1] if of_class else None,
        crossed=crossed,
    )


async def _served(session: Session, job_ids: Sequence[str], now: datetime) -> dict[str, Served]:
    rows = await session.rows(SERVED, {"jobs": list(job_ids), "now": now, "since": None})
    seconds: dict[str, dict[str, float]] = {}
    slot_s: dict[str, float] = {}
    for row in rows:
        seconds.setdefault(row.job_id, {})[row.device_kind] = float(row.seconds)
        slot_s[row.job_id] = slot_s.get(row.job_id, 0.0) + float(row.slot_s)
    return {job_id: Served(by_kind, slot_s[job_id]) for job_id, by_kind in seconds.items()}
