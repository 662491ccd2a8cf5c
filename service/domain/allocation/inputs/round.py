"""Construction of a policy's input from a snapshot: jobs, configurations, goodput, and masks with their reasons."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.configurations.eligibility import weight_of
from service.domain.allocation.configurations.rows import rows_of
from service.domain.allocation.configurations.scope import RoundScope, scope_of
from service.domain.allocation.inputs.deadlines import deadlines_of
from service.domain.allocation.inputs.estimates import Estimates, estimates_of
from service.domain.allocation.inputs.notes import (
    MIN_GAIN,
    Note,
    Notes,
    contested,
    is_young,
    notes_of,
)
from service.domain.allocation.inputs.recurring import converged_samples, finished_jobs, length_classes
from service.domain.allocation.inputs.searching import Searches, searches_of
from service.domain.allocation.knapsack.problem import Row
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.limits.risk import thrift
from service.domain.allocation.limits.spending import SpendingBar, cap_rows, worth_of_a_sample
from service.domain.allocation.limits.tenancy import Tenancy, tenancy_of
from service.domain.cluster.snapshot import Served, Snapshot
from service.domain.contention.costs import change_s, restart_s
from service.domain.contention.promises import with_promises_held
from service.domain.contention.rules import Contest, contend
from service.domain.contention.tenure import evidence_of, tenure_of
from service.domain.jobs.job import Job
from service.domain.perf.learned import job_classes
from service.domain.policies.framework.policy import RoundInput
from service.domain.shared.arrays import BoolArray, FloatArray

_WORTHLESS = 0.01
"""Goodput factor for a pinned job at any size other than the requested one."""
_BARRED = 0.5
"""Goodput factor for a configuration that a job should leave but may have to keep."""
_SEARCHABLE = (Note.TOO_FAR, Note.NOT_WORTH_IT, Note.TOO_YOUNG, Note.NO_GAIN)
"""Exclusions that a search may override."""


@dataclass(frozen=True)  # without slots=True, which rules out cached_property
class Round:
    """A policy's input, with the facts from which it was made and from which decisions are explained.

    Attributes:
        scope: jobs and configurations.
        estimates: speeds of the jobs.
        notes: eligibility of the configurations.
        exempt: (J,) scattered jobs, which packing rows do not count.
        search: targets of the jobs that search their configuration.
        tenancy: quotas of the projects.
        contest: rules for competing jobs: seats, and configurations that wait.
        given: input of the policy, with hysteresis in its goodput.
    """

    scope: RoundScope
    estimates: Estimates
    notes: Notes
    exempt: BoolArray
    search: Searches
    tenancy: Tenancy
    contest: Contest
    given: RoundInput

    @property
    def snapshot(self) -> Snapshot:
        """State of the cluster on which the round decides."""
        return self.scope.snapshot

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs that the round decides about, in the order of their submission."""
        return self.scope.jobs

    @property
    def columns(self) -> Columns:
        """The configurations that the jobs could have."""
        return self.scope.columns

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
        for factor in (
            given.thrift,
            given.share,
            given.done,
            given.converged,
            given.stop_s,
            given.length_class,
        ):
            if factor is not None:
                digest.update(factor.tobytes())
        if given.finished is not None:
            for one in (given.finished.job_class, given.finished.work, given.finished.run_s):
                digest.update(one.tobytes())
            if given.finished.beyond is not None:
                digest.update(given.finished.beyond.tobytes())
        for claim in self.tenancy.claims:
            digest.update(f"{claim.project} {claim.wanted}".encode())
        return digest.hexdigest()


def build_round(snapshot: Snapshot) -> Round:
    """Return the round of a snapshot. The function raises no error, whatever the snapshot holds."""
    snapshot = with_promises_held(snapshot)
    scope = scope_of(snapshot)
    estimates = estimates_of(scope)
    notes = notes_of(scope, estimates)
    search = searches_of(scope, estimates, notes)
    opened = search.opened(np.isin(notes.codes, _SEARCHABLE))
    notes = replace(notes, codes=np.where(opened, Note.OFFERED, notes.codes))
    rows, exempt = rows_of(scope)
    rows += cap_rows(snapshot, scope.jobs, scope.columns)
    tenancy = tenancy_of(snapshot, scope.jobs, scope.columns, scope.capacities, notes.allowed, scope.current)
    given = _given(scope, notes, estimates, search, (*rows, *tenancy.rows))
    evidence = evidence_of(scope, estimates.measured, tenancy)
    contest = contend(
        replace(given, share=tenancy.share),
        tenure_of(scope),
        evidence,
        solve,
        deadlines_of(scope, estimates, notes, search, tenancy),
    )
    prices = search.unbiased(
        thrift(scope.jobs, scope.columns, scope.capacities, settled=snapshot.market_limits.keys())
    )
    return Round(
        scope=scope,
        estimates=estimates,
        notes=replace(notes, codes=contested(notes.codes, contest)),
        exempt=exempt,
        search=search,
        tenancy=tenancy,
        contest=contest,
        given=replace(contest.given, thrift=prices),
    )


