"""Search for a job's configuration while it trains: Scavenger online (Tyagi & Sharma, CCGrid'23, section IV). Pure.

A configuration is a device kind, a number of slots and, for a job that adapts its batch, a global batch. Its
measure is the time or the cost of the remaining progress: the remaining reference samples over the goodput.

The search visits a few configurations briefly, fits the models to what it measured there, and then chooses the
best one for the job's goal within its limits of time and cost. A visit changes the job in place, so it loses
no work. The search costs only the pauses and the extra time or money of visited configurations that are slower
or dearer than the chosen one. `BOUND` limits this cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from headway.contract.views.forecasts import SearchPhase
from service.domain.perf.searches.frontier import Objective, choose
from service.domain.perf.searches.visits import Mode, visits_of
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

BOUND: Final = 0.1
"""Largest share of the predicted run that a search may cost."""
VISIT_STEPS: Final = 20
"""Number of steps after which a configuration counts as measured."""
VISIT_S: Final = 3.0
"""Shortest duration of a visit in seconds: the service needs it to receive the steps and to decide."""
_MOST_VISIT_RATIO: Final = 3.0
"""Largest multiple of a visit's planned duration that is charged to the search.

A longer stay has other causes than the search.
"""
_MOVE_FACTOR: Final = 1.05
"""Factor by which a configuration must be better before a settled job moves. Smaller differences may be noise."""
_TIE_FACTOR: Final = 1.02
"""Factor within which the present configuration counts as good as the best one when the visits end."""
_LEAST: Final = 1e-9
"""Smallest value used for a limit that is used up, a duration, or a goodput."""
_MOST: Final = 1e15
"""Largest goodput that is believed."""
_MOST_P90_RATIO: Final = 1e6
"""Largest ratio of a run's P90 duration to its median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchGoal:
    """Goal of the search.

    `max_time_s` and `max_cost_usd` are the remainders of the limits, infinite where the job has none.
    """

    mode: Mode
    objective: Objective = "balanced"
    max_time_s: float = math.inf
    max_cost_usd: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Present knowledge of one job's configurations, arrays of shape (C,).

    All samples are reference samples: the progress of a sample in steps of the job's own batch.

    Attributes:
        allowed: configurations that the job may have.
        batch: their global batches; 0 for a job that does not adapt its batch.
        per_s, low: goodput, P50 and P10; 0 where the job cannot run.
        step_samples: progress of a step.
        steps, seconds, samples: training done on each configuration.
        shown: configurations that earlier jobs of the class have measured, if they agree with this job so far.
        modelled: True if the goodput is more than a guess, because the job or its class was measured.
    """

    allowed: BoolArray
    batch: IntArray
    per_s: FloatArray
    low: FloatArray
    step_samples: FloatArray
    steps: FloatArray
    seconds: FloatArray
    samples: FloatArray
    shown: BoolArray
    modelled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPosition:
    """State of the job in its search.

    `current` is the column that the job holds, and `settled_on` the column that an earlier step settled on;
    both are -1 for none. `young` is true if the job has only just changed. `left` (NaN if unknown) and `done`
    are reference samples. `change_s` is the cost of a change in seconds.
    """

    current: int
    settled_on: int
    young: bool
    left: float
    done: float
    change_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCost:
    """Time and cost of a search's visits, in total and as overhead over the same work on the best configuration.

    `share` is the overhead as a share of the whole run, in the quantity of the goal. It is None while the
    length of the run is unknown.
    """

    time_s: float = 0.0
    cost_usd: float = 0.0
    overhead_s: float = 0.0
    overhead_usd: float = 0.0
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStep:
    """Next step of a search.

    `target` is the column to hold now, or -1 where the search does not apply. `visits` counts the
    configurations that the search wants to measure, `visited` those that it has measured, `shown` those that
    jobs of its class have measured, and `skipped` those that it postpones because they would cost too much.
    """

    target: int
    phase: SearchPhase
    reason: str
    visited: int = 0
    visits: int = 0
    shown: int = 0
    skipped: int = 0
    spent: SearchCost = SearchCost()


def search_step(
    aim: SearchGoal, configurations: Configurations, known: Known, place: SearchPosition
) -> SearchStep:
    """Return the column of `configurations` (C,) that one job should hold now, with the reason.

    Visits start with the device kind that the job holds, and go from few slots to many, then from small
    batches to large ones. A visit that costs more than the rest of the bound is postponed. Where the length of the run is unknown, the samples trained
    so far stand for it, so visits become affordable as the job goes on.
    """
    view = _view(aim, configurations, known, place)
    if not view.runs.any():
        return SearchStep(
            target=-1, phase=SearchPhase.OFF, reason="no configuration is available to the job now"
        )
    wanted = visits_of(aim.mode, configurations, view.runs, known.batch)
    if not wanted.any() and not known.modelled:
        smallest = int(np.where(view.runs, configurations.slots, np.iinfo(np.int64).max).argmin())
        reason = "its class has no measurements and its search makes no visits, so it keeps its smallest size"
        return SearchStep(target=smallest, phase=SearchPhase.SETTLED, reason=reason)
    best, within = view.best()
    spent = view.spent(wanted, best)
    measured = known.steps >= VISIT_STEPS
    visited, visits = int((measured & wanted).sum()), int(wanted.sum())
    shown = wanted & ~measured & known.shown
    ahead = np.flatnonzero(wanted & ~measured & ~shown).tolist()
    affordable = [column for column in ahead if view.affords(column, best, spent)]
    target, phase, reason = (
        view.steady(best),
        SearchPhase.SETTLED,
        _reason(aim, within=within, skipped=len(ahead)),
    )
    if affordable:
        target, phase = view.nearest(affordable), SearchPhase.VISITING
        reason = f"visit {visited + 1} of {visits}"
        reason += f", without {int(shown.sum())} that its class has shown" if shown.any() else ""
    return SearchStep(
        target=target,
        phase=phase,
        reason=reason,
        visited=visited,
        visits=visits,
        shown=int(shown.sum()),
        skipped=len(ahead) - len(affordable),
        spent=spent,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """Search with the quantities that follow from its arguments, arrays of shape (C,).

    Attributes:
        runs: Columns that the job may have and can run on.
        usd_per_h: Prices, or the number of slots where no column has a price.
        time_s, cost_usd: Time and cost of the remaining work, or of one sample where the work is unknown. Infinite where
            the job cannot run.
        late: Ratio of the P90 of both to their P50.
    """

    aim: SearchGoal
    configurations: Configurations
    known: Known
    place: SearchPosition
    runs: BoolArray
    usd_per_h: FloatArray
    time_s: FloatArray
    cost_usd: FloatArray
    late: FloatArray

    def best(self) -> tuple[int, bool]:
        """Return the column that is best for the goal, and whether it keeps to the limits.

        Where no column keeps to them, return the one that exceeds them least. A tie goes to the column that is
        better in the other quantity.
        """
        over = np.where(self.runs, self.over(), np.inf)
        keeps = over <= 1.0
        time_s, cost_usd = (np.where(keeps, one, np.inf) for one in (self.time_s, self.cost_usd))
        found = choose(time_s, cost_usd, self.aim.objective)
        return (int(over.argmin()), False) if found is None else (found, True)

    def over(self) -> FloatArray:
        """Return the P90 of time and cost relative to their limits (C,): at most 1 within the limits."""
        if not math.isfinite(self.place.left):
            return np.zeros(self.runs.size)
        time_s, cost_usd = (np.where(self.runs, one, 0.0) * self.late for one in (self.time_s, self.cost_usd))
        return np.maximum(
            time_s / max(self.aim.max_time_s, _LEAST), cost_usd / max(self.aim.max_cost_usd, _LEAST)
        )

    def spent(self, wanted: BoolArray, best: int) -> SearchCost:
        """Return the cost of the visits so far. Training on the best column does not count."""
        time_s = cost_usd = overhead_s = overhead_usd = 0.0
        for column in np.flatnonzero(wanted & (self.known.steps > 0)).tolist():
            if column == best:
                continue
            seconds = float(self.known.seconds[column])
            counted = min(1.0, _MOST_VISIT_RATIO * self._visit_s(column) / max(seconds, _LEAST))
            slower_s, dearer_usd = self._beyond(
                counted * seconds, counted * float(self.known.samples[column]), column, best
            )
            pause_usd = self._usd(self.place.change_s, column)
            time_s += counted * seconds + self.place.change_s
            cost_usd += self._usd(counted * seconds, column) + pause_usd
            overhead_s += slower_s + self.place.change_s
            overhead_usd += dearer_usd + pause_usd
        return SearchCost(
            time_s=time_s,
            cost_usd=cost_usd,
            overhead_s=overhead_s,
            overhead_usd=overhead_usd,
            share=self._share(best, max(overhead_s, 0.0), max(overhead_usd, 0.0)),
        )

    def affords(self, column: int, best: int, spent: SearchCost) -> bool:
        """Return whether a visit keeps the search within `BOUND`.

        Staying at the present column and starting at a first one are always affordable.
        """
        if column == self.place.current or (self.place.current < 0 and self.place.done <= 0):
            return True
        seconds = self._visit_s(column)
        slower_s, dearer_usd = self._beyond(seconds, seconds * float(self.known.per_s[column]), column, best)
        # One change to the visited column and one away from it.
        pause_s = self.place.change_s * (1.0 if column == best else 2.0)
        share = self._share(
            best,
            max(spent.overhead_s, 0.0) + max(slower_s, 0.0) + pause_s,
            max(spent.overhead_usd, 0.0) + max(dearer_usd, 0.0) + self._usd(pause_s, column),
        )
        return share is not None and share <= BOUND

    def nearest(self, columns: list[int]) -> int:
        """Return the present column if it is among `columns`, else the smallest of its kind, else the
        smallest of another. Of one size, the smallest batch comes first.
        """
        kind, slots, now = self.configurations.kind, self.configurations.slots, self.place.current
        held, batch = kind[now] if now >= 0 else -1, self.known.batch
        return min(
            columns, key=lambda one: (one != now, kind[one] != held, slots[one], kind[one], batch[one])
        )

    def steady(self, best: int) -> int:
        """Return the column to settle on: the best one, unless the present one is as good within noise or is
        still young.
        """
        now = self.place.current
        if now < 0 or now == best or not self.runs[now]:
            return best
        stays = now == self.place.settled_on
        if stays and self.place.young:
            return now
        over = self.over()
        if over[now] > max(1.0, over[best]):
            return best
        weighed = {
            "time": (self.time_s,),
            "cost": (self.cost_usd,),
            "balanced": (self.time_s, self.cost_usd),
        }[self.aim.objective]
        factor = _MOVE_FACTOR if stays else _TIE_FACTOR
        return now if all(one[now] <= factor * one[best] for one in weighed) else best

    def _visit_s(self, column: int) -> float:
        """Return the seconds of a visit, from steps on this column, else from its estimated goodput."""
        known = self.known
        if known.steps[column] > 0:
            return max(VISIT_S, VISIT_STEPS * float(known.seconds[column] / known.steps[column]))
        return max(VISIT_S, VISIT_STEPS * float(known.step_samples[column] / known.per_s[column]))

    def _beyond(self, seconds: float, samples: float, column: int, best: int) -> tuple[float, float]:
        """Return the extra seconds and dollars of this training on `column` over `best`; negative where it saves."""
        there_s = samples / float(self.known.per_s[best])
        return seconds - there_s, self._usd(seconds, column) - self._usd(there_s, best)

    def _usd(self, seconds: float, column: int) -> float:
        return seconds * float(self.usd_per_h[column]) / 3600.0

    def _share(self, best: int, overhead_s: float, overhead_usd: float) -> float | None:
        """Return the overhead as a share of the whole run in the quantity of the goal, or None if the run has
        no length.
        """
        left = self.place.left if math.isfinite(self.place.left) else 0.0
        run_s = (self.place.done + left) / float(self.known.per_s[best])
        if run_s <= 0:
            return None
        run_usd = self._usd(run_s, best)
        of_time, of_cost = overhead_s / run_s, overhead_usd / run_usd if run_usd > 0 else 0.0
        return {"time": of_time, "cost": of_cost, "balanced": max(of_time, of_cost)}[self.aim.objective]


def _view(aim: SearchGoal, configurations: Configurations, known: Known, place: SearchPosition) -> _View:
    runs = known.allowed & (known.per_s >= _LEAST) & (known.per_s <= _MOST)
    per_s = np.where(runs, known.per_s, 1.0)
    left = max(place.left, 1.0) if math.isfinite(place.left) else 1.0
    priced = bool(configurations.usd_per_h.any())
    usd_per_h = configurations.usd_per_h if priced else configurations.slots.astype(np.float64)
    time_s = left / per_s
    low = np.where(runs & (known.low > 0), np.clip(known.low, per_s / _MOST_P90_RATIO, per_s), per_s)
    return _View(
        aim=aim,
        configurations=configurations,
        known=known,
        place=place,
        runs=runs,
        usd_per_h=usd_per_h,
        time_s=np.where(runs, time_s, np.inf),
        cost_usd=np.where(runs, time_s * usd_per_h / 3600.0, np.inf),
        late=per_s / low,
    )


def _reason(aim: SearchGoal, *, within: bool, skipped: int) -> str:
    what = {"time": "the fastest", "cost": "the cheapest", "balanced": "the best balanced"}
    chosen = f"{what[aim.objective]} known configuration"
    if not within:
        chosen = "no configuration keeps to the limits of its goal with 90 % probability; this one exceeds them least"
    elif math.isfinite(aim.max_time_s) or math.isfinite(aim.max_cost_usd):
        chosen += " within the limits of its goal"
    if skipped:
        visits = "visit" if skipped == 1 else "visits"
        chosen += f"; {skipped} {visits} skipped, which would cost more than {BOUND:.0%} of the run"
    return chosen
