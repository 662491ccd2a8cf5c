"""Layout of the cluster: a job's slots lie together if that is worth the moves of other jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from statistics import median

from headway.contract.agents import NodeState
from headway.contract.values.topology import SLOW_LINK, level_number, path_of
from service.domain.allocation.configurations.eligibility import backs_off
from service.domain.allocation.inputs.round import Round
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.placement.apart import keep_apart
from service.domain.allocation.placement.placed_speed import level_of, placed_share, placed_step_s
from service.domain.allocation.placement.placement import (
    Placement,
    PlacementRequest,
    PlacementStep,
    PoolSlots,
    could_stay,
    place_all,
)
from service.domain.cluster.snapshot import LEAST_STEPS, Measurement, SlotKey, allocation_of
from service.domain.contention.costs import change_s
from service.domain.contention.promises import slots_to_start_on
from service.domain.jobs.job import Job, class_of

HORIZON_S = 600.0
"""Time in seconds over which the speed of a placement is compared with the cost of the moves that it needs."""
_SLOW_LINK = level_number(SLOW_LINK)
_PROOF_SHARE = 0.9
"""Share of a job's speed without a slow link below which its speed with it proves a loss, beyond chance."""
_CIRCLE = 2.0
"""Cost factor of a move for a job that must release its slots before its next ones are free."""


def places_of(round_: Round, chosen: Sequence[int]) -> Mapping[str, Placement]:
    """Return a placement for every job that gets a column (J,), by job id.

    With the shapes, jobs can lie together if others move. If the moves cost more training than they gain,
    starting and changing jobs take the free slots instead, and no other job moves.
    """
    promised = _promised(round_, chosen)
    wants = _wants(round_, chosen, promised)
    return keep_apart(round_, wants, _together_or_scattered(round_, chosen, wants, promised))


def _together_or_scattered(
    round_: Round,
    chosen: Sequence[int],
    wants: Sequence[PlacementRequest],
    promised: Mapping[str, Sequence[SlotKey]],
) -> dict[str, Placement]:
    pools = _pools(round_, {key for keys in promised.values() for key in keys})
    together = place_all(wants, pools)
    moves_s = _moves_slot_s(round_, wants, together)
    if moves_s <= 0.0:
        return _gathered(round_, chosen, wants, pools, together)
    scattered = place_all([replace(want, unit=1) for want in wants], pools)
    loss_s = _moves_slot_s(round_, wants, scattered) + _slower_slot_s(round_, chosen, together, scattered)
    return scattered if loss_s < moves_s else together


def _gathered(
    round_: Round,
    chosen: Sequence[int],
    wants: Sequence[PlacementRequest],
    pools: Mapping[str, PoolSlots],
    placements: dict[str, Placement],
) -> dict[str, Placement]:
    """Return the placements, in which one running job may move to slots that cross fewer topology levels.

    It is the job that gains most, if its gain exceeds the cost of its move and free slots suffice.
    """
    if not any(pool.paths for pool in pools.values()):
        return placements  # no node has labels
    gains: dict[str, float] = {}
    for row, (job, column) in enumerate(zip(round_.jobs, chosen, strict=True)):
        placement = placements.get(job.id)
        if column == NOTHING or placement is None or placement.step is not PlacementStep.STAY:
            continue
        lost = 1 - placed_share(round_, row, column, placement.allocation)
        if level_of(round_, placement.allocation) == _SLOW_LINK and not _proven_slow(round_, job):
            continue
        if round_.estimates.known[row] and HORIZON_S * lost > _CIRCLE * change_s(job, round_.scope.usual):
            gains[job.id] = lost * int(round_.columns.configurations.slots[column])
    if not gains:
        return placements
    mover = max(gains, key=gains.__getitem__)
    moved = place_all([replace(want, gathers=want.job_id == mover) for want in wants], pools)
    before, after = (level_of(round_, one[mover].allocation) for one in (placements, moved))
    others_stay = all(moved[job].step is one.step for job, one in placements.items() if job != mover)
    fits = moved[mover].step is PlacementStep.GO and moved[mover].allocation
    return moved if fits and after < before and others_stay else placements


def _proven_slow(round_: Round, job: Job) -> bool:
    """Return True if a job's steps behind a slow link took longer than its own without, or else than the median of its class.

    Both were measured on several nodes with the same slots and batch.
    """
    snapshot = round_.snapshot
    own = _counted(snapshot.measurements.get(job.id, ()))
    behind = [one for one in own if one.crossed == SLOW_LINK]
    for measured in (own, _counted(snapshot.class_measurements.get(class_of(job.spec), ()))):
        pairs = [
            (one, [other.samples_per_s for other in measured if _comparable(one, other)]) for one in behind
        ]
        shares = [one.samples_per_s / median(speeds) for one, speeds in pairs if speeds]
        if shares:
            return min(shares) < _PROOF_SHARE
    return False


def _counted(measurements: Sequence[Measurement]) -> list[Measurement]:
    return [one for one in measurements if one.believable and one.steps >= LEAST_STEPS and one.nodes > 1]