def requested_slots(job: Job) -> int:
    """Return the size that a rigid scheduler would give the job: the allowed size nearest to the geometric mean."""
    elastic = job.spec.elastic
    square = float(elastic.min * elastic.max)
    return job.pinned_size or min(
        job.spec.allowed_sizes(), key=lambda size: (max(size**2 / square, square / size**2), size)
    )


def _given(
    scope: RoundScope, notes: Notes, estimates: Estimates, search: Searches, rows: tuple[Row, ...]
) -> RoundInput:
    """Return the input of a policy, before quotas change weights and the rules for competing jobs apply."""
    now, jobs, columns = scope.snapshot.now, scope.jobs, scope.columns
    served = [scope.snapshot.served.get(job.id, Served()) for job in jobs]
    # Service times are known by device kind; each is counted at the first pool of the kind.
    kinds = [pool.kind for pool in columns.pools]
    kinds = [kind if kind not in kinds[:index] else "" for index, kind in enumerate(kinds)]
    seconds = [[one.seconds.get(kind, 0.0) for kind in kinds] for one in served]
    moving = (search.target >= 0) & (search.target != scope.current)
    # Samples give no time if no speed is known.
    worth = np.where(estimates.known, worth_of_a_sample(scope.jobs, scope.current, estimates.table), 0.0)
    return RoundInput(
        configurations=columns.configurations,
        rows=rows,
        goodput=search.preferred(_steadied(scope, notes)),
        allowed=notes.allowed,
        current=scope.current,
        weight=np.array([weight_of(job) for job in jobs]),
        age_s=np.array([max(0.0, (now - job.submitted_at).total_seconds()) for job in jobs]),
        waited_s=np.array(
            [
                0.0 if holding.size else max(0.0, (now - job.state_since).total_seconds())
                for job, holding in zip(jobs, scope.holdings.values(), strict=True)
            ]
        ),
        served_s=np.array(seconds, dtype=np.float64).reshape(len(jobs), len(kinds)),
        served_slot_s=np.array([one.slot_s for one in served]),
        changes=np.array([max(0, job.generation - 1) for job in jobs], dtype=np.int64),
        # A change that the user requests is not charged its cost; a search has already considered it.
        change_s=np.array(
            [
                0.0 if job.pinned_size or moves else change_s(job, scope.usual)
                for job, moves in zip(jobs, moving, strict=True)
            ]
        ),
        remaining=estimates.prospects.remaining,
        requested_slots=search.sizes(
            columns.configurations.slots, np.array([requested_slots(job) for job in jobs], dtype=np.int64)
        ),
        job_class=job_classes(jobs),
        done=np.array([float(job.progress.work_done) for job in jobs]) * worth,
        converged=converged_samples(jobs) * worth,
        finished=finished_jobs(scope.snapshot.ended_runs, jobs, worth),
        stop_s=np.array([restart_s(job, scope.usual) for job in jobs], dtype=np.float64),
        length_class=length_classes(jobs),
    )


def _steadied(scope: RoundScope, notes: Notes) -> FloatArray:
    """Return the goodput (J, C) for policies, with hysteresis.

    Differences that may be noise are removed, so that jobs do not switch back and forth. For a pinned job
    only the requested size counts fully.
    """
    jobs, current, slots = scope.jobs, scope.current, scope.columns.configurations.slots
    goodput = notes.hope
    steadied = goodput.copy()
    running = np.flatnonzero(current >= 0)
    now = goodput[running, current[running]][:, None]
    young = np.array([is_young(job, scope.snapshot) for job in jobs], dtype=np.bool_)[running, None]
    near = (goodput[running] > now) & (young | (goodput[running] < MIN_GAIN * now))
    steadied[running] = np.where(near, now, goodput[running])
    if steadied.size:
        # If the model has no speed for a job, it excludes nothing: the job may run where it is and try other
        # configurations.
        steadied[~(goodput > 0).any(axis=1)] = slots
        held = steadied[running, current[running]]
        least = _WORTHLESS * steadied[running].max(axis=1)
        steadied[running, current[running]] = np.where(held > 0, held, least)
    barred = running[notes.bars[running, current[running]] != SpendingBar.NONE]
    steadied[barred, current[barred]] *= _BARRED
    for row, job in enumerate(jobs):
        if job.pinned_size is not None:
            steadied[row, slots != job.pinned_size] *= _WORTHLESS
    return steadied
