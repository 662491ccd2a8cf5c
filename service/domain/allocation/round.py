"""From a snapshot to what a policy is given: jobs, configurations, goodput, masks, and why a mask is there."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from headway.contract.spec import JobSpec
from service.domain.allocation.columns import Columns, KindRoom, columns_of, rooms_of, rows_of
from service.domain.allocation.eligibility import (
    Holding,
    acceptable_kinds,
    backs_off,
    deciding_jobs,
    explores,
    holding_of,
    is_left_over,
    is_silent,
    weight_of,
)
from service.domain.allocation.knapsack.problem import Row
from service.domain.allocation.searching import Searches, searches_of
from service.domain.allocation.shapes import offered
from service.domain.arrays import BoolArray, FloatArray, IntArray
from service.domain.cluster import Served, Snapshot
from service.domain.jobs import Job
from service.domain.perf.exploration import Exploration, explore
from service.domain.perf.learned import Learned, batch_of, job_classes, learn
from service.domain.perf.tables import GoodputTable, Observed, goodput_table
from service.domain.policies.policy import RoundInput

RESTART_S = 3.0
"""Training time that a change by a restart costs: stop, checkpoint, relaunch, load."""
LIVE_CHANGE_S = 0.5
"""The same of a change in place that was never measured."""
MIN_GAIN = 1.05
"""A running job grows, or moves by its own choice, only for at least this factor of goodput."""
MIN_RUNTIME_S = 30.0
"""A job that was just started or changed is not changed again by its own choice; it may be shrunk to make room. After a
loss this does not hold: what was lost is to come back at once.
"""
_WORTHLESS = 0.01
"""Of the goodput at the size that its user asked for, what any other is worth to a pinned job."""


class Note(IntEnum):
    """Why a configuration may be chosen for a job now, or not."""

    NOT_ALLOWED = 0
    OFFERED = 1
    CURRENT = 2
    TOO_FAR = 3
    NOT_WORTH_IT = 4
    BACK_OFF = 5
    TOO_YOUNG = 6
    NO_GAIN = 7
    NOT_MEASURED = 8


_SEARCHABLE = (Note.TOO_FAR, Note.NOT_WORTH_IT, Note.TOO_YOUNG, Note.NO_GAIN)
"""A search may want a job there none the less."""


@dataclass(frozen=True)  # with slots there could be no cached_property
class Round:
    """A round's jobs (J) and configurations (C), and what is known of them.

    Attributes:
        jobs: those that the round decides about, in the order of their submits.
        holdings: by job id.
        tried: (J, C) where the job has measurements.
        notes: (J, C) a `Note` for each.
        exempt: (J,) jobs that lie scattered, and that packing rows do not count.
        search: where jobs that search their configuration are to be.
        table: goodput as it is believed to be; what policies are given is steadied in `given`.
    """

    snapshot: Snapshot
    jobs: tuple[Job, ...]
    holdings: Mapping[str, Holding]
    rooms: Mapping[str, KindRoom]
    columns: Columns
    learned: Learned
    table: GoodputTable
    tried: BoolArray
    notes: IntArray
    exempt: BoolArray
    search: Searches
    given: RoundInput

    def usable_slots(self, spec: JobSpec) -> dict[str, int]:
        """All slots in service of each kind that a job may run on."""
        wanted = spec.resources.devices
        return {
            kind: int(room.slots.sum()) for kind, room in self.rooms.items() if not wanted or kind in wanted
        }

    @cached_property
    def digest(self) -> str:
        """Of everything that the policy is given: the same digest, the same choices."""
        given = self.given
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr(([job.id for job in self.jobs], self.snapshot.policy)).encode())
        for row in given.rows:
            digest.update(f"{row.name} {row.capacity}".encode())
            digest.update(row.demand.tobytes())
        for one in (given.configurations.slots, given.configurations.usd_per_h, given.goodput, given.allowed):
            digest.update(np.ascontiguousarray(one).tobytes())
        for name in ("current", "weight", "waited_s", "served_slot_s", "changes", "change_s", "remaining"):
            digest.update(getattr(given, name).tobytes())
        return digest.hexdigest()


def build_round(snapshot: Snapshot) -> Round:
    """Everything that a round knows. Whatever the snapshot holds, nothing is raised."""
    jobs = deciding_jobs(snapshot)
    holdings = {job.id: holding_of(job, snapshot) for job in jobs}
    rooms = rooms_of(snapshot, holdings)
    columns = columns_of(jobs, holdings, rooms, snapshot.usd_per_slot_h)
    current = np.array(
        [columns.find(one.kind, one.size, one.private) if one.whole else -1 for one in holdings.values()],
        dtype=np.int64,
    )
    learned = learn(jobs, columns.configurations.kinds, snapshot.measurements, snapshot.class_measurements)
    tried, observed = _observed(jobs, columns, snapshot)
    table = goodput_table(learned.models, columns.configurations, observed)
    notes = _notes(snapshot, jobs, holdings, columns, current, tried, table)
    search = searches_of(
        snapshot,
        jobs,
        columns,
        allowed=notes != Note.NOT_ALLOWED,
        current=current,
        table=table,
        learned=learned,
        young=[is_young(job, snapshot) for job in jobs],
        change_s=[change_s(job) for job in jobs],
    )
    notes[search.opened(np.isin(notes, _SEARCHABLE))] = Note.OFFERED
    rows, exempt = rows_of(columns, rooms, jobs, holdings, current)
    return Round(
        snapshot=snapshot,
        jobs=jobs,
        holdings=holdings,
        rooms=rooms,
        columns=columns,
        learned=learned,
        table=table,
        tried=tried,
        notes=notes,
        exempt=exempt,
        search=search,
        given=_given(snapshot, jobs, holdings, columns, rows, current, notes, table, learned, search),
    )


def is_young(job: Job, snapshot: Snapshot) -> bool:
    """Whether the job was only just started or changed, and not because of a loss."""
    ran_s = (snapshot.now - job.state_since).total_seconds()
    return ran_s < MIN_RUNTIME_S and not (job.live and job.samples_at_loss is not None)


def change_s(job: Job) -> float:
    """Seconds of training that a change of the job's slots costs."""
    if not job.live:
        return RESTART_S
    measured_s = job.progress.pause_s
    return LIVE_CHANGE_S if measured_s is None else min(measured_s, RESTART_S)


