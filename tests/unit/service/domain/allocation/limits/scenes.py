"""Pools, columns and prospects for the tests of limits, without a whole round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headway.contract.values.markets import Market
from service.domain.allocation.configurations.capacity import PoolCapacity
from service.domain.allocation.configurations.configurations import Columns, columns_of
from service.domain.allocation.limits.spending import Prospects
from service.domain.cluster.pools import Pool
from service.domain.jobs.job import Job
from service.domain.shared.arrays import BoolArray, IntArray
from tests.unit.service.builders import job_of, spec_of

FIRM, SPOT = Pool("a100"), Pool("a100", Market.SPOT)
OTHER = Pool("h100")


def pool_of(pool: Pool, *nodes: int, usd: float = 0.0, room: Sequence[int] | None = None) -> PoolCapacity:
    """A pool with nodes of these sizes, all of whose slots a round may grant unless `room` says otherwise."""
    return PoolCapacity(
        pool=pool,
        nodes=tuple(f"{pool.name}-{index}" for index in range(len(nodes))),
        slots=np.array(nodes, dtype=np.int64),
        room=np.array(nodes if room is None else room, dtype=np.int64),
        usd_per_slot_h=usd,
    )


def rooms_of(*pools: PoolCapacity) -> dict[str, PoolCapacity]:
    return {one.pool.name: one for one in sorted(pools, key=lambda one: one.pool)}


def job(job_id: str = "j", most: int = 4, **fields: Any) -> Job:
    """A job of 1 to `most` slots that accepts both markets and restarts to change; `spec` has fields of its spec."""
    spec = {
        "market": "mixed",
        "elastic": {"min": 1, "max": most, "resize": "restart"},
        **fields.pop("spec", {}),
    }
    return job_of(job_id, spec=spec_of(job_id, **spec), **fields)


def columns_in(rooms: dict[str, PoolCapacity], *jobs: Job) -> Columns:
    return columns_of(jobs, {}, rooms)


def column_of(columns: Columns, **parts: int) -> int:
    """The column with these slots: `firm`, `spot` and `other` by pool."""
    pools = {FIRM: parts.get("firm", 0), SPOT: parts.get("spot", 0), OTHER: parts.get("other", 0)}
    wanted = {pool: count for pool, count in pools.items() if count}
    (column,) = [at for at in range(len(columns.parts)) if columns.parts_of(at) == wanted]
    return column


def marked(columns: Columns, mask: BoolArray) -> set[tuple[int, int]]:
    """The columns of a mask as slots on-demand and on spot."""
    found = [columns.parts_of(at) for at in np.flatnonzero(mask).tolist()]
    return {(parts.get(FIRM, 0), parts.get(SPOT, 0)) for parts in found}


def all_open(jobs: Sequence[Job], columns: Columns) -> BoolArray:
    return np.ones((len(jobs), len(columns.parts)), dtype=np.bool_)


def waiting(jobs: Sequence[Job]) -> IntArray:
    return np.full(len(jobs), -1, dtype=np.int64)


def prospects(
    columns: Columns,
    *,
    remaining: float = 3.6e6,
    start_s: float = 0.0,
    jobs: int = 1,
    per_slot: float = 100.0,
) -> Prospects:
    """Every slot trains `per_slot` samples a second; the percentiles are half and twice of that."""
    goodput = np.tile(per_slot * columns.configurations.slots, (jobs, 1)).astype(float)
    return Prospects(
        goodput=goodput,
        low=goodput / 2,
        high=goodput * 2,
        remaining=np.full(jobs, remaining),
        start_s=np.full(jobs, start_s),
    )
