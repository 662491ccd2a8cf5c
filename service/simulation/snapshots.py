"""From a picture of the live cluster to a world that can be replayed from there.

What the service believes is the truth of such a world: its learned speeds, and what jobs have left by what their
scripts, or ended jobs of their classes, say. Both are uncertain; `drawn` takes other values that are as likely.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from headway.contract.agents import NodeState
from headway.contract.jobs import JobState
from headway.contract.spec import Resize
from service.domain.allocation.round import LIVE_CHANGE_S, RESTART_S, Note, Round, build_round
from service.domain.arrays import BoolArray, FloatArray
from service.domain.cluster import Node, SlotKey, Snapshot
from service.domain.jobs import Allocation, Job, class_of
from service.domain.perf.forecast import Z90, Remaining, WorkSource, learn_totals, remaining_samples
from service.domain.policies.policy import Configurations
from service.simulation.changes import Changed
from service.simulation.world import Application, Arrival, Kind, Rules, View, World

_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 60.0, 3600.0
_ROUNDS = 100
"""So many rounds, beside those in which something happens, are held in the time that the longest job takes at least. The
live system looks more often; where nothing has happened it decides the same.
"""
_LONG = 2.0
"""Times the horizon: as long as jobs train that nobody knows the end of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A world (J jobs) as it is believed to be, and how far to believe it.

    Attributes:
        world: with the medians.
        names: (J,) what people call the jobs.
        endless: (J,) those of which it is not known how long they train, or how fast: they go on beyond the horizon.
        work_spread, speed_spread: (J,) standard deviations of the logarithms of work and speed.
        warnings: what people should know before they believe the outcome.
    """

    world: World
    names: tuple[str, ...]
    endless: BoolArray
    work_spread: FloatArray
    speed_spread: FloatArray
    warnings: tuple[str, ...]


def picture_of(
    changed: Changed, ended_samples: Mapping[str, Sequence[float]], *, horizon_s: float
) -> Picture:
    """The world that goes on from a snapshot until `horizon_s` from now.

    `ended_samples` are what ended jobs took in samples, by class. Whatever the snapshot holds, nothing is raised.
    """
    calm, left_out = settled(changed.snapshot)
    round_ = build_round(calm)
    goodput = _goodput(round_)
    runs = (goodput > 0).any(axis=1) if goodput.size else np.zeros(len(round_.jobs), dtype=np.bool_)
    left = _left(round_, changed.samples, ended_samples)
    work, endless = _work(round_, goodput, left, horizon_s)
    columns = len(goodput[0]) if len(goodput) else 0
    keep = sorted(
        np.flatnonzero(runs).tolist(), key=lambda row: changed.after_s.get(round_.jobs[row].id, 0.0)
    )
    kinds = _kinds(round_)
    world = World(
        kinds=kinds,
        configurations=_public(round_),
        applications=tuple(
            Application(
                name=class_of(round_.jobs[row].spec),
                boundaries=np.array([0.0, work[row]]),
                goodput=goodput[row].reshape(1, columns),
                restart_s=RESTART_S,
            )
            for row in keep
        ),
        arrivals=tuple(_arrival(round_, row, index, changed.after_s, left) for index, row in enumerate(keep)),
        rejected=tuple(
            (round_.jobs[row].name, _never(round_, row)) for row in np.flatnonzero(~runs).tolist()
        ),
        rules=replace(
            _rules(round_, [round_.jobs[row] for row in keep], changed.after_s, horizon_s),
            interval_s=_interval_s(work[keep], goodput[keep], horizon_s),
        ),
    )
    return Picture(
        world=world,
        names=tuple(round_.jobs[row].name for row in keep),
        endless=endless[keep],
        work_spread=np.where(endless, 0.0, left.spread)[keep],
        speed_spread=_speed_spread(round_, goodput)[keep],
        warnings=(*left_out, *_warnings(round_, keep, left, endless, world.rejected)),
    )


def drawn(picture: Picture, seed: int) -> World:
    """The world with other values of what is uncertain, as likely as the believed ones, which seed 0 keeps.

    A job's values depend on its id and the seed alone, so that worlds with different changes can be compared.
    """
    world = picture.world
    if seed == 0:
        return world
    applications = []
    for index, (arrival, application) in enumerate(zip(world.arrivals, world.applications, strict=True)):
        digest = hashlib.blake2b(f"{seed} {arrival.id}".encode(), digest_size=8).digest()
        of_work, of_speed = np.random.default_rng(int.from_bytes(digest)).standard_normal(2)
        # Beyond three standard deviations an estimate says nothing any more.
        more = math.exp(picture.work_spread[index] * float(np.clip(of_work, -3, 3)))
        faster = math.exp(picture.speed_spread[index] * float(np.clip(of_speed, -3, 3)))
        applications.append(
            replace(
                application, boundaries=application.boundaries * more, goodput=application.goodput * faster
            )
        )
    return replace(world, applications=tuple(applications), seed=seed)


def settled(snapshot: Snapshot) -> tuple[Snapshot, tuple[str, ...]]:
    """The snapshot when all that is under way is done: jobs run or wait, nodes are there or not. And, in words, what
    takes no part.
    """
    nodes = _settled_nodes(snapshot)
    jobs: dict[str, Job] = {}
    held: dict[SlotKey, str] = {}
    left_out = []
    for job in sorted(snapshot.jobs.values(), key=lambda job: (job.submitted_at, job.id)):
        if job.state is JobState.CANCELLING:
            continue
        if job.state is JobState.PAUSED or job.pause_requested:
            left_out.append(f"{job.name} is paused and takes no part")
            continue
        keys = _keeps(job, snapshot, nodes)
        held |= dict.fromkeys(keys, job.id)
        jobs[job.id] = _settled_job(job, keys)
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
    """Those that stay. A cordoned one is there for the jobs that have it."""
    stay = {NodeState.READY, NodeState.CORDONED}
    return {node.id: node for node in snapshot.nodes.values() if node.state in stay}


def _keeps(job: Job, snapshot: Snapshot, nodes: Mapping[str, Node]) -> tuple[SlotKey, ...]:
    """The slots that a job goes on with: all that it trains on, or is about to start on; none if one of them is gone."""
    wanted: Allocation = job.target if job.target is not None else job.allocation
    keys = tuple(SlotKey(node, slot) for node, slots in sorted(wanted.items()) for slot in slots)
    kinds = {nodes[key.node_id].slots.get(key.slot, "") if key.node_id in nodes else "" for key in keys}
    whole = all(snapshot.held.get(key) == job.id for key in keys)
    return keys if whole and len(kinds) == 1 and "" not in kinds else ()


def _settled_job(job: Job, keys: Sequence[SlotKey]) -> Job:
    elastic, pinned = job.spec.elastic, job.pinned_size
    if elastic.resize is Resize.NEVER and keys:
        pinned = len(keys)
        elastic = elastic.model_copy(update={"resize": Resize.RESTART})
    allocation: dict[str, tuple[int, ...]] = {}
    for key in keys:
        allocation[key.node_id] = (*allocation.get(key.node_id, ()), key.slot)
    return replace(
        job,
        state=JobState.RUNNING if keys else JobState.PENDING,
        spec=job.spec.model_copy(update={"elastic": elastic}),
        pinned_size=pinned,
        allocation=allocation,
        target=None,
        switch=None,
        retry_at=None,
        grow_after=None,
    )


def _goodput(round_: Round) -> FloatArray:
    """(J, C) goodput of the columns of everybody, 0 where a job may never run."""
    possible = round_.notes != Note.NOT_ALLOWED
    current = round_.given.current
    running = np.flatnonzero(current >= 0)
    possible[running, current[running]] = True
    everybody = round_.columns.private == 0
    return np.where(possible, round_.table.goodput, 0.0)[:, everybody]


def _public(round_: Round) -> Configurations:
    """The columns of everybody."""
    everybody = round_.columns.private == 0
    given = round_.columns.configurations
    return replace(
        given,
        kind=given.kind[everybody],
        slots=given.slots[everybody],
        nodes=given.nodes[everybody],
        usd_per_h=given.usd_per_h[everybody],
    )


def _kinds(round_: Round) -> tuple[Kind, ...]:
    prices = round_.snapshot.usd_per_slot_h
    return tuple(
        Kind(
            name=name,
            node_slots=tuple(slots for slots in room.slots.tolist() if slots),
            usd_per_slot_h=max(0.0, prices.get(name, 0.0)),
        )
        for name, room in round_.rooms.items()
    )


def _left(
    round_: Round, samples: Mapping[str, int], ended_samples: Mapping[str, Sequence[float]]
) -> Remaining:
    """What each job (J,) has left, in samples."""
    classes = sorted({class_of(job.spec) for job in round_.jobs})
    ended = [(index, one) for index, name in enumerate(classes) for one in ended_samples.get(name, ())]
    of_class, took = np.array(ended, dtype=np.float64).reshape(len(ended), 2).T
    totals = learn_totals(of_class.astype(np.int64), took, len(classes))
    said = [samples.get(job.id, job.progress.total_samples) for job in round_.jobs]
    return remaining_samples(
        np.array([job.progress.samples for job in round_.jobs], dtype=np.float64),
        np.array([math.nan if total is None else float(total) for total in said], dtype=np.float64),
        np.array([classes.index(class_of(job.spec)) for job in round_.jobs], dtype=np.int64),
        totals,
    )


def _work(
    round_: Round, goodput: FloatArray, left: Remaining, horizon_s: float
) -> tuple[FloatArray, BoolArray]:
    """(J,) reference samples left, and where nobody knows."""
    if not goodput.size:
        return np.ones(len(round_.jobs)), np.ones(len(round_.jobs), dtype=np.bool_)
    current = round_.given.current
    column = np.where(current >= 0, current, goodput.argmax(axis=1))
    worth = round_.table.efficiency[np.arange(len(current)), column]
    known_speed = round_.learned.measured | round_.learned.related
    endless = ~(np.isfinite(left.samples) & known_speed)
    some = np.maximum(np.where(endless, 1.0, left.samples), 1.0) * np.where(worth > 0, worth, 1.0)
    return np.where(endless, _LONG * horizon_s * np.maximum(goodput.max(axis=1), 1e-9), some), endless


def _speed_spread(round_: Round, goodput: FloatArray) -> FloatArray:
    """(J,) of a job's speed, at what it has or would have."""
    if not goodput.size:
        return np.zeros(len(round_.jobs))
    current = round_.given.current
    column = np.where(current >= 0, current, goodput.argmax(axis=1))
    rows = np.arange(len(current))
    low, high = round_.table.low[rows, column], round_.table.high[rows, column]
    known = (low > 0) & (high >= low)
    return np.where(known, np.log(np.where(known, high, 1.0) / np.where(known, low, 1.0)), 0.0) / (2 * Z90)