def requested_slots(job: Job) -> int:
    """The size that a rigid scheduler would give the job: of those allowed, the one nearest to the geometric middle."""
    elastic = job.spec.elastic
    square = float(elastic.min * elastic.max)
    return job.pinned_size or min(
        elastic.allowed_sizes(), key=lambda size: (max(size**2 / square, square / size**2), size)
    )


def _given(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    holdings: Mapping[str, Holding],
    columns: Columns,
    rows: tuple[Row, ...],
    current: IntArray,
    notes: IntArray,
    table: GoodputTable,
    learned: Learned,
    search: Searches,
) -> RoundInput:
    now, kinds = snapshot.now, columns.configurations.kinds
    served = [snapshot.served.get(job.id, Served()) for job in jobs]
    seconds = [[one.seconds.get(kind, 0.0) for kind in kinds] for one in served]
    waits = [holdings[job.id].size == 0 for job in jobs]
    moving = (search.target >= 0) & (search.target != current)
    return RoundInput(
        configurations=columns.configurations,
        rows=rows,
        goodput=search.preferred(_steadied(snapshot, jobs, columns, current, table.goodput)),
        allowed=(notes == Note.OFFERED) | (notes == Note.CURRENT),
        current=current,
        weight=np.array([weight_of(job) for job in jobs]),
        age_s=np.array([max(0.0, (now - job.submitted_at).total_seconds()) for job in jobs]),
        waited_s=np.array(
            [
                max(0.0, (now - job.state_since).total_seconds()) if waiting else 0.0
                for job, waiting in zip(jobs, waits, strict=True)
            ]
        ),
        served_s=np.array(seconds, dtype=np.float64).reshape(len(jobs), len(kinds)),
        served_slot_s=np.array([one.slot_s for one in served]),
        changes=np.array([max(0, job.generation - 1) for job in jobs], dtype=np.int64),
        # What its user asks for is not weighed against what it costs; a search has weighed it.
        change_s=np.array(
            [
                0.0 if job.pinned_size or moves else change_s(job)
                for job, moves in zip(jobs, moving, strict=True)
            ]
        ),
        # Samples say nothing of time where no speed is known: by a guessed one the shortest job would look like the longest.
        remaining=np.where(
            learned.measured | learned.related,
            np.array([_remaining(job) for job in jobs]) * _worth_of_a_sample(current, table),
            np.nan,
        ),
        requested_slots=search.sizes(
            columns.configurations.slots, np.array([requested_slots(job) for job in jobs], dtype=np.int64)
        ),
        job_class=job_classes(jobs),
    )


