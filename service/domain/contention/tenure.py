"""Translation of a snapshot's jobs into the inputs of the rules for competing jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from headway.contract.spec import Resize
from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.eligibility import explores
from service.domain.allocation.configurations.masks import MeasuredConfigurations
from service.domain.allocation.configurations.resuming import is_restarted
from service.domain.allocation.configurations.scope import RoundScope
from service.domain.allocation.limits.tenancy import Tenancy
from service.domain.cluster.contention_rules import RUN_COSTS, ContentionRules
from service.domain.cluster.snapshot import SlotKey
from service.domain.cluster.usual_costs import UNMEASURED, UsualCosts
from service.domain.contention.costs import restart_s
from service.domain.contention.evidence import Evidence
from service.domain.contention.guaranteed_jobs import Tenure
from service.domain.contention.promises import promised_slots
from service.domain.contention.rate import recent_changes, rests_s
from service.domain.jobs.job import Job, size_of
from service.domain.perf.convergence import epoch_samples
from service.domain.shared.arrays import FloatArray


def tenure_of(scope: RoundScope) -> Tenure:
    """Return the run times and waits of the jobs, and the facts that protect them."""
    jobs, holdings = scope.jobs, list(scope.holdings.values())
    rules, now = scope.snapshot.contention, scope.snapshot.now
    recent = [recent_changes(job.progress, now) for job in jobs]
    since = [job.progress.run_since or job.state_since for job in jobs]
    run_s = [
        max(0.0, (now - began).total_seconds()) if one.size else 0.0
        for one, began in zip(holdings, since, strict=True)
    ]
    return Tenure(
        run_s=np.array(run_s),
        min_run_s=np.array([min_run_s(job, rules.min_run_s, scope.usual) for job in jobs]),
        pinned=np.array(
            [job.pinned_size == one.size for job, one in zip(jobs, holdings, strict=True)], dtype=np.bool_
        ),
        rigid=np.array([job.spec.elastic.resize is Resize.NEVER for job in jobs], dtype=np.bool_),
        forced=np.array([bool(one.size) and not one.whole for one in holdings], dtype=np.bool_),
        priority=np.array([float(job.spec.priority) for job in jobs]),
        recent_s=np.array([sum(change.cost_s for change in one) for one in recent], dtype=np.float64),
        coming=_coming(scope),
        max_wait_s=rules.max_wait_s,
        leased=np.array([is_leased(job, rules, now) for job in jobs], dtype=np.bool_)
        if rules.leases
        else None,
        promised=np.array([bool(promised_slots(job, scope.snapshot)) for job in jobs], dtype=np.bool_),
        restart_s=np.array([restart_s(job, scope.usual) for job in jobs]),
        rests_s=np.array([rests_s(job.progress, now) for job in jobs]),
        leaving=_leaving(scope),
        left_s=np.array([reported_left_s(job) for job in jobs], dtype=np.float64),
    )


def reported_left_s(job: Job) -> float:
    """Return the seconds until a running job ends by its own reports; infinite without a length or a speed.

    A job says so from its first report on, long before its speed at a size counts as measured.
    """
    progress, end = job.progress, job.progress.work_end
    if job.state is not JobState.RUNNING or end is None or not progress.samples_per_s:
        return math.inf
    worth = progress.efficiency if progress.total_progress is not None and progress.efficiency else 1.0
    return max(0.0, end - progress.work_done) / (progress.samples_per_s * worth)


def is_leased(job: Job, rules: ContentionRules, now: datetime) -> bool:
    """Return True if the job has not yet run for a lease, or for an epoch, since it last started or changed.

    A script that reports no epochs has none.
    """
    progress, least_s = job.progress, rules.lease_s
    samples = epoch_samples(progress)
    if rules.whole_epochs and samples > 0 and progress.samples_per_s:
        least_s = max(least_s, samples / progress.samples_per_s)
    return 0.0 <= (now - job.state_since).total_seconds() < least_s


def _coming(scope: RoundScope) -> FloatArray:
    """Return the slots (K,) by pool that jobs in transition hold beyond their minimums."""
    snapshot, pools = scope.snapshot, list(scope.capacities)
    coming = np.zeros(len(pools))
    for job_id, keys in snapshot.holdings.items():
        job = snapshot.jobs.get(job_id)
        if job is None or job_id in scope.holdings or job.spec.elastic.resize is Resize.NEVER:
            continue
        if job.state is JobState.PENDING:  # slots that others release for it
            continue
        beyond = len(keys) - min(job.sizes)
        pool = snapshot.pool_of(keys[0])
        if beyond > 0 and pool is not None:
            coming[pools.index(pool.name)] += beyond
    return coming


def _leaving(scope: RoundScope) -> FloatArray:
    """Return the slots (K,) by pool that jobs are about to leave; those promised to waiting jobs are not among them."""
    snapshot, pools = scope.snapshot, list(scope.capacities)
    leaving = np.zeros(len(pools))
    for job_id, keys in snapshot.holdings.items():
        job = snapshot.jobs.get(job_id)
        kept = set(keys) if job is None or job_id in scope.holdings else _kept(job, keys)
        for key in keys:
            pool, node = snapshot.pool_of(key), snapshot.nodes.get(key.node_id)
            if key not in kept and pool is not None and node is not None and node.takes_jobs:
                leaving[pools.index(pool.name)] += 1
    return leaving


def _kept(job: Job, keys: Sequence[SlotKey]) -> set[SlotKey]:
    """Return those of the slots of a job in transition that it keeps. A generation without some of its slots ends."""
    if job.state is JobState.RESIZING:
        return {SlotKey(node, slot) for node, slots in (job.target or {}).items() for slot in slots}
    ends = job.state is JobState.RUNNING and job.switch is None and len(keys) < size_of(job.allocation)
    return set() if ends or job.state is JobState.CANCELLING else set(keys)


def min_run_s(job: Job, least_s: float, usual: UsualCosts = UNMEASURED) -> float:
    """Return the minimum run time in seconds before a job may be vacated for another job's gain.

    Parts of a restart that were not measured for the job take as long as `usual` (`costs.usual_costs`).
    """
    return max(least_s, RUN_COSTS * restart_s(job, usual))


def evidence_of(scope: RoundScope, measured: MeasuredConfigurations, tenancy: Tenancy) -> Evidence:
    """Return the sizes that were measured, and the number of nodes that explorations may use."""
    return Evidence(
        known=measured.known,
        exempt=np.array([not explores(job, scope.snapshot) for job in scope.jobs], dtype=np.bool_),
        entitled=np.any(
            [np.zeros(len(scope.jobs), dtype=np.bool_), *(claim.members for claim in tenancy.claims)], axis=0
        ),
        restarted=np.array([is_restarted(job) for job in scope.jobs], dtype=np.bool_),
        nodes=np.array([(one.room > 0).sum() for one in scope.capacities.values()], dtype=np.int64),
    )