def _arrival(round_: Round, row: int, index: int, after_s: Mapping[str, float], left: Remaining) -> Arrival:
    job, given = round_.jobs[row], round_.given
    return Arrival(
        id=job.id,
        submit_s=after_s.get(job.id, -float(given.age_s[row])),
        application=index,
        requested_slots=int(given.requested_slots[row]),
        holds=int(given.current[row]),
        declares_length=int(left.source[row]) == WorkSource.SCRIPT,
        weight=float(given.weight[row]),
    )


def _rules(round_: Round, jobs: Sequence[Job], after_s: Mapping[str, float], horizon_s: float) -> Rules:
    """Changes are in place where most jobs change so."""
    live = [job for job in jobs if job.live or (job.follows_orders and job.state is JobState.PENDING)]
    pauses = [min(job.progress.pause_s or LIVE_CHANGE_S, RESTART_S) for job in live]
    ages_s = [(round_.snapshot.now - job.submitted_at) / timedelta(seconds=1) for job in jobs]
    last_s = max(
        (after_s.get(job.id, -max(age_s, 0.0)) for job, age_s in zip(jobs, ages_s, strict=True)), default=0.0
    )
    return Rules(
        on_events=True,
        live_pause_s=float(np.median(pauses)) if 2 * len(live) >= len(jobs) and live else None,
        view=View.ORACLE,
        give_up_s=horizon_s - last_s,
    )


