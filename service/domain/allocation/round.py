"""From a snapshot to what a policy is given: jobs, configurations, goodput, masks, and why a mask is there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headway.contract.spec import JobSpec
from service.domain.allocation.columns import Columns, columns_of, rows_of
from service.domain.allocation.eligibility import Holding, deciding_jobs, holding_of, weight_of
from service.domain.allocation.knapsack.problem import Row
from service.domain.allocation.masks import seen_of
from service.domain.allocation.notes import MIN_GAIN, NOTE_OF, Note, Notes, is_young, notes_of
from service.domain.allocation.risk import kept_share, thrift
from service.domain.allocation.rooms import Room, rooms_of
from service.domain.allocation.searching import Searches, searches_of
from service.domain.allocation.spending import Bar, Prospects, cap_rows, prospects_of
from service.domain.allocation.tenancy import Tenancy, tenancy_of
from service.domain.arrays import BoolArray, FloatArray, IntArray
from service.domain.cluster import Served, Snapshot
from service.domain.jobs import Job
from service.domain.perf.learned import Learned, job_classes, learn
from service.domain.perf.tables import GoodputTable, goodput_table
from service.domain.policies.policy import RoundInput

RESTART_S = 3.0
"""Training time that a change by a restart costs: stop, checkpoint, relaunch, load."""
LIVE_CHANGE_S = 0.5
"""The same of a change in place that was never measured."""
_WORTHLESS = 0.01
"""Of the goodput at the size that its user asked for, what any other is worth to a pinned job."""
_BARRED = 0.5
"""Of its goodput, what a configuration counts that a job should leave, and may have to keep."""
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
        bars: (J, C) a `Bar` for each: what money or time forbids.
        prospects: goodput with what is lost with spot machines, and what is left to do.
        tenancy: what projects are promised, and where they end.
        table: goodput as it is believed to be while nothing is lost; what policies are given is steadied in `given`.
    """

    snapshot: Snapshot
    jobs: tuple[Job, ...]
    holdings: Mapping[str, Holding]
    rooms: Mapping[str, Room]
    columns: Columns
    learned: Learned
    table: GoodputTable
    tried: BoolArray
    notes: IntArray
    bars: IntArray
    prospects: Prospects
    exempt: BoolArray
    search: Searches
    tenancy: Tenancy
    given: RoundInput

    def usable_slots(self, spec: JobSpec) -> dict[str, int]:
        """All slots in service of each kind that a job may run on, in the markets that it takes."""
        usable: dict[str, int] = {}
        for room in self.rooms.values():
            if room.pool.serves(spec):
                usable[room.pool.kind] = usable.get(room.pool.kind, 0) + int(room.slots.sum())
        return usable

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
        for factor in (given.thrift, given.share):
            if factor is not None:
                digest.update(factor.tobytes())
        for claim in self.tenancy.claims:
            digest.update(f"{claim.project} {claim.wanted}".encode())
        return digest.hexdigest()


