"""Searches of a round: the inputs of `search_step` for each searching job, and the use of its result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headway.contract.spec import Resize
from headway.contract.views.forecasts import SearchPhase, SearchView
from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.configurations.eligibility import is_silent
from service.domain.allocation.configurations.masks import columns_of_size
from service.domain.cluster.snapshot import Snapshot
from service.domain.jobs.job import Job
from service.domain.perf.learned import LearnedModels, batch_of
from service.domain.perf.search import BOUND, Known, SearchGoal, SearchPosition, SearchStep, search_step
from service.domain.perf.tables import GoodputTable
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
        """Return the size (J,) that each search wants, otherwise that of `others` (J,). `slots` (C,) belongs
        to the columns.
        """
        if not (self.target >= 0).any():
            return others
        return np.where(self.target >= 0, slots[self.target], others)


def searches_of(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    columns: Columns,
    *,
    allowed: BoolArray,
    current: IntArray,
    table: GoodputTable,
    learned: LearnedModels,
    young: Sequence[bool],
    change_s: Sequence[float],
) -> Searches:
    """Return the next step of every job (J,) that searches.

    A job of fixed size, or one that is never measured, has no target.
    """
    target = np.full(len(jobs), -1, dtype=np.int64)
    steps: dict[str, SearchStep] = {}
    for row, job in enumerate(jobs):
        if job.spec.goal.search is None:
            continue
        why_not = _why_not(job, snapshot)
        if why_not:
            steps[job.id] = SearchStep(target=-1, phase=SearchPhase.OFF, reason=why_not)
            continue
        place = SearchPosition(
            current=int(current[row]),
            settled_on=_settled_on(job, columns, int(current[row])),
            young=young[row],
            left=_left(job),
            done=float(job.progress.samples),
            change_s=change_s[row],
        )
        known = _known(
            snapshot,
            job,
            columns.by_kind,
            allowed[row],
            table,
            row,
            modelled=bool(learned.measured[row] or learned.related[row]),
        )
        steps[job.id] = search_step(_aim(job, snapshot, columns.by_kind), columns.by_kind, known, place)
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


def _aim(job: Job, snapshot: Snapshot, configurations: Configurations) -> SearchGoal:
    goal = job.spec.goal
    mode = goal.search
    assert mode is not None, f"{job.id} does not search"
    aim = SearchGoal(mode=mode, objective=goal.objective)
    if goal.deadline is not None:
        aim = replace(aim, max_time_s=(goal.deadline - snapshot.now).total_seconds())
    # If nothing has a price, a limit on money has no effect. A job that is not stored has spent nothing.
    if goal.max_cost_usd is not None and configurations.usd_per_h.any():
        limit = snapshot.limits.get(job.id)
        aim = replace(aim, max_cost_usd=goal.max_cost_usd if limit is None else limit.left_usd)
    return aim


def _settled_on(job: Job, columns: Columns, current: int) -> int:
    """Return the column that the job holds if an earlier step has settled there; otherwise -1."""
    before = job.progress.search
    settled = before is not None and before.phase is SearchPhase.SETTLED and current >= 0
    return current if settled and before is not None and before.place == columns.text_of(current) else -1


def _left(job: Job) -> float:
    total = job.progress.total_samples
    return math.nan if total is None else float(max(total - job.progress.samples, 0))


def _known(
    snapshot: Snapshot,
    job: Job,
    configurations: Configurations,
    allowed: BoolArray,
    table: GoodputTable,
    row: int,
    *,
    modelled: bool,
) -> Known:
    worth = np.where(table.efficiency[row] > 0, table.efficiency[row], 1.0)
    runs = table.efficiency[row] > 0
    steps, seconds, samples = (np.zeros(configurations.slots.size) for _ in range(3))
    for one in snapshot.measurements.get(job.id, ()):
        if one.believable:
            same = columns_of_size(one.device_kind, one.slots, configurations)
            steps[same] += one.steps
            samples[same] += one.steps * batch_of(one)
            seconds[same] += one.steps * batch_of(one) / one.samples_per_s
    return Known(
        allowed=allowed,
        per_s=np.where(runs, table.goodput[row] / worth, 0.0),
        low=np.where(runs, table.low[row] / worth, 0.0),
        steps=steps,
        seconds=seconds,
        samples=samples,
        modelled=modelled,
    )
