"""The jobs that must have slots in a round: minimums come before surplus, and turns bound every wait.

- While the minimums of all jobs fit, each job has a *seat*: at least its smallest configuration.
- While they do not fit, the first seats go to jobs that have not reached their minimum run time and to jobs
  whose size a user fixed. The next go to jobs for which others have released slots, to jobs that have waited for the
  maximum wait, and to the highest priorities (`priorities`). The policy decides about the rest.

A seat is a constraint of the allocation problem (`knapsack.guaranteed_solve`), so bound and prices take it into account.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row, Solve
from service.domain.contention.priorities import by_priority, by_turn, lifted
from service.domain.contention.turns import turns_now, turns_of
from service.domain.contention.worth import not_worth_a_stop, resting_jobs
from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.framework.speedup import kind_capacity
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_SAME_KIND = 0.25
"""Bonus in slots for a smallest configuration of the kind that the job already runs on."""
_ROUNDING = 1e-9
_LOOSE = 2.0
"""Factor on a job's slots within a turn that allows for sizes that do not fit together exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """Run times and waits of the jobs (J,) of a round.

    Attributes:
        run_s: seconds since the present run began; 0 for a waiting job.
        min_run_s: minimum run time in seconds before a job may be vacated for another job's gain.
        pinned: True for a job that runs at the size fixed by its user.
        rigid: True for a job that keeps its slots until its end once it has started (`resize: never`).
        forced: True for a job that must leave slots that it holds; nothing protects it.
        priority: priority in the job file.
        recent_s: seconds of training that unrequested changes of the last ten minutes cost.
        coming: (K,) slots of each kind that jobs in transition (starting, changing, stopping) hold beyond
            their minimums.
        max_wait_s: seconds after which a waiting job gets its turn.
        leased: True for a running job that keeps its slots by the rhythm of the policy, unless another job's minimum
            needs them; None if the policy has none.
        promised: True for a waiting job whose promised slots are all free (`promises`); None if there is none.
        restart_s: seconds from the order to stop to the next first step; None if unknown.
        rests_s: seconds for which a waiting job that was stopped for others leaves free slots to later ones, while the
            minimums do not fit; None if unknown.
        leaving: (K,) slots of each kind that jobs are leaving and that are promised to none; None if there are none.
        left_s: seconds until a running job ends by its own reports, infinite if unknown; None if all are unknown.
    """

    run_s: FloatArray
    min_run_s: FloatArray
    pinned: BoolArray
    rigid: BoolArray
    forced: BoolArray
    priority: FloatArray
    recent_s: FloatArray
    coming: FloatArray
    max_wait_s: float
    leased: BoolArray | None = None
    promised: BoolArray | None = None
    restart_s: FloatArray | None = None
    rests_s: FloatArray | None = None
    leaving: FloatArray | None = None
    left_s: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuaranteedJobs:
    """The jobs that must have slots.

    Attributes:
        columns: (J,) a configuration for each job with a seat, `NOTHING` for the others. Together they keep
            every row.
        firm: (J,) running jobs that may not be vacated now for another job's gain.
        fit: True if the minimums of all jobs fit together, now or once jobs in transition return their
            surplus.
        reserving: index of the waiting job for which slots are kept until it fits; None if there is none.
        smallest: (J,) smallest configuration of each job, `NOTHING` for a job without one.
        barred: (J,) jobs that may have nothing now: slots go to higher priorities, or the job would gain less from
            them than their holders lose, or it was just stopped for others (`worth`), or waits for slots that others
            are about to leave.
        coming: (J,) configuration of each job that waits for slots that others are about to leave; `NOTHING` for the rest.
        next_turn: (J,) order of the waiting jobs with a seat that precede others with one, the greatest first: for
            a guaranteed deadline, then on promised slots, then after the maximum wait; 0 for the others.
        turnless: (J,) jobs without a turn after the maximum wait: they would train for less time than it costs to stop
            jobs of higher priorities for them.
    """

    columns: IntArray
    firm: BoolArray
    fit: bool
    reserving: int | None
    smallest: IntArray
    barred: BoolArray
    coming: IntArray
    next_turn: IntArray
    turnless: BoolArray


def guaranteed_jobs_of(given: RoundInput, tenure: Tenure, solve: Solve, due: BoolArray) -> GuaranteedJobs:
    """Return the jobs that must have slots in this round.

    Jobs whose deadlines are guaranteed (`due`, (J,)) precede all others.

    The result is deterministic. With one device kind and slack capacity the time is linear in the number of
    jobs. Otherwise the function solves the allocation problem of the smallest configurations once.
    """
    holds = given.current != NOTHING
    smallest = smallest_columns(given)
    admitted = _admitted(given, smallest, solve, due)
    seats = _seated(given, given.rows, smallest, admitted.astype(np.float64), solve)
    fit = bool((seats != NOTHING)[admitted].all())
    if not fit and _keeps_rows(
        _rows_after_transitions(given, tenure.coming), np.where(admitted, smallest, NOTHING)
    ):
        # No job is stopped for slots that will be free in a moment: running jobs come first, then the others.
        fit = True
        seats = _seated(
            given, given.rows, smallest, np.where(holds | due, 2.0 + len(holds), 1.0) * admitted, solve
        )
    firm = holds & ~tenure.forced & ((tenure.run_s < tenure.min_run_s) | tenure.pinned)
    reserving, barred = None, np.zeros(len(holds), dtype=np.bool_)
    coming, turnless = np.full(len(holds), NOTHING, dtype=np.int64), np.zeros(len(holds), dtype=np.bool_)
    overdue = ~holds & admitted & (given.waited_s >= tenure.max_wait_s)
    promised = _promised(tenure, holds & False)
    if fit:
        overdue &= ~_behind(given, tenure, smallest, admitted & ~holds & ~overdue, firm)
    else:
        waits = admitted & ~due & ~promised
        rights = turns_of(tenure.priority, tenure.run_s, given.waited_s, tenure.min_run_s)
        since = (given.age_s[None, :] < tenure.run_s[:, None]) | (tenure.run_s >= tenure.min_run_s)[:, None]
        barred, coming = not_worth_a_stop(
            given,
            _once_left(given, tenure.leaving),
            tenure.restart_s,
            tenure.left_s,
            tenure.priority,
            smallest,
            waits,
            _stoppable(tenure.priority, firm, since) | (overdue & rights.may_stop & ~firm[:, None]),
            overdue,
        )
        turnless, overdue = overdue & barred & (coming == NOTHING), overdue & ~barred
        barred |= resting_jobs(tenure.priority, tenure.rests_s, ~holds & waits & ~overdue)
        rivals = admitted & ~barred
        firm &= ~lifted(
            given, firm & ~due, tenure.priority, smallest, among=rivals & ~promised, submitted_since=since
        )
        overdue &= ~_behind(given, tenure, smallest, rivals & ~holds & ~overdue, firm)
        fixed = tenure.pinned | tenure.rigid
        now, overdue = turns_now(
            given,
            smallest,
            tenure.priority,
            overdue,
            rights,
            first=promised & admitted,
            firm=firm,
            fixed=fixed,
        )
        turns = _turns(given, tenure, firm & admitted, now, promised & admitted)
        turns[due & admitted] = 1.0 + turns.sum()
        seats = _seated(given, given.rows, smallest, turns, solve)
        reserving = _reserving(given, tenure, smallest, overdue & (seats == NOTHING), firm)
        if reserving is None:
            seats, lower = by_priority(given, tenure.priority, smallest, seats, among=rivals)
            barred |= lower
    firm |= holds & due & ~tenure.forced
    return GuaranteedJobs(
        columns=seats,
        firm=firm,
        fit=fit,
        reserving=reserving,
        smallest=smallest,
        barred=barred,
        coming=coming,
        next_turn=_next_turn(given, ~holds & (seats != NOTHING), due, promised, overdue),
        turnless=turnless,
    )


def _stoppable(priority: FloatArray, firm: BoolArray, submitted_since: BoolArray) -> BoolArray:
    """Return True (J, J) where the second job may take the slots of the first one."""
    lower = priority[:, None] < priority[None, :]
    return np.asarray(
        (lower & (submitted_since | ~firm[:, None]))
        | ((priority[:, None] == priority[None, :]) & ~firm[:, None])
    )


def _next_turn(
    given: RoundInput, waiting: BoolArray, due: BoolArray, promised: BoolArray, overdue: BoolArray
) -> IntArray:
    """Return the order (J,) of the waiting jobs with seats that come before the others, the greatest first."""
    turns = np.zeros(len(waiting), dtype=np.int64)
    order = np.flatnonzero(waiting & (due | promised | overdue))
    order = order[np.lexsort((given.waited_s[order], promised[order], due[order]))]
    turns[order] = 1 + np.arange(len(order))
    return turns


def _promised(tenure: Tenure, nobody: BoolArray) -> BoolArray:
    return nobody if tenure.promised is None else tenure.promised


def _behind(
    given: RoundInput, tenure: Tenure, smallest: IntArray, waiting: BoolArray, firm: BoolArray
) -> BoolArray:
    """Return the jobs (J,) of a lower priority than a waiting job that could run and is not yet due for its turn."""
    stays = np.where(firm & tenure.pinned, given.current, NOTHING)
    for job in by_turn(waiting & (smallest != NOTHING), tenure.priority, given.waited_s):
        alone = stays.copy()
        alone[job] = smallest[job]
        if _keeps_rows(given.rows, alone):
            return np.asarray(tenure.priority < tenure.priority[job])
    return np.zeros(len(firm), dtype=np.bool_)


def _admitted(given: RoundInput, smallest: IntArray, solve: Solve, due: BoolArray) -> BoolArray:
    """Return the jobs (J,) that could have slots within the limits of their own projects.

    Jobs whose deadlines are guaranteed come first, then running jobs.
    """
    limits = tuple(row for row in given.rows if row.jobs is not None)
    counts = np.where(given.current != NOTHING, 2.0, 1.0)
    counts[due] = 1.0 + counts.sum()
    counts[smallest == NOTHING] = 0.0
    return np.asarray(_seated(given, limits, smallest, counts, solve) != NOTHING)


def latest_turn_s(given: RoundInput, tenure: Tenure, seats: GuaranteedJobs) -> FloatArray:
    """Return the upper bounds (J,) on the seconds until each waiting job has had its turn.

    The bound is 0 for running jobs, and infinite if jobs of fixed sizes leave a job no capacity. Overdue jobs
    take turns in the order of their waits. A turn lasts for the longest minimum run time. One turn goes to
    the jobs that run now, and more to the jobs ahead in the queue, which leave at most half of the slots
    unused (first fit). The bound ignores jobs of a higher priority that arrive later.
    """
    slots = given.configurations.slots
    holds = given.current != NOTHING
    waits = ~holds & (seats.smallest != NOTHING)
    order = by_turn(waits, tenure.priority, given.waited_s)
    fixed = tenure.pinned & holds
    capacity = float(kind_capacity(given).sum()) - float(slots[given.current[fixed]].sum())
    least = slots[seats.smallest[order]]
    # A job that never changes size may come first and then stay.
    rigid = np.where(tenure.rigid[order], least, 0)
    left = capacity - (rigid.sum() - rigid)
    turns = np.where(left >= least, 1.0 + np.ceil(_LOOSE * np.cumsum(least) / np.maximum(left, 1.0)), np.inf)
    bound_s = np.zeros(len(waits))
    # A waiting job of a higher priority has its turn first, however long the job has waited.
    overdue_s = np.full(len(waits), tenure.max_wait_s)
    below = tenure.priority < tenure.priority[holds].max(initial=-np.inf)
    overdue_s[below] = max(tenure.max_wait_s, tenure.min_run_s.max(initial=0.0))
    left_s = np.maximum.accumulate(np.maximum((overdue_s - given.waited_s)[order], 0.0))
    bound_s[order] = left_s + turns * tenure.min_run_s.max(initial=0.0)
    bound_s[seats.turnless] = np.inf
    return bound_s


def smallest_columns(given: RoundInput) -> IntArray:
    """Return the allowed configuration (J,) with the fewest slots, preferably on the kind that the job runs
    on.

    The result is `NOTHING` for a job without an allowed configuration.
    """
    configurations, current = given.configurations, given.current
    kind = np.where(current >= 0, configurations.kind[np.maximum(current, 0)], -1)
    size = configurations.slots - _SAME_KIND * (configurations.kind[None, :] == kind[:, None])
    size = np.where(given.allowed & (given.goodput > 0), size, np.inf)
    held = np.flatnonzero(current >= 0)
    # The configuration that a job holds comes before any other of the same size.
    size[held, current[held]] -= _SAME_KIND
    best = size.argmin(axis=1)
    return np.where(np.isfinite(size[np.arange(len(size)), best]), best, NOTHING)


def _turns(
    given: RoundInput, tenure: Tenure, firm: BoolArray, overdue: BoolArray, promised: BoolArray
) -> FloatArray:
    """Return the weight (J,) of each seat while the minimums do not fit: firm jobs first, then jobs with promised
    slots, then the longest wait.
    """
    turns = np.zeros(len(firm))
    order = by_turn(overdue, tenure.priority, given.waited_s)
    turns[order] = 1.0 + np.linspace(1.0, 0.0, len(order), endpoint=False)
    # Any number of turns weighs less than one job that keeps its slots.
    most = 2.0 * len(order) + 2.0
    turns[promised] = most
    turns[firm] = most * (1.0 + promised.sum())
    return turns


def _seated(
    given: RoundInput, rows: tuple[Row, ...], smallest: IntArray, counts: FloatArray, solve: Solve
) -> IntArray:
    """Return the smallest configurations (J,) of the jobs that fit the rows together, `NOTHING` for the others.

    The jobs are those with the greatest total weight `counts` (J,).
    """
    wanted = np.where(counts > 0, smallest, NOTHING)
    if _keeps_rows(rows, wanted):
        return wanted
    slots = given.configurations.slots
    least = np.where(smallest != NOTHING, slots[np.maximum(smallest, 0)], -1)
    offered = given.allowed & (given.goodput > 0) & (slots[None, :] == least[:, None])
    utility = np.where(offered, counts[:, None], -np.inf)
    utility[counts <= 0] = -np.inf
    # Among equals the earlier job is preferred, as far as the gap of the solver allows.
    earlier = np.linspace(1e-6, 0.0, len(counts), endpoint=False)
    solution = solve(
        Problem(
            utility=utility + earlier[:, None],
            idle=np.zeros(len(counts)),
            rows=rows,
            current=np.where((counts > 0) & (given.current == smallest), smallest, NOTHING),
        )
    )
    return solution.chosen


def _once_left(given: RoundInput, leaving: FloatArray | None) -> RoundInput:
    """Return the input with the slots (K,) that jobs are leaving."""
    if leaving is None or not leaving.any():
        return given
    return replace(given, rows=_rows_after_transitions(given, leaving))


def _rows_after_transitions(given: RoundInput, coming: FloatArray) -> tuple[Row, ...]:
    """Return the rows with the slots that jobs in transition are about to release, without packing rows."""
    kinds = len(given.configurations.kinds)
    raised = (
        replace(row, capacity=row.capacity + more)
        for row, more in zip(given.rows[:kinds], coming.tolist(), strict=True)
    )
    return (*raised, *(row for row in given.rows[kinds:] if not row.name.startswith("packing/")))


def _keeps_rows(rows: tuple[Row, ...], chosen: IntArray) -> bool:
    return all(row.taken(chosen) <= row.capacity + _ROUNDING for row in rows)


def _reserving(
    given: RoundInput, tenure: Tenure, smallest: IntArray, unseated: BoolArray, firm: BoolArray
) -> int | None:
    """Return the first overdue job without a seat that fits once minimum run times are over; None if there is
    none.
    """
    stays = np.where(firm & tenure.pinned, given.current, NOTHING)
    for job in by_turn(unseated, tenure.priority, given.waited_s):
        alone = stays.copy()
        alone[job] = smallest[job]
        if _keeps_rows(given.rows, alone):
            return int(job)
    return None
