"""Conversion of a snapshot of the live cluster into a world that can be replayed from there.

The beliefs of the service are the truth of this world: its learned speeds, and the remaining work as
announced by scripts or estimated from ended jobs of the same class. Both are uncertain. `sampled` replaces them
with other values from their distributions.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headway.contract.agents import NodeState
from headway.contract.values.listing import some_of
from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.settled import settled_job
from service.domain.allocation.inputs.notes import Note
from service.domain.allocation.inputs.recurring import ended_by_class
from service.domain.allocation.inputs.round import Round, build_round
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.limits.spending import worth_of_a_sample
from service.domain.cluster.snapshot import Node, Served, SlotKey, Snapshot
from service.domain.contention.costs import LIVE_CHANGE_S, RESTART_S, restart_s
from service.domain.jobs.job import Allocation, Job, class_of
from service.domain.perf.forecast import Z90, Remaining, WorkSource, learn_totals, remaining_samples
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray
from service.simulation.changes import ChangedSnapshot
from service.simulation.columns import fitting, places_of
from service.simulation.model.clusters import configurations_of
from service.simulation.model.world import Application, Arrival, ClusterRules, Kind, PriorService, View, World

_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 60.0, 3600.0
_ROUNDS = 100
"""Number of periodic rounds within the shortest time that the longest job can take.

Rounds after events come in addition. The live system holds rounds more often, but decides the same when
nothing has happened.
"""
_NAMED = 5
"""Largest number of jobs named in a warning."""
_NONE = np.zeros(0, dtype=np.int64)
_LONG = 2.0
"""Work of a job without a known end, as a multiple of the work it could do within the horizon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BelievedWorld:
    """World of J jobs as the service believes it to be, with its uncertainty.

    Attributes:
        world: World with the median values.
        names: Names of the jobs for users (J,).
        endless: True for jobs whose length or speed is unknown (J,). They run beyond the horizon.
        work_spread, speed_spread: Standard deviations of the logarithms of work and speed (J,).
        warnings: Reservations about the outcome, for users.
    """

    world: World
    names: tuple[str, ...]
    endless: BoolArray
    work_spread: FloatArray
    speed_spread: FloatArray
    warnings: tuple[str, ...]


def believed_world(
    changed: ChangedSnapshot, ended_samples: Mapping[str, Sequence[float]], *, horizon_s: float
) -> BelievedWorld:
    """Return the world that continues from a snapshot until `horizon_s` from now.

    `ended_samples` are the samples that ended jobs took, by class. The function raises no error.
    """
    settled_snapshot, left_out = settled(changed.snapshot)
    round_ = build_round(settled_snapshot)
    table, left = _table(round_), _remaining(round_, changed.samples, ended_samples)
    work, endless = _work(round_, table, left, horizon_s)
    runs = table.goodput.max(axis=1, initial=0.0) > 0
    submit_s = np.array([changed.after_s.get(job.id, -_age_s(job, settled_snapshot)) for job in round_.jobs])
    keep = np.flatnonzero(runs)[np.argsort(np.maximum(submit_s[runs], 0.0), kind="stable")]
    world = World(
        kinds=table.kinds,
        configurations=table.configurations,
        applications=tuple(_application(round_, row, table, work[row]) for row in keep.tolist()),
        arrivals=tuple(
            Arrival(
                id=round_.jobs[row].id,
                submit_s=float(submit_s[row]),
                application=index,
                requested_slots=int(round_.given.requested_slots[row]),
                holds=int(table.holds[row]),
                declares_length=int(left.source[row]) == WorkSource.SCRIPT,
                weight=float(round_.given.weight[row]),
                deadline_s=round_.jobs[row].deadline_left_s(settled_snapshot.now),
                promised=round_.jobs[row].spec.goal.admit == "reject",
                before=None if submit_s[row] > 0 else _before(round_, row, table.kinds),
            )
            for index, row in enumerate(keep.tolist())
        ),
        rejected=_rejected(round_, runs),
        rules=ClusterRules(
            interval_s=_interval_s(work[keep], table.goodput[keep], horizon_s),
            on_events=True,
            live_pause_s=_live_pause_s([round_.jobs[row] for row in keep.tolist()]),
            view=View.ORACLE,
            give_up_s=horizon_s - float(submit_s[keep].max(initial=-np.inf) if len(keep) else 0.0),
        ),
        policy_state=settled_snapshot.policy_state,
        ended=ended_by_class(round_.snapshot.ended_runs, round_.given.finished),
    )
    return BelievedWorld(
        world=world,
        names=tuple(round_.jobs[row].name for row in keep.tolist()),
        endless=endless[keep],
        work_spread=np.where(endless, 0.0, left.spread)[keep],
        speed_spread=table.speed_spread[keep],
        warnings=(*left_out, *_warnings(round_, keep.tolist(), left, endless, world.rejected)),
    )


