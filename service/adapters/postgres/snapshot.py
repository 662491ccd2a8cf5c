"""The picture that a round decides on, in few queries."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.agents import NodeState
from headway.contract.markets import Market
from service.adapters.postgres.direct import Row, Statement, fetch
from service.adapters.postgres.hazards import hazards_of_pools
from service.adapters.postgres.jobs import COLUMNS, row_to_job
from service.adapters.postgres.money_snapshot import caps_and_limits, spent_for
from service.adapters.postgres.quarantines import PostgresQuarantines
from service.adapters.postgres.tables import TERMINAL_SQL, cluster_settings
from service.adapters.postgres.tenants import tenants_of
from service.domain.cluster import Measurement, Node, Orders, PolicySetting, Served, SlotKey, Snapshot

ENOUGH_STEPS = 10
"""Fewer steps than this say little of a size's speed: the first ones are slow."""
CLASS_JOBS = 20
"""So many jobs of a class, the latest that have started, say what its next one may be like."""

_PLAN = "device_kind, slots, nodes, global_batch, local_batch, accumulation"
_STATISTICS = f"""
    {_PLAN}, max(generation), sum(steps), sum(step_s_sum), sum(step_s_squares), sum(sync_s_sum),
    (array_agg(gradient_sqr ORDER BY updated_at DESC) FILTER (WHERE gradient_sqr IS NOT NULL))[1],
    (array_agg(gradient_var ORDER BY updated_at DESC) FILTER (WHERE gradient_var IS NOT NULL))[1]
"""
"""Statistics add up: one row for all that was measured of one configuration and batch plan, however often a job had it.
Of noise, which changes as training goes on, the last estimate counts.
"""
_MEASUREMENTS = text(
    f"""
    SELECT job_id, {_STATISTICS} FROM measurements
    WHERE job_id = ANY(CAST(:jobs AS text[])) AND steps >= {ENOUGH_STEPS}
    GROUP BY job_id, {_PLAN} ORDER BY job_id, max(generation), {_PLAN}
    """  # noqa: S608 - words and numbers of our own
)
_CLASS_MEASUREMENTS = text(
    f"""
    SELECT latest.job_class, {_STATISTICS}
    FROM unnest(CAST(:classes AS text[])) AS wanted
    CROSS JOIN LATERAL (
        SELECT id, job_class FROM jobs
        WHERE job_class = wanted AND started_at IS NOT NULL
        ORDER BY submitted_at DESC LIMIT {CLASS_JOBS}
    ) AS latest
    JOIN measurements ON measurements.job_id = latest.id AND steps >= {ENOUGH_STEPS}
    GROUP BY latest.job_class, {_PLAN} ORDER BY latest.job_class, max(updated_at), {_PLAN}
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
"""Seconds and slot-seconds of each job and kind, after `since` or in all (NULL). A generation's turn begins when those before
it have ended: it is prepared while they train, or given up. What is not kept any more counts in all of them together.
"""

_JOBS = Statement(f"SELECT {COLUMNS} FROM jobs WHERE NOT ({TERMINAL_SQL})")  # noqa: S608 - names of our own
_NODES = Statement(
    """
    SELECT id, name, state, slots::text, market, usd_per_slot_h, reclaim_at, container_engine IS NOT NULL FROM nodes
    """
)
_HELD = Statement("SELECT node_id, slot, job_id FROM slot_grants WHERE released_at IS NULL")
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
"""An API that was late with a report is taken to be so for as long."""


async def take_snapshot(
    connection: AsyncConnection,
    now: datetime,
    usd_per_slot_h: Mapping[str, float],
    *,
    share_half_life_s: float,
) -> Snapshot:
    """One consistent picture of every job that is not terminal, every node and every held slot. It must be the first
    thing that its transaction does. Use of slots that lies `share_half_life_s` back counts half.
    """
    await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    job_rows = await fetch(connection, _JOBS)
    node_rows = await fetch(connection, _NODES)
    held = {SlotKey(node, slot): job for node, slot, job in await fetch(connection, _HELD)}
    confined: dict[str, dict[int, str]] = {}
    for one in await PostgresQuarantines(connection).open():
        confined.setdefault(one.node_id, {})[one.slot] = one.message
    job_ids = [row.id for row in job_rows]
    settings = (await connection.execute(select(cluster_settings))).first()
    policy = PolicySetting() if settings is None else PolicySetting(settings.policy, settings.parameters)
    policy_state = {} if settings is None else settings.policy_state
    caps, limits = await caps_and_limits(connection, now)
    nodes = {row[0]: _node(row, confined.get(row[0], {})) for row in node_rows}
    return Snapshot(
        now=now,
        jobs={row.id: row_to_job(row) for row in job_rows},
        nodes=nodes,
        held=held,
        measurements=await _measurements(connection, job_ids),
        class_measurements=await measured_of_classes(connection, sorted({row.job_class for row in job_rows})),
        served=await _served(connection, job_ids, now),
        usd_per_slot_h=dict(usd_per_slot_h),
        hazard_per_h=await hazards_of_pools(
            connection,
            {kind for node in nodes.values() if node.market is Market.SPOT for kind in node.slots.values()},
            now,
        ),
        projects=await tenants_of(connection, now, share_half_life_s),
        caps=caps,
        limits=limits,
        spent=await spent_for(connection, policy, policy_state, now),
        orders=await _orders(connection, now),
        policy=policy,
        policy_state=policy_state,
    )


async def _orders(connection: AsyncConnection, now: datetime) -> Orders:
    near = timedelta(seconds=LATE_S)
    row = (await connection.execute(_ORDERS, {"since": now - near, "until": now + near})).one()
    return Orders(*row)


def _node(row: Row, confined: Mapping[int, str]) -> Node:
    """A row of `_NODES`; `confined` are its slots in quarantine."""
    node_id, name, state, slots, market, usd_per_slot_h, reclaim_at, containers = row
    kinds = _kinds(slots)
    if confined:
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
    )


@lru_cache(maxsize=256)
def _kinds(slots: str) -> Mapping[int, str]:
    """Device kinds by slot, as a node's row has them: of thousands of nodes many have the same."""
    return {slot["index"]: slot["device_kind"] for slot in json.loads(slots)}


async def _measurements(
    connection: AsyncConnection, job_ids: Sequence[str]
) -> dict[str, tuple[Measurement, ...]]:
    return _by_owner((await connection.execute(_MEASUREMENTS, {"jobs": list(job_ids)})).all())


async def measured_of_classes(
    connection: AsyncConnection, classes: Sequence[str]
) -> dict[str, tuple[Measurement, ...]]:
    """What the latest jobs of each class have measured, by class."""
    return _by_owner((await connection.execute(_CLASS_MEASUREMENTS, {"classes": list(classes)})).all())


def _by_owner(rows: Sequence[Sequence[Any]]) -> dict[str, tuple[Measurement, ...]]:
    """Rows of an owner and `_STATISTICS`."""
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
        generation,
        total,
        step_s_sum,
        step_s_squares,
        sync_s_sum,
        gradient_sqr,
        gradient_var,
    ) = row
    steps = int(total)
    step_s = step_s_sum / steps
    variance = step_s_squares / steps - step_s * step_s
    return Measurement(
        device_kind,
        slots,
        global_batch / step_s,
        steps,
        nodes=nodes,
        generation=generation,
        global_batch=global_batch,
        local_batch=local_batch,
        accumulation=accumulation,
        step_s=step_s,
        step_s_spread=math.sqrt(max(variance, 0.0)),
        # Ranks that do not measure it say 0, which cannot be true of several.
        sync_s=None if slots > 1 and sync_s_sum <= 0 else sync_s_sum / steps,
        gradient_sqr=gradient_sqr,
        gradient_var=gradient_var,
    )


async def _served(connection: AsyncConnection, job_ids: Sequence[str], now: datetime) -> dict[str, Served]:
    rows = await connection.execute(SERVED, {"jobs": list(job_ids), "now": now, "since": None})
    seconds: dict[str, dict[str, float]] = {}
    slot_s: dict[str, float] = {}
    for row in rows.all():
        seconds.setdefault(row.job_id, {})[row.device_kind] = float(row.seconds)
        slot_s[row.job_id] = slot_s.get(row.job_id, 0.0) + float(row.slot_s)
    return {job_id: Served(by_kind, slot_s[job_id]) for job_id, by_kind in seconds.items()}