def _interval_s(work: FloatArray, goodput: FloatArray, horizon_s: float) -> float:
    """Between two rounds; `work` (J,), `goodput` (J, C)."""
    longest_s = float((work / goodput.max(axis=1)).max()) if goodput.size else 0.0
    return min(max(min(longest_s, horizon_s) / _ROUNDS, _LEAST_INTERVAL_S), _MOST_INTERVAL_S)


def _never(round_: Round, row: int) -> str:
    """Why a job can never run here."""
    job = round_.jobs[row]
    kinds, least = job.spec.resources.devices, min(job.sizes)
    usable = {
        kind: int(room.slots.sum()) for kind, room in round_.rooms.items() if not kinds or kind in kinds
    }
    if not any(usable.values()):
        return f"no node has {' or '.join(kinds) or 'any slot'}"
    return f"it needs at least {least} slots of one kind, and no kind has more than {max(usable.values())}"


def _warnings(
    round_: Round,
    keep: Sequence[int],
    left: Remaining,
    endless: BoolArray,
    rejected: Sequence[tuple[str, str]],
) -> Iterator[str]:
    for name, why in rejected:
        yield f"{name} can never run: {why}"
    for row in keep:
        name = round_.jobs[row].name
        if endless[row] and math.isfinite(left.samples[row]):
            yield f"{name}: nothing was measured of it or its class; it is taken to go on, and not counted in averages"
        elif endless[row]:
            yield f"{name}: {WorkSource.UNKNOWN.reason}; it is taken to go on, and not counted in averages"
