"""Searches of a round: the inputs of `search_step` for each searching job, and the use of its result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from headway.contract.spec import Resize
from headway.contract.views.forecasts import SearchPhase, SearchView
from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.configurations.eligibility import is_silent
from service.domain.allocation.configurations.masks import columns_of_size
from service.domain.allocation.configurations.scope import RoundScope
from service.domain.allocation.inputs.estimates import Estimates
from service.domain.allocation.inputs.notes import NOTE_OF, Note, Notes, is_young
from service.domain.cluster.snapshot import Snapshot
from service.domain.contention.costs import change_s
from service.domain.jobs.job import Job
from service.domain.perf.learned import batch_of
from service.domain.perf.search import BOUND, Known, SearchGoal, SearchPosition, SearchStep, search_step
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_LESS = 0.9
"""Upper bound on goodput outside a search's target, as a fraction of the goodput at the target. The job thus
goes there if there is capacity, while its weight against other jobs stays the same.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searches:
    """Steps of the searching jobs by job id. `target` (J,) is the column that each search wants, -1 for none."""

    target: IntArray
    steps: Mapping[str, SearchStep] = field(default_factory=dict)

    def opened(self, mask: BoolArray) -> BoolArray:
        """Return the part of `mask` (J, C) that searches want."""
        wanted = np.zeros_like(mask)
        rows = np.flatnonzero(self.target >= 0)
        wanted[rows, self.target[rows]] = True
        return wanted & mask

    def preferred(self, goodput: FloatArray) -> FloatArray:
        """Return the goodput (J, C) for policies, with its maximum at the target of each search."""
        rows = np.flatnonzero(self.target >= 0)
        there = goodput[rows, self.target[rows]][:, None]
        result = goodput.copy()
        result[rows] = np.where(there > 0, np.minimum(goodput[rows], _LESS * there), goodput[rows])
        result[rows, self.target[rows]] = goodput[rows, self.target[rows]]
        return result

    def unbiased(self, thrift: FloatArray | None) -> FloatArray | None:
        """Return the price factors (J, C), with 1 for jobs whose search has considered prices itself."""
        return None if thrift is None else np.where((self.target >= 0)[:, None], 1.0, thrift)

    def sizes(self, slots: IntArray, others: IntArray) -> IntArray:
        """Return the size (J,) that each search wants, and the job's entry of `others` (J,) without a target.

        `slots` (C,) are the sizes of the columns.
        """
        return np.where(self.target >= 0, np.append(slots, 0)[self.target], others)


def searches_of(scope: RoundScope, estimates: Estimates, notes: Notes) -> Searches:
    """Return the next step of every job (J,) that searches.

    A job of fixed size, or one that is never measured, has no target. A search may visit configurations that
    the notes exclude for their speed only, not those beyond the job's limits of money and time.
    """
    allowed = ~np.isin(notes.codes, (Note.NOT_ALLOWED, *NOTE_OF.values()))
    target = np.full(len(scope.jobs), -1, dtype=np.int64)
    steps: dict[str, SearchStep] = {}
    for row, job in enumerate(scope.jobs):
        if job.spec.goal.search is None:
            continue
        why_not = _why_not(job, scope.snapshot)
        if why_not:
            steps[job.id] = SearchStep(target=-1, phase=SearchPhase.OFF, reason=why_not)
            continue
        current, by_kind = int(scope.current[row]), scope.columns.by_kind
        position = SearchPosition(
            current=current,
            settled_on=_settled_on(job, scope.columns, current),
            young=is_young(job, scope.snapshot),
            left=_left(job),
            done=float(job.progress.samples),
            change_s=change_s(job),
        )
        known = _known(scope, estimates, row, allowed[row])
        steps[job.id] = search_step(_goal(job, scope.snapshot, by_kind), by_kind, known, position)
        target[row] = steps[job.id].target
    return Searches(target=target, steps=steps)


def search_view(job: Job, step: SearchStep, columns: Columns) -> SearchView:
    """Return a step in the form that the job stores and users see."""
    there, spent, configurations = step.target >= 0, step.spent, columns.by_kind
    return SearchView(
        mode=str(job.spec.goal.search),
        phase=step.phase,
        device_kind=configurations.kinds[int(configurations.kind[step.target])] if there else None,
        slots=int(configurations.slots[step.target]) if there else None,
        place=columns.text_of(step.target) if there else "",
        visited=step.visited,
        visits=step.visits,
        skipped=step.skipped,
        time_s=round(spent.time_s, 3),
        cost_usd=spent.cost_usd,
        overhead_s=round(spent.overhead_s, 3),
        overhead_usd=spent.overhead_usd,
        overhead_share=spent.share,
        bound=BOUND,
        reason=step.reason,
    )


def _why_not(job: Job, snapshot: Snapshot) -> str:
    if job.pinned_size is not None:
        return f"its size is fixed at {job.pinned_size} by request"
    if job.spec.elastic.resize is Resize.NEVER:
        return "its size never changes (elastic.resize: never)"
    if is_silent(job, snapshot):
        return "its script reports no measurements: it does not use the library"
    return ""


def _goal(job: Job, snapshot: Snapshot, configurations: Configurations) -> SearchGoal:
    goal = job.spec.goal
    assert goal.search is not None, f"{job.id} does not search"
    max_time_s = max_cost_usd = math.inf
    if goal.deadline is not None:
        max_time_s = (goal.deadline - snapshot.now).total_seconds()
    # If nothing has a price, a limit on money has no effect. A job that is not stored has spent nothing.
    if goal.max_cost_usd is not None and configurations.usd_per_h.any():
        limit = snapshot.limits.get(job.id)
        max_cost_usd = goal.max_cost_usd if limit is None else limit.left_usd
    return SearchGoal(
        mode=goal.search, objective=goal.objective, max_time_s=max_time_s, max_cost_usd=max_cost_usd
    )


def _settled_on(job: Job, columns: Columns, current: int) -> int:
    """Return the column that the job holds if an earlier step has settled there; otherwise -1."""
    before = job.progress.search
    if before is None or before.phase is not SearchPhase.SETTLED or current < 0:
        return -1
    return current if before.place == columns.text_of(current) else -1


def _left(job: Job) -> float:
    """Return the samples left, in plain samples; NaN if the script does not report the total."""
    total = job.progress.total_samples
    return math.nan if total is None else float(max(total - job.progress.samples, 0))


def _known(scope: RoundScope, estimates: Estimates, row: int, allowed: BoolArray) -> Known:
    """Return the measurements and estimates of a job, in plain samples per second."""
    configurations, prospects = scope.columns.by_kind, estimates.prospects
    efficiency = estimates.table.efficiency[row]
    runs = efficiency > 0
    worth = np.where(runs, efficiency, 1.0)
    steps, seconds, samples = (np.zeros(configurations.slots.size) for _ in range(3))
    for one in scope.snapshot.measurements.get(scope.jobs[row].id, ()):
        if one.believable:
            same = columns_of_size(one.device_kind, one.slots, configurations)
            steps[same] += one.steps
            samples[same] += one.steps * batch_of(one)
            seconds[same] += one.steps * batch_of(one) / one.samples_per_s
    return Known(
        allowed=allowed,
        per_s=np.where(runs, prospects.goodput[row] / worth, 0.0),
        low=np.where(runs, prospects.low[row] / worth, 0.0),
        steps=steps,
        seconds=seconds,
        samples=samples,
        modelled=bool(estimates.known[row]),
    )