def _worth_of_a_sample(current: IntArray, table: GoodputTable) -> FloatArray:
    """(J,) reference samples that one of a job's samples stands for, in steps of the batch that it has or would have."""
    if not table.goodput.size:
        return np.ones(len(current))
    column = np.where(current >= 0, current, table.goodput.argmax(axis=1))
    worth = table.efficiency[np.arange(len(current)), column]
    return np.where(worth > 0, worth, 1.0)


def _remaining(job: Job) -> float:
    """Samples left; NaN where the script does not say how many there are."""
    total = job.progress.total_samples
    return math.nan if total is None else float(max(total - job.progress.samples, 1))


def _observed(jobs: Sequence[Job], columns: Columns, snapshot: Snapshot) -> tuple[BoolArray, Observed]:
    """Where each job was measured (J, C), and what."""
    configurations = columns.configurations
    tried = np.zeros((len(jobs), len(configurations.slots)), dtype=np.bool_)
    entries: list[tuple[float, ...]] = []
    for row, job in enumerate(jobs):
        for one in snapshot.measurements.get(job.id, ()):
            if not one.believable or one.device_kind not in configurations.kinds:
                continue
            kind = configurations.kinds.index(one.device_kind)
            same = (configurations.kind == kind) & (configurations.slots == one.slots)
            tried[row] |= same
            # Spread over more nodes than the column promises, it was slower than that would be.
            entries += (
                (row, column, one.samples_per_s, batch_of(one), one.steps)
                for column in np.flatnonzero(same & (configurations.nodes == one.nodes)).tolist()
            )
    table = np.array(entries, dtype=np.float64).reshape(len(entries), 5)
    return tried, Observed(
        job=table[:, 0].astype(np.int64),
        column=table[:, 1].astype(np.int64),
        samples_per_s=table[:, 2],
        global_batch=table[:, 3],
        steps=table[:, 4],
    )


def _allowed(jobs: Sequence[Job], holdings: Mapping[str, Holding], columns: Columns) -> BoolArray:
    """What specs and shapes allow (J, C): an acceptable kind, and a size that the job may have there."""
    configurations = columns.configurations
    kinds, slots = configurations.kinds, configurations.slots
    mask = np.zeros((len(jobs), len(slots)), dtype=np.bool_)
    known: dict[object, BoolArray] = {}
    for row, job in enumerate(jobs):
        key = (job.spec.elastic, job.spec.resources.devices, job.pinned_size)
        if key not in known:
            of_kind = np.isin(configurations.kind, [kinds.index(one) for one in acceptable_kinds(job, kinds)])
            known[key] = of_kind & np.isin(slots, job.sizes)
        holding = holdings[job.id]
        private = np.zeros_like(columns.private)
        if holding.private and holding.kind is not None:
            private = np.where(configurations.kind == kinds.index(holding.kind), holding.private, 0)
        mask[row] = known[key] & (columns.private == private)
    for first, shapes in zip(columns.first.tolist(), columns.shapes, strict=True):
        own = slice(first, first + len(shapes.slots))
        mask[:, own] = offered(shapes, mask[:, own])
    return mask


