"""From a picture of the live cluster to a world that can be replayed from there.

What the service believes is the truth of such a world: its learned speeds, and what jobs have left by what their
scripts, or ended jobs of their classes, say. Both are uncertain; `drawn` takes other values that are as likely.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headway.contract.agents import NodeState
from headway.contract.jobs import JobState
from service.domain.allocation.eligibility import settled_job
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.notes import Note
from service.domain.allocation.round import LIVE_CHANGE_S, RESTART_S, Round, build_round
from service.domain.arrays import BoolArray, FloatArray, IntArray
from service.domain.cluster import Node, Served, SlotKey, Snapshot
from service.domain.jobs import Allocation, Job, class_of
from service.domain.perf.forecast import Z90, Remaining, WorkSource, learn_totals, remaining_samples
from service.domain.policies.policy import Configurations
from service.simulation.changes import Changed
from service.simulation.clusters import configurations_of
from service.simulation.world import Application, Arrival, Before, Kind, Rules, View, World

_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 60.0, 3600.0
_ROUNDS = 100
"""So many rounds, beside those in which something happens, are held in the time that the longest job takes at least. The
live system looks more often; where nothing has happened it decides the same.
"""
_NAMED = 5
"""Jobs that are named in a warning."""
_NONE = np.zeros(0, dtype=np.int64)
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
    table = _table(round_)
    left = _left(round_, changed.samples, ended_samples)
    work, endless = _work(round_, table, left, horizon_s)
    runs = table.goodput.max(axis=1, initial=0.0) > 0
    submit_s = np.array([changed.after_s.get(job.id, -_age_s(job, calm)) for job in round_.jobs])
    # Those that are there come first, in the order of their submits.
    keep = np.flatnonzero(runs)[np.argsort(np.maximum(submit_s[runs], 0.0), kind="stable")]
    world = World(
        kinds=table.kinds,
        configurations=table.configurations,
        applications=tuple(
            Application(
                name=class_of(round_.jobs[row].spec),
                boundaries=np.array([0.0, work[row]]),
                goodput=table.goodput[None, row],
                restart_s=RESTART_S,
            )
            for row in keep.tolist()
        ),
        arrivals=tuple(
            Arrival(
                id=round_.jobs[row].id,
                submit_s=float(submit_s[row]),
                application=index,
                requested_slots=int(round_.given.requested_slots[row]),
                holds=int(table.holds[row]),
                declares_length=int(left.source[row]) == WorkSource.SCRIPT,
                weight=float(round_.given.weight[row]),
                before=None if submit_s[row] > 0 else _before(round_, row, table.kinds),
            )
            for index, row in enumerate(keep.tolist())
        ),
        rejected=_rejected(round_, runs),
        rules=Rules(
            interval_s=_interval_s(work[keep], table.goodput[keep], horizon_s),
            on_events=True,
            live_pause_s=_live_pause_s([round_.jobs[row] for row in keep.tolist()]),
            view=View.ORACLE,
            give_up_s=horizon_s - float(submit_s[keep].max(initial=-np.inf) if len(keep) else 0.0),
        ),
        policy_state=calm.policy_state,
    )
    return Picture(
        world=world,
        names=tuple(round_.jobs[row].name for row in keep.tolist()),
        endless=endless[keep],
        work_spread=np.where(endless, 0.0, left.spread)[keep],
        speed_spread=table.speed_spread[keep],
        warnings=(*left_out, *_warnings(round_, keep.tolist(), left, endless, world.rejected)),
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
    """Those that stay. A cordoned one is there for the jobs that have it; one that is being reclaimed is as good as gone."""
    return {node.id: node for node in snapshot.nodes.values() if node.keeps_jobs}


def _keeps(job: Job, snapshot: Snapshot, nodes: Mapping[str, Node]) -> tuple[SlotKey, ...]:
    """The slots that a job goes on with: all that it trains on, or is about to start on; none if one of them is gone."""
    wanted: Allocation = job.target if job.target is not None else job.allocation
    keys = tuple(SlotKey(node, slot) for node, slots in sorted(wanted.items()) for slot in slots)
    kinds = {nodes[key.node_id].slots.get(key.slot, "") if key.node_id in nodes else "" for key in keys}
    whole = all(snapshot.held.get(key) == job.id for key in keys)
    return keys if whole and len(kinds) == 1 and "" not in kinds else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """What jobs (J,) really do on the columns (C,) of a world.

    Attributes:
        goodput: (J, C) reference samples per second, 0 where a job may never run.
        holds: (J,) the column that each has, -1 for none.
        worth: (J,) reference samples that one of a job's samples stands for, in the batch that it has or would have.
        speed_spread: (J,) standard deviation of the logarithm of its speed there.
    """

    kinds: tuple[Kind, ...]
    configurations: Configurations
    goodput: FloatArray
    holds: IntArray
    worth: FloatArray
    speed_spread: FloatArray


def _table(round_: Round) -> _Table:
    """A world has columns of sizes that cut up its nodes; other sizes count as the next larger one."""
    kinds = tuple(
        Kind(
            name=name,
            node_slots=tuple(slots for slots in room.slots.tolist() if slots),
            usd_per_slot_h=room.usd_per_slot_h,
        )
        for name, room in round_.rooms.items()
        if room.slots.any()
    )
    jobs, current = len(round_.jobs), round_.given.current
    if not round_.table.goodput.size:
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
    possible = round_.notes != Note.NOT_ALLOWED
    running = np.flatnonzero(current >= 0)
    possible[running, current[running]] = True
    known = np.where(possible, round_.table.goodput, 0.0)
    column = np.where(current >= 0, current, known.argmax(axis=1))
    at = np.arange(jobs), column
    low, high, worth = (getattr(round_.table, name)[at] for name in ("low", "high", "efficiency"))
    sure = (low > 0) & (high >= low)
    configurations = configurations_of(kinds)
    place = _places(round_.columns.configurations, configurations)
    goodput = np.zeros((jobs, len(configurations.slots)))
    for index in np.flatnonzero(place != NOTHING):
        goodput[:, place[index]] = np.maximum(goodput[:, place[index]], known[:, index])
    return _Table(
        kinds=kinds,
        configurations=configurations,
        goodput=goodput,
        holds=_fitting(np.where(current >= 0, place[current], NOTHING), goodput, configurations, kinds),
        worth=np.where(worth > 0, worth, 1.0),
        speed_spread=np.where(sure, np.log(np.where(sure, high, 1.0) / np.where(sure, low, 1.0)), 0.0)
        / (2 * Z90),
    )


def _places(given: Configurations, configurations: Configurations) -> IntArray:
    """(C',) for each column of a round the one of a world: of its kind, and the fewest slots that are enough."""
    names = np.array([*given.kinds, ""])
    alike = names[given.kind][:, None] == np.array(configurations.kinds)[configurations.kind]
    enough = alike & (configurations.slots >= given.slots[:, None])
    fewest = np.where(enough, configurations.slots, np.iinfo(np.int64).max).argmin(axis=1)
    return np.where(enough.any(axis=1), fewest, NOTHING)


def _fitting(
    holds: IntArray, goodput: FloatArray, configurations: Configurations, kinds: Sequence[Kind]
) -> IntArray:
    """What jobs hold (J,), as far as there are slots for it: rounded up to larger columns, or with all of it counted on the
    market that may be lost, it may be too much. Then a job goes on with the most that there is for it.
    """
    free = [kind.slots for kind in kinds]
    fitting = holds.copy()
    for job in np.flatnonzero(holds != NOTHING).tolist():
        kind = int(configurations.kind[holds[job]])
        most = min(int(configurations.slots[holds[job]]), free[kind])
        fits = (configurations.kind == kind) & (configurations.slots <= most) & (goodput[job] > 0)
        slots = np.where(fits, configurations.slots, 0)
        fitting[job] = int(slots.argmax()) if fits.any() else NOTHING
        free[kind] -= int(slots.max())
    return fitting


def _left(
    round_: Round, samples: Mapping[str, int], ended_samples: Mapping[str, Sequence[float]]
) -> Remaining:
    """What each job (J,) has left, in samples."""
    classes = sorted({class_of(job.spec) for job in round_.jobs})
    said = [samples.get(job.id, job.progress.total_samples) for job in round_.jobs]
    # What jobs say that still run is as good as what others took.
    ended = [(index, one) for index, name in enumerate(classes) for one in ended_samples.get(name, ())] + [
        (classes.index(class_of(job.spec)), total)
        for job, total in zip(round_.jobs, said, strict=True)
        if total is not None
    ]
    of_class, took = np.array(ended, dtype=np.float64).reshape(len(ended), 2).T
    totals = learn_totals(of_class.astype(np.int64), took, len(classes))
    return remaining_samples(
        np.array([job.progress.samples for job in round_.jobs], dtype=np.float64),
        np.array([math.nan if total is None else float(total) for total in said], dtype=np.float64),
        np.array([classes.index(class_of(job.spec)) for job in round_.jobs], dtype=np.int64),
        totals,
    )


def _work(round_: Round, table: _Table, left: Remaining, horizon_s: float) -> tuple[FloatArray, BoolArray]:
    """(J,) reference samples left, and where nobody knows."""
    known_speed = round_.learned.measured | round_.learned.related
    endless = ~(np.isfinite(left.samples) & known_speed)
    work = np.maximum(np.where(endless, 1.0, left.samples), 1.0) * table.worth
    fastest = table.goodput.max(axis=1, initial=0.0)
    return np.where(endless, np.maximum(_LONG * horizon_s * fastest, 1.0), work), endless


def _before(round_: Round, row: int, kinds: Sequence[Kind]) -> Before:
    """What a job has had up to now: without it, one that ran for hours would look like one that starved."""
    served = round_.snapshot.served.get(round_.jobs[row].id, Served())
    return Before(
        served_s=tuple(served.seconds.get(kind.name, 0.0) for kind in kinds),
        served_slot_s=served.slot_s,
        changes=int(round_.given.changes[row]),
        waited_s=float(round_.given.waited_s[row]),
    )


def _age_s(job: Job, snapshot: Snapshot) -> float:
    return max(0.0, (snapshot.now - job.submitted_at).total_seconds())


def _live_pause_s(jobs: Sequence[Job]) -> float | None:
    """What a change in place costs, where most jobs change so; None: changes are restarts."""
    live = [job for job in jobs if job.live or (job.follows_orders and job.state is JobState.PENDING)]
    if not live or 2 * len(live) < len(jobs):
        return None
    return float(np.median([min(job.progress.pause_s or LIVE_CHANGE_S, RESTART_S) for job in live]))


def _interval_s(work: FloatArray, goodput: FloatArray, horizon_s: float) -> float:
    """Between two rounds; `work` (J,), `goodput` (J, C)."""
    longest_s = float((work / goodput.max(axis=1)).max()) if goodput.size else 0.0
    return min(max(min(longest_s, horizon_s) / _ROUNDS, _LEAST_INTERVAL_S), _MOST_INTERVAL_S)


def _rejected(round_: Round, runs: BoolArray) -> tuple[tuple[str, str], ...]:
    """Name and reason of those that run nowhere (J,)."""
    return tuple((round_.jobs[row].name, _never(round_, row)) for row in np.flatnonzero(~runs).tolist())


def _never(round_: Round, row: int) -> str:
    """Why a job can never run here."""
    job = round_.jobs[row]
    kinds, least = job.spec.resources.devices, min(job.sizes)
    usable = round_.usable_slots(job.spec)
    if not any(usable.values()):
        return f"no node has {' or '.join(kinds) or 'any slot'}"
    return f"it needs at least {least} slots together, of {max(usable.values())} that there are of one kind"


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
            why = "nothing was measured of it or its class" if unmeasured else WorkSource.UNKNOWN.reason
            reasons.setdefault(why, []).append(round_.jobs[row].name)
    for why, names in reasons.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"taken to go on for ever, and in no average: {', '.join(names[:_NAMED])}{more} ({why})"
