"""Market effects on a configuration: expected loss from spot interruptions, and the price discount."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np

from headway.contract.spec import Resize
from headway.contract.values.checkpoint_interval import checkpoint_interval_s
from headway.contract.values.markets import Market
from service.domain.allocation.configurations.capacity import PoolCapacity
from service.domain.allocation.configurations.configurations import Columns
from service.domain.cluster.pools import Pool
from service.domain.cluster.spot_rate import spot_share
from service.domain.jobs.job import Job
from service.domain.jobs.parallelism import mesh_text_at
from service.domain.shared.arrays import BoolArray, FloatArray

CHECKPOINT_S: Final = 1.0
"""Training time in seconds that a checkpoint takes. It is written in the background; only the copy in memory
blocks training.
"""
_THRIFT: Final = {"time": 0.0, "balanced": 0.25, "cost": 1.0}
"""Exponent of the price ratio between the markets, by the objective of a job's goal."""


def on_spot(columns: Columns) -> BoolArray:
    """Return the mask (C,) of the columns with a slot on spot."""
    spot = np.array([pool.market is Market.SPOT for pool in columns.pools], dtype=np.bool_)
    return np.asarray((columns.parts[:, spot] > 0).any(axis=1))


def anchored(columns: Columns) -> BoolArray:
    """Return the mask (C,) of the columns with slots both on spot and on-demand."""
    firm = np.array([pool.market is Market.ON_DEMAND for pool in columns.pools], dtype=np.bool_)
    return np.asarray(on_spot(columns) & (columns.parts[:, firm] > 0).any(axis=1))


def kept_share(
    jobs: Sequence[Job],
    columns: Columns,
    hazard_per_h: Mapping[str, float],
    *,
    restart_s: float,
    pause_s: Callable[[Job], float],
) -> FloatArray | None:
    """Return the fraction (J, C) of its speed that a job keeps despite interruptions; None without any
    hazard.

    A job that changes members in place and has an anchor continues without the lost ranks after a pause of
    `pause_s`; a sharded one only on a mesh where each part has a copy. Any other job falls back to its checkpoint
    and takes `restart_s` to start.
    """
    hazards = [max(0.0, hazard_per_h.get(pool.priced_as, 0.0)) for pool in columns.pools]
    if not any(hazards):
        return None
    losses_per_h = np.zeros(len(columns.parts))
    for pool, hazard in enumerate(hazards):
        losses_per_h += hazard * -(-columns.parts[:, pool] // columns.shapes[pool].node_slots)
    firm = anchored(columns)
    shares = np.ones((len(jobs), len(firm)))
    known: dict[tuple[object, ...], FloatArray] = {}
    for row, job in enumerate(jobs):
        in_place = _in_place(job, columns)
        key = (job.spec.checkpoint.every, pause_s(job) if in_place.any() else None, in_place.tobytes())
        if key not in known:
            every = _shares(losses_per_h, job, restart_s)
            stays = np.array(
                [
                    spot_share(losses_per_h=losses, checkpoint_s=0, interval_s=0, restart_s=pause_s(job))
                    for losses in losses_per_h.tolist()
                ]
            )
            known[key] = np.where(firm & in_place, stays, every)
        shares[row] = known[key]
    return shares


def _in_place(job: Job, columns: Columns) -> BoolArray:
    """Return the mask (C,) of the columns in which the job goes on in place after a loss."""
    sizes = columns.configurations.slots.tolist()
    if not (job.live or job.spec.elastic.resize is Resize.LIVE):
        return np.zeros(len(sizes), dtype=np.bool_)
    known = {size: job.has_copies_on(mesh_text_at(job, size)) for size in set(sizes)}
    return np.array([known[size] for size in sizes], dtype=np.bool_)


def _shares(losses_per_h: FloatArray, job: Job, restart_s: float) -> FloatArray:
    """Return the fractions (C,) for a job that falls back to its checkpoint."""
    every = job.spec.checkpoint.every
    shares = np.ones(len(losses_per_h))
    for losses in np.unique(losses_per_h[losses_per_h > 0]).tolist():
        interval_s = (
            CHECKPOINT_S + checkpoint_interval_s(losses_per_h=losses, cost_s=CHECKPOINT_S)
            if every == "auto"
            else float(every)
        )
        shares[losses_per_h == losses] = spot_share(
            losses_per_h=losses, checkpoint_s=CHECKPOINT_S, interval_s=interval_s, restart_s=restart_s
        )
    return shares


def thrift(
    jobs: Sequence[Job],
    columns: Columns,
    rooms: Mapping[str, PoolCapacity],
    *,
    settled: Collection[str] = (),
) -> FloatArray | None:
    """Return the factors (J, C), from 0 to 1, for the price of a configuration's market; 1 for the cheapest
    one.

    They apply only to a job that accepts both markets, if both have a price, by the objective of its goal.
    With `cost`, half the price counts as much as twice the speed; with `time` the price does not count; with
    `balanced` it counts a little. Prices do not count for `settled` jobs, whose markets another rule chooses.
    Return None if no job has that choice.
    """
    least = np.zeros(len(columns.pools))  # dollars per slot-hour in the cheaper market; 0 without a choice
    for index, pool in enumerate(columns.pools):
        both = [Pool(pool.kind, market).name for market in Market]
        if all(name in rooms and rooms[name].usd_per_slot_h > 0 for name in both):
            least[index] = min(rooms[name].usd_per_slot_h for name in both)
    usd_per_h, parts = columns.configurations.usd_per_h, columns.parts
    choice = ((parts == 0) | (least > 0)).all(axis=1) & (usd_per_h > 0)
    dearer = np.where(choice, np.minimum(parts @ least / np.where(choice, usd_per_h, 1.0), 1.0), 1.0)
    powers = np.array(
        [
            _THRIFT[job.spec.goal.objective] if job.spec.market == "mixed" and job.id not in settled else 0.0
            for job in jobs
        ]
    )
    if not powers.any() or (dearer == 1.0).all():
        return None
    return np.asarray(dearer[None, :] ** powers[:, None])


def saves(columns: Columns, current: int, factor: float) -> BoolArray:
    """Return the columns (C,) of the same size and device kind as the present one that are cheaper by
    `factor` elsewhere.
    """
    usd_per_h, slots = columns.configurations.usd_per_h, columns.configurations.slots
    by_kind = columns.by_kind
    alike = (by_kind.kind == by_kind.kind[current]) & (slots == slots[current])
    if by_kind.parts is not None:
        alike = (by_kind.parts == by_kind.parts[current]).all(axis=1)
    elsewhere = (columns.parts != columns.parts[current]).any(axis=1)
    return np.asarray(alike & elsewhere & (usd_per_h * factor <= usd_per_h[current]))