def _notes(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    holdings: Mapping[str, Holding],
    columns: Columns,
    current: IntArray,
    tried: BoolArray,
    table: GoodputTable,
) -> IntArray:
    allowed = _allowed(jobs, holdings, columns)
    for row, (job, holding) in enumerate(zip(jobs, holdings.values(), strict=True)):
        stays = not is_left_over(job, holding.size) or backs_off(job, snapshot)
        if current[row] >= 0 and stays:
            allowed[row, current[row]] = True
    explored = explore(
        columns.configurations,
        allowed=allowed,
        tried=tried,
        current=current,
        goodput=table.goodput,
        high=table.high,
    )
    notes = np.select(
        [explored.mask, explored.code == Exploration.TOO_FAR, explored.code == Exploration.NOT_WORTH_IT],
        [Note.OFFERED, Note.TOO_FAR, Note.NOT_WORTH_IT],
        Note.NOT_ALLOWED,
    ).astype(np.int64)
    free = np.array([not explores(job, snapshot) for job in jobs], dtype=np.bool_)
    notes[free[:, None] & allowed] = Note.OFFERED
    for row, (job, holding) in enumerate(zip(jobs, holdings.values(), strict=True)):
        if holding.size:
            notes[row] = _of_running(
                snapshot, job, holding.size, notes[row], columns, int(current[row]), table.goodput[row]
            )
    return notes


def _of_running(
    snapshot: Snapshot,
    job: Job,
    size: int,
    notes: IntArray,
    columns: Columns,
    current: int,
    goodput: FloatArray,
) -> IntArray:
    """The notes (C,) of a job that holds slots: what it should not change to by its own choice."""
    slots = columns.configurations.slots
    offer = notes == Note.OFFERED
    pinned = slots == (job.pinned_size or 0)
    notes = notes.copy()
    if current >= 0 and not is_left_over(job, size):
        no_gain = (slots >= size) & (goodput < MIN_GAIN * goodput[current])
        notes[offer & ~pinned & no_gain] = Note.NO_GAIN
        if is_young(job, snapshot):
            notes[offer & ~pinned & (slots > size)] = Note.TOO_YOUNG
        if is_silent(job, snapshot) and job.generation > 1:
            notes[offer & ~pinned & (slots > size)] = Note.NOT_MEASURED
    waits = backs_off(job, snapshot)
    if waits:
        kind = columns.configurations.kind
        elsewhere = kind != kind[current] if current >= 0 else np.zeros_like(offer)
        notes[offer & ((slots > size) | elsewhere)] = Note.BACK_OFF
    if current >= 0:
        leaves = is_left_over(job, size) and job.pinned_size != size and not waits
        notes[current] = Note.NOT_ALLOWED if leaves else Note.CURRENT
    return notes


def _steadied(
    snapshot: Snapshot, jobs: Sequence[Job], columns: Columns, current: IntArray, goodput: FloatArray
) -> FloatArray:
    """Goodput as policies are to count it (J, C): a difference that may be noise is none, else jobs would go to and fro,
    and the size that a user asked for is what counts.
    """
    steadied = goodput.copy()
    running = np.flatnonzero(current >= 0)
    now = goodput[running, current[running]][:, None]
    young = np.array([is_young(job, snapshot) for job in jobs], dtype=np.bool_)[running, None]
    near = (goodput[running] > now) & (young | (goodput[running] < MIN_GAIN * now))
    steadied[running] = np.where(near, now, goodput[running])
    if steadied.size:
        # A model that knows no speed of a job forbids it nothing: where it runs it runs, and elsewhere it may try.
        steadied[~(goodput > 0).any(axis=1)] = columns.configurations.slots
        held = steadied[running, current[running]]
        least = _WORTHLESS * steadied[running].max(axis=1)
        steadied[running, current[running]] = np.where(held > 0, held, least)
    for row, job in enumerate(jobs):
        if job.pinned_size is not None:
            steadied[row, columns.configurations.slots != job.pinned_size] *= _WORTHLESS
    return steadied