def sampled(believed: BelievedWorld, seed: int) -> World:
    """Return the world with other values of uncertain quantities, sampled from their distributions. Seed 0
    keeps the medians.

    A job's values depend only on its id and the seed, so that worlds with different changes can be compared.
    """
    world = believed.world
    if seed == 0:
        return world
    applications = []
    for index, (arrival, application) in enumerate(zip(world.arrivals, world.applications, strict=True)):
        digest = hashlib.blake2b(f"{seed} {arrival.id}".encode(), digest_size=8).digest()
        of_work, of_speed = np.random.default_rng(int.from_bytes(digest)).standard_normal(2)
        # Beyond three standard deviations, an estimate has no meaning.
        more = math.exp(believed.work_spread[index] * float(np.clip(of_work, -3, 3)))
        faster = math.exp(believed.speed_spread[index] * float(np.clip(of_speed, -3, 3)))
        applications.append(
            replace(
                application, boundaries=application.boundaries * more, goodput=application.goodput * faster
            )
        )
    return replace(world, applications=tuple(applications), seed=seed)


def settled(snapshot: Snapshot) -> tuple[Snapshot, tuple[str, ...]]:
    """Return the snapshot after all transitions in progress, and sentences about the jobs left out.

    Afterwards, each job runs or waits, and each node is present or absent.
    """
    nodes = _settled_nodes(snapshot)
    jobs: dict[str, Job] = {}
    held: dict[SlotKey, str] = {}
    left_out = []
    for job in sorted(snapshot.jobs.values(), key=lambda job: (job.submitted_at, job.id)):
        if job.state is JobState.CANCELLING:
            continue
        if job.state is JobState.PAUSED or job.pause_requested:
            left_out.append(f"{job.name} is paused and is not simulated")
            continue
        keys = _keeps(job, snapshot, nodes)
        held |= dict.fromkeys(keys, job.id)
        jobs[job.id] = replace(settled_job(job, keys), grow_after=None)
    nodes = {
        node.id: replace(
            node,
            state=NodeState.READY,
            slots={slot: kind for slot, kind in node.slots.items() if SlotKey(node.id, slot) in held}
            if node.state is NodeState.CORDONED
            else node.slots,
        )
        for node in nodes.values()
    }
    return replace(snapshot, nodes=nodes, jobs=jobs, held=held), tuple(left_out)


def _settled_nodes(snapshot: Snapshot) -> dict[str, Node]:
    """Return the nodes that stay. A cordoned node stays for the jobs that hold it; a node being reclaimed
    counts as absent.
    """
    return {node.id: node for node in snapshot.nodes.values() if node.keeps_jobs}


def _keeps(job: Job, snapshot: Snapshot, nodes: Mapping[str, Node]) -> tuple[SlotKey, ...]:
    """Return the slots that a job continues with: the slots it trains or is about to start on, none if one is gone."""
    wanted: Allocation = job.target if job.target is not None else job.allocation
    keys = tuple(SlotKey(node, slot) for node, slots in sorted(wanted.items()) for slot in slots)
    kinds = {nodes[key.node_id].slots.get(key.slot, "") if key.node_id in nodes else "" for key in keys}
    whole = all(snapshot.held.get(key) == job.id for key in keys)
    together = len(kinds) == 1 or kinds <= set(job.spec.elastic.mix)
    return keys if whole and together and "" not in kinds else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """True performance of jobs (J,) on the columns (C,) of a world.

    Attributes:
        goodput: Reference samples per second (J, C), 0 where a job may never run.
        holds: Column that each job holds (J,), -1 for none.
        worth: Reference samples per unit of a job's work (J,), in the batch that it has or would have.
        speed_spread: Standard deviation of the logarithm of the job's speed there (J,).
    """

    kinds: tuple[Kind, ...]
    configurations: Configurations
    goodput: FloatArray
    holds: IntArray
    worth: FloatArray
    speed_spread: FloatArray


