"""Construction of a policy's input from a snapshot: jobs, configurations, goodput, and masks with their reasons."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headway.contract.spec import JobSpec
from service.domain.allocation.configurations.capacity import PoolCapacity, capacities_of
from service.domain.allocation.configurations.configurations import Columns, columns_of, rows_of
from service.domain.allocation.configurations.eligibility import Holding, deciding_jobs, holding_of, weight_of
from service.domain.allocation.configurations.masks import seen_of
from service.domain.allocation.inputs.notes import (
    MIN_GAIN,
    NOTE_OF,
    Note,
    Notes,
    contested,
    is_young,
    notes_of,
)
from service.domain.allocation.inputs.searching import Searches, searches_of
from service.domain.allocation.knapsack.problem import Row
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.limits.risk import kept_share, thrift
from service.domain.allocation.limits.spending import Prospects, SpendingBar, cap_rows, prospects_of
from service.domain.allocation.limits.tenancy import Tenancy, tenancy_of
from service.domain.cluster.snapshot import Served, Snapshot
from service.domain.contention.costs import RESTART_S, change_s
from service.domain.contention.rules import Contest, contend
from service.domain.contention.tenure import evidence_of, tenure_of
from service.domain.jobs.job import Job
from service.domain.perf.learned import LearnedModels, job_classes, learn
from service.domain.perf.tables import GoodputTable, goodput_table
from service.domain.policies.framework.policy import RoundInput
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_WORTHLESS = 0.01
"""Goodput factor for a pinned job at any size other than the requested one."""
_BARRED = 0.5
"""Goodput factor for a configuration that a job should leave but may have to keep."""
_SEARCHABLE = (Note.TOO_FAR, Note.NOT_WORTH_IT, Note.TOO_YOUNG, Note.NO_GAIN)
"""Exclusions that a search may override."""


@dataclass(frozen=True)  # without slots=True, which rules out cached_property
class Round:
    """Jobs (J) and configurations (C) of a round, with all facts about them.

    Attributes:
        jobs: the jobs that the round decides about, in the order of their submission.
        holdings: by job id.
        tried: (J, C) configurations for which the job has measurements.
        notes: (J, C) a `Note` for each.
        exempt: (J,) scattered jobs, which packing rows do not count.
        search: targets of the jobs that search their configuration.
        bars: (J, C) a `SpendingBar` for each: the limits of money and time.
        prospects: goodput after spot interruptions, and remaining work.
        tenancy: quotas of the projects.
        contest: rules for competing jobs: seats, and configurations that wait.
        table: estimated goodput without interruptions; `given` has the values for policies, with hysteresis.
    """

    snapshot: Snapshot
    jobs: tuple[Job, ...]
    holdings: Mapping[str, Holding]
    rooms: Mapping[str, PoolCapacity]
    columns: Columns
    learned: LearnedModels
    table: GoodputTable
    tried: BoolArray
    notes: IntArray
    bars: IntArray
    prospects: Prospects
    exempt: BoolArray
    search: Searches
    tenancy: Tenancy
    contest: Contest
    given: RoundInput

    def usable_slots(self, spec: JobSpec) -> dict[str, int]:
        """Return all slots in service of each kind that a job may run on, in the markets that it accepts."""
        usable: dict[str, int] = {}
        for room in self.rooms.values():
            if room.pool.serves(spec):
                usable[room.pool.kind] = usable.get(room.pool.kind, 0) + int(room.slots.sum())
        return usable

    @cached_property
    def digest(self) -> str:
        """Digest of the policy's whole input; equal digests give equal choices."""
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
    """Return the round of a snapshot. The function raises no error, whatever the snapshot holds."""
    jobs = deciding_jobs(snapshot)
    holdings = {job.id: holding_of(job, snapshot) for job in jobs}
    rooms = capacities_of(snapshot, holdings)
    columns = columns_of(jobs, holdings, rooms)
    current = np.array([columns.held(one) if one.whole else -1 for one in holdings.values()], dtype=np.int64)
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
    tenure = tenure_of(snapshot, jobs, holdings, rooms)
    contest = contend(given, tenure, evidence_of(snapshot, jobs, seen, rooms, tenancy), solve)
    return Round(
        snapshot=snapshot,
        jobs=jobs,
        holdings=holdings,
        rooms=rooms,
        columns=columns,
        learned=learned,
        table=table,
        tried=seen.tried,
        notes=contested(notes.codes, contest),
        bars=notes.bars,
        prospects=prospects,
        exempt=exempt,
        search=search,
        tenancy=tenancy,
        contest=contest,
        given=replace(contest.given, thrift=search.unbiased(thrift(jobs, columns, rooms))),
    )


def requested_slots(job: Job) -> int:
    """Return the size that a rigid scheduler would give the job: the allowed size nearest to the geometric mean."""
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
    # Service times are known by device kind; each is counted at the first pool of the kind.
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
        # A change that the user requests is not charged its cost; a search has already considered it.
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
    """Return the goodput (J, C) for policies, with hysteresis.

    Differences that may be noise are removed, so that jobs do not switch back and forth. For a pinned job
    only the requested size counts fully.
    """
    steadied = goodput.copy()
    running = np.flatnonzero(current >= 0)
    now = goodput[running, current[running]][:, None]
    young = np.array([is_young(job, snapshot) for job in jobs], dtype=np.bool_)[running, None]
    near = (goodput[running] > now) & (young | (goodput[running] < MIN_GAIN * now))
    steadied[running] = np.where(near, now, goodput[running])
    if steadied.size:
        # If the model has no speed for a job, it excludes nothing: the job may run where it is and try other
        # configurations.
        steadied[~(goodput > 0).any(axis=1)] = columns.configurations.slots
        held = steadied[running, current[running]]
        least = _WORTHLESS * steadied[running].max(axis=1)
        steadied[running, current[running]] = np.where(held > 0, held, least)
    barred = running[bars[running, current[running]] != SpendingBar.NONE]
    steadied[barred, current[barred]] *= _BARRED
    for row, job in enumerate(jobs):
        if job.pinned_size is not None:
            steadied[row, columns.configurations.slots != job.pinned_size] *= _WORTHLESS
    return steadied