def build_round(snapshot: Snapshot) -> Round:
    """Everything that a round knows. Whatever the snapshot holds, nothing is raised."""
    jobs = deciding_jobs(snapshot)
    holdings = {job.id: holding_of(job, snapshot) for job in jobs}
    rooms = rooms_of(snapshot, holdings)
    columns = columns_of(jobs, holdings, rooms)
    current = np.array(
        [columns.held(one) if one.whole else -1 for one in holdings.values()],
        dtype=np.int64,
    )
    learned = learn(jobs, columns.by_kind.kinds, snapshot.measurements, snapshot.class_measurements)
    seen = seen_of(jobs, columns, snapshot)
    table = goodput_table(learned.models, columns.by_kind, seen.measured)
    prospects = prospects_of(
        jobs,
        current,
        learned,
        table,
        share=kept_share(jobs, columns, snapshot.hazard_per_h, restart_s=RESTART_S, pause_s=change_s),
        start_s=[change_s(job) for job in jobs],
    )
    notes = notes_of(snapshot, jobs, holdings, rooms, columns, current, seen, table, prospects)
    search = searches_of(
        snapshot,
        jobs,
        columns,
        allowed=~np.isin(notes.codes, (Note.NOT_ALLOWED, *NOTE_OF.values())),
        current=current,
        table=replace(table, goodput=prospects.goodput, low=prospects.low),
        learned=learned,
        young=[is_young(job, snapshot) for job in jobs],
        change_s=[change_s(job) for job in jobs],
    )
    notes.codes[search.opened(np.isin(notes.codes, _SEARCHABLE))] = Note.OFFERED
    rows, exempt = rows_of(columns, rooms, jobs, holdings, current)
    rows += cap_rows(snapshot, jobs, columns)
    given = _given(snapshot, jobs, holdings, columns, rows, current, notes, prospects.remaining, search)
    tenancy = tenancy_of(snapshot, jobs, columns, rooms, given.allowed, current)
    given = replace(given, rows=(*given.rows, *tenancy.rows), share=tenancy.share)
    return Round(
        snapshot=snapshot,
        jobs=jobs,
        holdings=holdings,
        rooms=rooms,
        columns=columns,
        learned=learned,
        table=table,
        tried=seen.tried,
        notes=notes.codes,
        bars=notes.bars,
        prospects=prospects,
        exempt=exempt,
        search=search,
        tenancy=tenancy,
        given=replace(given, thrift=search.unbiased(thrift(jobs, columns, rooms))),
    )


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
    notes: Notes,
    remaining: FloatArray,
    search: Searches,
) -> RoundInput:
    now, pools = snapshot.now, columns.pools
    served = [snapshot.served.get(job.id, Served()) for job in jobs]
    # Time is known by kind: it counts where the kind comes first.
    kinds = [
        pool.kind if index == 0 or pool.kind != pools[index - 1].kind else ""
        for index, pool in enumerate(pools)
    ]
    seconds = [[one.seconds.get(kind, 0.0) for kind in kinds] for one in served]
    waits = [holdings[job.id].size == 0 for job in jobs]
    moving = (search.target >= 0) & (search.target != current)
    return RoundInput(
        configurations=columns.configurations,
        rows=rows,
        goodput=search.preferred(_steadied(snapshot, jobs, columns, current, notes.hope, notes.bars)),
        allowed=(notes.codes == Note.OFFERED) | (notes.codes == Note.CURRENT),
        current=current,
        weight=np.array([weight_of(job) for job in jobs]),
        age_s=np.array([max(0.0, (now - job.submitted_at).total_seconds()) for job in jobs]),
        waited_s=np.array(
            [
                max(0.0, (now - job.state_since).total_seconds()) if waiting else 0.0
                for job, waiting in zip(jobs, waits, strict=True)
            ]
        ),
        served_s=np.array(seconds, dtype=np.float64).reshape(len(jobs), len(pools)),
        served_slot_s=np.array([one.slot_s for one in served]),
        changes=np.array([max(0, job.generation - 1) for job in jobs], dtype=np.int64),
        # What its user asks for is not weighed against what it costs; a search has weighed it.
        change_s=np.array(
            [
                0.0 if job.pinned_size or moves else change_s(job)
                for job, moves in zip(jobs, moving, strict=True)
            ]
        ),
        remaining=remaining,
        requested_slots=search.sizes(
            columns.configurations.slots, np.array([requested_slots(job) for job in jobs], dtype=np.int64)
        ),
        job_class=job_classes(jobs),
    )


def _steadied(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    columns: Columns,
    current: IntArray,
    goodput: FloatArray,
    bars: IntArray,
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
    barred = running[bars[running, current[running]] != Bar.NONE]
    steadied[barred, current[barred]] *= _BARRED
    for row, job in enumerate(jobs):
        if job.pinned_size is not None:
            steadied[row, columns.configurations.slots != job.pinned_size] *= _WORTHLESS
    return steadied