def _table(round_: Round) -> _Table:
    """Return the table of a round in the columns of a world.

    A world has columns for the sizes that divide its nodes. Other sizes count as the next larger one.
    """
    kinds = tuple(
        Kind(
            name=name,
            node_slots=tuple(slots for slots in room.slots.tolist() if slots),
            usd_per_slot_h=room.usd_per_slot_h,
        )
        for name, room in round_.scope.capacities.items()
        if room.slots.any()
    )
    jobs, current = len(round_.jobs), round_.given.current
    if not round_.estimates.table.goodput.size:
        nothing = np.zeros((jobs, 0))
        empty = Configurations(kinds=(), kind=_NONE, slots=_NONE, nodes=_NONE, usd_per_h=np.zeros(0))
        holds = np.full(jobs, NOTHING, dtype=np.int64)
        ones = np.ones(jobs)
        return _Table(
            kinds=kinds,
            configurations=empty,
            goodput=nothing,
            holds=holds,
            worth=ones,
            speed_spread=0.0 * ones,
        )
    possible = ~np.isin(round_.notes.codes, (Note.NOT_ALLOWED, Note.NO_MEMORY))
    running = np.flatnonzero(current >= 0)
    possible[running, current[running]] = True
    known = np.where(possible, round_.estimates.table.goodput, 0.0)
    column = np.where(current >= 0, current, known.argmax(axis=1))
    at = np.arange(jobs), column
    low, high = (getattr(round_.estimates.table, name)[at] for name in ("low", "high"))
    sure = (low > 0) & (high >= low)
    configurations = configurations_of(kinds, mix=any(job.spec.elastic.mix for job in round_.jobs))
    place = places_of(round_.columns, configurations)
    goodput = np.zeros((jobs, len(configurations.slots)))
    for index in np.flatnonzero(place != NOTHING):
        goodput[:, place[index]] = np.maximum(goodput[:, place[index]], known[:, index])
    return _Table(
        kinds=kinds,
        configurations=configurations,
        goodput=goodput,
        holds=fitting(np.where(current >= 0, place[current], NOTHING), goodput, configurations, kinds),
        worth=worth_of_a_sample(round_.jobs, current, replace(round_.estimates.table, goodput=known)),
        speed_spread=np.where(sure, np.log(np.where(sure, high, 1.0) / np.where(sure, low, 1.0)), 0.0)
        / (2 * Z90),
    )


def _remaining(
    round_: Round, samples: Mapping[str, int], ended_samples: Mapping[str, Sequence[float]]
) -> Remaining:
    """Return the remaining work of each job (J,), in samples."""
    classes = sorted({class_of(job.spec) for job in round_.jobs})
    announced = [samples.get(job.id, job.progress.work_end) for job in round_.jobs]
    # Totals announced by running jobs count like the totals of ended ones.
    ended = [(index, one) for index, name in enumerate(classes) for one in ended_samples.get(name, ())] + [
        (classes.index(class_of(job.spec)), total)
        for job, total in zip(round_.jobs, announced, strict=True)
        if total is not None
    ]
    of_class, took = np.array(ended, dtype=np.float64).reshape(len(ended), 2).T
    totals = learn_totals(of_class.astype(np.int64), took, len(classes))
    return remaining_samples(
        np.array([job.progress.work_done for job in round_.jobs], dtype=np.float64),
        np.array([math.nan if total is None else float(total) for total in announced], dtype=np.float64),
        np.array([classes.index(class_of(job.spec)) for job in round_.jobs], dtype=np.int64),
        totals,
    )


