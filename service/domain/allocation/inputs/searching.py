"""Searches of a round: the inputs of `search_step` for each searching job, and the use of its result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from headway.contract.spec import Resize
from headway.contract.views.forecasts import SearchPhase, SearchView
from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.configurations.eligibility import is_silent
from service.domain.allocation.configurations.scope import RoundScope
from service.domain.allocation.inputs.estimates import Estimates
from service.domain.allocation.inputs.notes import NOTE_OF, Note, Notes, is_young
from service.domain.allocation.inputs.search_points import points_of
from service.domain.allocation.limits.spending import worth_of_a_sample
from service.domain.cluster.snapshot import Snapshot
from service.domain.contention.costs import change_s
from service.domain.jobs.job import Job
from service.domain.perf.goal_target import work_left
from service.domain.perf.searches.search import BOUND, SearchGoal, SearchPosition, SearchStep, search_step
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_LESS = 0.9
"""Upper bound on goodput outside a search's target, as a fraction of the goodput at the target. The job thus
goes there if there is capacity, while its weight against other jobs stays the same.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searches:
    """Steps of the searching jobs by job id. `target` (J,) is the column that each search wants, -1 for none.

    `batches` has the global batch of that column by job id, for jobs that adapt it.
    """

    target: IntArray
    steps: Mapping[str, SearchStep] = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)

    def batch_at(self, job_id: str, row: int, column: int) -> int | None:
        """Return the global batch that a job's search wants at `column`; None if it wants another column or none."""
        return self.batches.get(job_id) if self.target[row] == column else None

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
    the notes exclude for their speed only, not those beyond the job's limits of money and time or its memory.
    """
    allowed = ~np.isin(notes.codes, (Note.NOT_ALLOWED, Note.NO_MEMORY, *NOTE_OF.values()))
    target = np.full(len(scope.jobs), -1, dtype=np.int64)
    steps: dict[str, SearchStep] = {}
    batches: dict[str, int] = {}
    worth = worth_of_a_sample(scope.jobs, scope.current, estimates.table)
    for row, job in enumerate(scope.jobs):
        if job.spec.goal.search is None:
            continue
        why_not = _why_not(job, scope.snapshot)
        if why_not:
            steps[job.id] = SearchStep(target=-1, phase=SearchPhase.OFF, reason=why_not)
            continue
        points = points_of(scope, estimates, row, allowed[row])
        column = int(scope.current[row])
        current = points.at(column, job.progress.global_batch)
        position = SearchPosition(
            current=current,
            settled_on=current if _is_settled(job, scope.columns, column) else -1,
            young=is_young(job, scope.snapshot),
            left=work_left(job.progress) * float(worth[row]),
            done=job.progress.work_done * float(worth[row]),
            change_s=change_s(job, scope.usual),
        )
        goal = _goal(job, scope.snapshot, scope.columns.by_kind)
        step = search_step(goal, points.configurations, points.known, position)
        if step.target >= 0:
            batch, target[row] = int(points.batch[step.target]), int(points.column[step.target])
            step = replace(step, target=int(target[row]))
            if batch:
                batches[job.id] = batch
        steps[job.id] = step
    return Searches(target=target, steps=steps, batches=batches)


def search_view(job: Job, step: SearchStep, columns: Columns, batch: int | None = None) -> SearchView:
    """Return a step in the form that the job stores and users see. `batch` is the global batch that it wants."""
    there, spent, configurations = step.target >= 0, step.spent, columns.by_kind
    return SearchView(
        mode=str(job.spec.goal.search),
        phase=step.phase,
        device_kind=configurations.kind_name(step.target) if there else None,
        slots=int(configurations.slots[step.target]) if there else None,
        global_batch=batch,
        place=columns.text_of(step.target) if there else "",
        visited=step.visited,
        visits=step.visits,
        shown=step.shown,
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


def _is_settled(job: Job, columns: Columns, column: int) -> bool:
    """Return True if the job holds the column and the batch on which an earlier step has settled."""
    before = job.progress.search
    if before is None or before.phase is not SearchPhase.SETTLED or column < 0:
        return False
    same_batch = before.global_batch in {None, job.progress.global_batch}
    return same_batch and before.place == columns.text_of(column)