def _comparable(behind: Measurement, other: Measurement) -> bool:
    """Return True if another measurement, of the same slots and batch, was made without a slow link."""
    return other.crossed != SLOW_LINK and _size_of(other) == _size_of(behind)


def _size_of(one: Measurement) -> tuple[str, int, int]:
    return one.device_kind, one.slots, one.global_batch


def _moves_slot_s(
    round_: Round, wants: Sequence[PlacementRequest], placements: Mapping[str, Placement]
) -> float:
    """Return the slot-seconds of training lost by jobs that keep kind and size but have to move."""
    jobs = round_.snapshot.jobs
    changes = {want.job_id for want in wants if not could_stay(want)}
    lost_s = 0.0
    for want in wants:
        placement = placements.get(want.job_id)
        if placement is not None and want.job_id not in changes and placement.step is not PlacementStep.STAY:
            factor = _CIRCLE if placement.step is PlacementStep.YIELD else 1.0
            lost_s += factor * want.slots * change_s(jobs[want.job_id], round_.scope.usual)
    return lost_s


def _slower_slot_s(
    round_: Round,
    chosen: Sequence[int],
    together: Mapping[str, Placement],
    scattered: Mapping[str, Placement],
) -> float:
    """Return the slot-seconds of training lost by jobs on more nodes or topology levels than necessary."""
    lost_s = 0.0
    for row, column in enumerate(chosen):
        job_id = round_.jobs[row].id
        if column == NOTHING or job_id not in scattered:
            continue
        few, many = (
            (len(one.allocation), level_of(round_, one.allocation))
            for one in (together[job_id], scattered[job_id])
        )
        if few[0] < many[0] or few[1] < many[1]:
            fast, slow = (
                placed_step_s(round_, row, column, nodes=nodes, level=level) for nodes, level in (few, many)
            )
            slots = int(round_.columns.configurations.slots[column])
            lost_s += HORIZON_S * slots * max(0.0, 1 - fast / slow)
    return lost_s


def _promised(round_: Round, chosen: Sequence[int]) -> dict[str, tuple[SlotKey, ...]]:
    """Return the slots that were released for waiting jobs which get slots now, by job id."""
    return {
        job.id: keys
        for job, column in zip(round_.jobs, chosen, strict=True)
        if column != NOTHING and not round_.scope.holdings[job.id].size
        if (keys := slots_to_start_on(job, round_.snapshot))
    }


def _wants(
    round_: Round, chosen: Sequence[int], promised: Mapping[str, Sequence[SlotKey]]
) -> list[PlacementRequest]:
    """Return the placement requests: each job's chosen slots and those that it holds or that are promised to it, by pool."""
    columns, nodes = round_.columns, round_.snapshot.nodes
    wants = []
    for row, (job, column) in enumerate(zip(round_.jobs, chosen, strict=True)):
        holding = round_.scope.holdings[job.id]
        if holding.whole and column == round_.given.current[row] and backs_off(job, round_.snapshot):
            continue  # it cannot be moved: no other job gets the slots that it holds
        for index, pool in enumerate(round_.scope.capacities):
            slots = 0 if column == NOTHING else int(columns.parts[column, index])
            held = holding.by_pool.get(pool, ()) or _of_pool(round_, pool, promised.get(job.id, ()))
            if slots or held:
                cordoned = {key for key in held if nodes[key.node_id].state is NodeState.CORDONED}
                wants.append(
                    PlacementRequest(
                        job_id=job.id,
                        kind=pool,
                        slots=slots,
                        unit=columns.unit_of(column, index) if slots and not round_.exempt[row] else 1,
                        held_kind=pool if held else "",
                        held=allocation_of(key for key in held if key not in cordoned),
                        private=allocation_of(cordoned),
                    )
                )
    return wants


def _of_pool(round_: Round, name: str, keys: Sequence[SlotKey]) -> tuple[SlotKey, ...]:
    return tuple(
        key for key in keys if (pool := round_.snapshot.pool_of(key)) is not None and pool.name == name
    )


def _pools(round_: Round, promised: Set[SlotKey]) -> dict[str, PoolSlots]:
    """Return the free slots of each pool that are not promised to a job which gets slots now."""
    free: dict[str, list[SlotKey]] = {pool: [] for pool in round_.scope.capacities}
    for key in round_.snapshot.free:
        pool = round_.snapshot.pool_of(key)
        if pool is not None and key not in promised:
            free[pool.name].append(key)
    nodes = round_.snapshot.nodes.values()
    labelled = any(node.labels for node in nodes)
    paths = {node.id: path_of(node.labels) for node in nodes} if labelled else {}
    slow = frozenset(node.id for node in nodes if node.slow_link)
    return {
        pool: PoolSlots(free=allocation_of(keys), node_slots=shapes.node_slots, paths=paths, slow=slow)
        for (pool, keys), shapes in zip(free.items(), round_.columns.shapes, strict=True)
    }