def _work(round_: Round, table: _Table, left: Remaining, horizon_s: float) -> tuple[FloatArray, BoolArray]:
    """Return the remaining reference samples (J,), and a mask of the jobs for which they are unknown."""
    known_speed = round_.estimates.known
    endless = ~(np.isfinite(left.samples) & known_speed)
    work = np.maximum(np.where(endless, 1.0, left.samples), 1.0) * table.worth
    fastest = table.goodput.max(axis=1, initial=0.0)
    return np.where(endless, np.maximum(_LONG * horizon_s * fastest, 1.0), work), endless


def _application(round_: Round, row: int, table: _Table, work: float) -> Application:
    """Return a job as an application with this much work left. Its loss curve stays as it is now."""
    converged = math.nan if round_.given.converged is None else float(round_.given.converged[row])
    return Application(
        name=class_of(round_.jobs[row].spec),
        boundaries=np.array([0.0, work]),
        goodput=table.goodput[None, row],
        restart_s=restart_s(round_.jobs[row], round_.scope.usual),
        converged=np.full(2, converged) if converged > 0 else None,
    )


def _before(round_: Round, row: int, kinds: Sequence[Kind]) -> PriorService:
    """Return the service a job received so far. Without it, a job that ran for hours would look like one that starved."""
    served = round_.snapshot.served.get(round_.jobs[row].id, Served())
    return PriorService(
        served_s=tuple(served.seconds.get(kind.name, 0.0) for kind in kinds),
        served_slot_s=served.slot_s,
        changes=int(round_.given.changes[row]),
        waited_s=float(round_.given.waited_s[row]),
        done=0.0 if round_.given.done is None else float(round_.given.done[row]),
    )


def _age_s(job: Job, snapshot: Snapshot) -> float:
    return max(0.0, (snapshot.now - job.submitted_at).total_seconds())


def _live_pause_s(jobs: Sequence[Job]) -> float | None:
    """Return the pause of a change in place if most jobs change in place, or None if changes are restarts."""
    live = [job for job in jobs if job.live or (job.follows_orders and job.state is JobState.PENDING)]
    if not live or 2 * len(live) < len(jobs):
        return None
    return float(np.median([min(job.progress.pause_s or LIVE_CHANGE_S, RESTART_S) for job in live]))


def _interval_s(work: FloatArray, goodput: FloatArray, horizon_s: float) -> float:
    """Return the seconds between two rounds, for `work` (J,) and `goodput` (J, C)."""
    longest_s = float((work / goodput.max(axis=1)).max()) if goodput.size else 0.0
    return min(max(min(longest_s, horizon_s) / _ROUNDS, _LEAST_INTERVAL_S), _MOST_INTERVAL_S)


def _rejected(round_: Round, runs: BoolArray) -> tuple[tuple[str, str], ...]:
    """Return the name and reason of each job that cannot run anywhere (J,)."""
    return tuple(
        (round_.jobs[row].name, _why_never_runs(round_, row)) for row in np.flatnonzero(~runs).tolist()
    )


def _why_never_runs(round_: Round, row: int) -> str:
    """Return the reason why a job can never run on this cluster."""
    job = round_.jobs[row]
    kinds, least = job.spec.resources.devices, min(job.sizes)
    usable = round_.scope.usable_slots(job.spec)
    if not any(usable.values()):
        return f"no node has {' or '.join(kinds) or 'any slot'}"
    return (
        f"it needs at least {least} slots {job.spec.elastic.kinds_text}, and the cluster has "
        f"{job.spec.elastic.most_together(usable)}"
    )


def _warnings(
    round_: Round,
    keep: Sequence[int],
    left: Remaining,
    endless: BoolArray,
    rejected: Sequence[tuple[str, str]],
) -> Iterator[str]:
    for name, why in rejected:
        yield f"{name} can never run: {why}"
    reasons: dict[str, list[str]] = {}
    for row in keep:
        if endless[row]:
            unmeasured = math.isfinite(left.samples[row])
            why = "neither it nor its class was measured" if unmeasured else WorkSource.UNKNOWN.reason
            reasons.setdefault(why, []).append(round_.jobs[row].name)
    for why, names in reasons.items():
        yield f"assumed to run without end and left out of averages: {some_of(names, _NAMED)} ({why})"
