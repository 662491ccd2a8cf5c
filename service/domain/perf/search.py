"""Scavenger online (Tyagi & Sharma, CCGrid'23, section IV): a job's configuration, looked for while it trains. Pure.

A few short visits to the sizes that the models rest on, models fitted to what was measured there, then the best
configuration for the goal within its limits of time and cost. Visits are changes in place, so that no work is lost: what
the search costs is what slower or dearer sizes take beyond the chosen one, and the pauses. That is bounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from headway.contract.forecasts import SearchPhase
from service.domain.arrays import BoolArray, FloatArray
from service.domain.perf.scavenger import Goal, Grid, choose
from service.domain.policies.policy import Configurations

BOUND: Final = 0.1
"""Share of the predicted run that a search may cost."""
VISIT_STEPS: Final = 20
"""Steps after which a size counts as seen."""
VISIT_S: Final = 3.0
"""A visit takes at least so long until the service has heard of its steps and has decided."""
_LONGEST: Final = 3.0
"""Times what a visit takes: beyond that it was not the search that kept the job there."""
_MORE: Final = 1.05
"""Once it is settled, a job moves for at least this factor only, as everybody does: less may be noise."""
_EVEN: Final = 1.02
"""At the end of its visits it stays where it is, if that is as good as the best to this factor."""
_LEAST: Final = 1e-9
"""A limit that has been passed, a time and a speed count for so much at least,"""
_MOST: Final = 1e15
"""and a speed for so much at most."""
_LATEST: Final = 1e6
"""No run is expected to take more than this multiple of its median."""

Mode = Literal["full", "partial", "none"]
_GOALS: Final = {"time": Goal.TIME, "cost": Goal.COST, "balanced": Goal.KNEE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What is searched for. `max_time_s` and `max_cost_usd` are what is left of the limits, infinite without."""

    mode: Mode
    objective: Literal["time", "cost", "balanced"] = "balanced"
    max_time_s: float = math.inf
    max_cost_usd: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of one job's configurations (C,): `allowed`, plain samples per second with P10 (0 where it cannot
    run), and what was spent on each: `steps` and `seconds` of training, and the `samples` done in them.

    `modelled` says whether speeds are more than guesses: the job or its class was measured.
    """

    allowed: BoolArray
    per_s: FloatArray
    low: FloatArray
    steps: FloatArray
    seconds: FloatArray
    samples: FloatArray
    modelled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the job is: the column that it holds (-1: none), the one that an earlier step has settled on (-1: none), whether
    it was only just changed, samples left (NaN: unknown) and done, and what a change costs.
    """

    current: int
    settled_on: int
    young: bool
    left: float
    done: float
    change_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What the visits of a search have taken, in all and beyond the same work on the best configuration.

    `share` is the latter of the whole run, in what the goal is about; None while nobody knows how long the job runs.
    """

    time_s: float = 0.0
    cost_usd: float = 0.0
    overhead_s: float = 0.0
    overhead_usd: float = 0.0
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStep:
    """What to do next. `target` is the column to be on now, -1 where the search has no say.

    `visits` are the sizes that it wants to see, `visited` those that it has, `skipped` those that are put off since they
    would cost too much.
    """

    target: int
    phase: SearchPhase
    reason: str
    visited: int = 0
    visits: int = 0
    skipped: int = 0
    spent: Spent = Spent()


def search_step(aim: Aim, configurations: Configurations, known: Known, place: Place) -> SearchStep:
    """Where one job of `configurations` (C,) should be now, and why.

    Visits go from the kind that it holds to others, and from few slots to many. One that would cost more than is left of
    the bound is put off: where the length of the run is not known it is taken to be what was trained so far, so that
    visits become affordable as the job goes on.
    """
    view = _view(aim, configurations, known, place)
    if not view.runs.any():
        return SearchStep(
            target=-1, phase=SearchPhase.OFF, reason="there is no configuration that it may have now"
        )
    wanted = visits_of(aim.mode, configurations, view.runs)
    if not wanted.any() and not known.modelled:
        smallest = int(np.where(view.runs, configurations.slots, np.iinfo(np.int64).max).argmin())
        reason = "nothing is stored of its class, and it is to make no visits: it has its smallest size"
        return SearchStep(target=smallest, phase=SearchPhase.SETTLED, reason=reason)
    best, within = view.best()
    spent = view.spent(wanted, best)
    seen = known.steps >= VISIT_STEPS
    visited, visits = int((seen & wanted).sum()), int(wanted.sum())
    ahead = np.flatnonzero(wanted & ~seen).tolist()
    affordable = [column for column in ahead if view.affords(column, best, spent)]
    target, phase, reason = (
        view.steady(best),
        SearchPhase.SETTLED,
        _why(aim, within=within, skipped=len(ahead)),
    )
    if affordable:
        target, phase = view.nearest(affordable), SearchPhase.VISITING
        reason = f"visit {visited + 1} of {visits}"
    return SearchStep(
        target=target,
        phase=phase,
        reason=reason,
        visited=visited,
        visits=visits,
        skipped=len(ahead) - len(affordable),
        spent=spent,
    )


def visits_of(mode: Mode, configurations: Configurations, allowed: BoolArray) -> BoolArray:
    """(C,) what is to be visited: everything, nothing, or of each kind the extreme points. Of columns of one kind and size,
    which differ in their markets alone, only the cheapest.

    These are the smallest size, the largest, and the smallest of several slots: synchronisation grows along a line, and
    one slot has none.
    """
    wanted = np.zeros_like(allowed)
    if mode == "none":
        return wanted
    for kind in range(len(configurations.kinds)):
        columns = np.flatnonzero(allowed & (configurations.kind == kind))
        columns = columns[np.lexsort((configurations.usd_per_h[columns], configurations.slots[columns]))]
        columns = columns[np.unique(configurations.slots[columns], return_index=True)[1]]
        slots = configurations.slots[columns]
        if mode == "full":
            wanted[columns] = True
        elif columns.size:
            wanted[columns[[slots.argmin(), slots.argmax()]]] = True
            wanted[columns[np.where(slots > 1, slots, np.iinfo(np.int64).max).argmin()]] = True
    return wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """The search with what follows from its arguments (C,).

    Attributes:
        runs: where the job may be, and can.
        usd_per_h: prices; slots where nothing has one.
        time_s, cost_usd: of what is left, or of one sample where nobody knows how much that is; infinite where it cannot run.
        late: factor of both that is not exceeded in nine of ten cases.
    """

    aim: Aim
    configurations: Configurations
    known: Known
    place: Place
    runs: BoolArray
    usd_per_h: FloatArray
    time_s: FloatArray
    cost_usd: FloatArray
    late: FloatArray

    def best(self) -> tuple[int, bool]:
        """The column that is best for the goal, and whether it keeps to the limits. Where none does, the one that exceeds
        them least.
        """
        over = np.where(self.runs, self.over(), np.inf)
        keeps = over <= 1.0
        if not keeps.any():
            return int(over.argmin()), False
        grid = Grid(
            time_s=np.where(keeps, self.time_s, np.inf)[None],
            cost_usd=np.where(keeps, self.cost_usd, np.inf)[None],
        )
        found = choose(grid, _GOALS[self.aim.objective])
        return (int(over.argmin()), False) if found is None else (found[1], True)

    def over(self) -> FloatArray:
        """(C,) how far each is beyond the limits, in nine of ten cases: at most 1 within them."""
        if not math.isfinite(self.place.left):
            return np.zeros(self.runs.size)
        time_s, cost_usd = (np.where(self.runs, one, 0.0) * self.late for one in (self.time_s, self.cost_usd))
        return np.maximum(
            time_s / max(self.aim.max_time_s, _LEAST), cost_usd / max(self.aim.max_cost_usd, _LEAST)
        )

    def spent(self, wanted: BoolArray, best: int) -> Spent:
        """What the visits took so far; what was trained on the best is none."""
        time_s = cost_usd = overhead_s = overhead_usd = 0.0
        for column in np.flatnonzero(wanted & (self.known.steps > 0)).tolist():
            if column == best:
                continue
            seconds = float(self.known.seconds[column])
            counted = min(1.0, _LONGEST * self._visit_s(column) / max(seconds, _LEAST))
            slower_s, dearer_usd = self._beyond(
                counted * seconds, counted * float(self.known.samples[column]), column, best
            )
            pause_usd = self._usd(self.place.change_s, column)
            time_s += counted * seconds + self.place.change_s
            cost_usd += self._usd(counted * seconds, column) + pause_usd
            overhead_s += slower_s + self.place.change_s
            overhead_usd += dearer_usd + pause_usd
        return Spent(
            time_s=time_s,
            cost_usd=cost_usd,
            overhead_s=overhead_s,
            overhead_usd=overhead_usd,
            share=self._share(best, max(overhead_s, 0.0), max(overhead_usd, 0.0)),
        )

    def affords(self, column: int, best: int, spent: Spent) -> bool:
        """Whether a visit keeps the search within its bound. To stay where it is, or to start there, is none."""
        if column == self.place.current or (self.place.current < 0 and self.place.done <= 0):
            return True
        seconds = self._visit_s(column)
        slower_s, dearer_usd = self._beyond(seconds, seconds * float(self.known.per_s[column]), column, best)
        # There, and on from there.
        pause_s = self.place.change_s * (1.0 if column == best else 2.0)
        share = self._share(
            best,
            max(spent.overhead_s, 0.0) + max(slower_s, 0.0) + pause_s,
            max(spent.overhead_usd, 0.0) + max(dearer_usd, 0.0) + self._usd(pause_s, column),
        )
        return share is not None and share <= BOUND

    def nearest(self, columns: list[int]) -> int:
        """Of the columns, the present one, else the smallest of its kind, else of another."""
        kind, slots, now = self.configurations.kind, self.configurations.slots, self.place.current
        held = kind[now] if now >= 0 else -1
        return min(columns, key=lambda one: (one != now, kind[one] != held, slots[one], kind[one]))

    def steady(self, best: int) -> int:
        """The best column, or the present one where that is as good but for what may be noise, or has only just begun."""
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
        factor = _MORE if stays else _EVEN
        return now if all(one[now] <= factor * one[best] for one in weighed) else best

    def _visit_s(self, column: int) -> float:
        """Seconds of a visit, as the steps that were made there say, else as those that were made elsewhere."""
        known = self.known
        if known.steps[column] > 0:
            return max(VISIT_S, VISIT_STEPS * float(known.seconds[column] / known.steps[column]))
        tried = known.steps > 0
        if not tried.any():
            return VISIT_S
        step_samples = float((known.samples[tried] / known.steps[tried]).max())
        return max(VISIT_S, VISIT_STEPS * step_samples / float(known.per_s[column]))

    def _beyond(self, seconds: float, samples: float, column: int, best: int) -> tuple[float, float]:
        """Seconds and dollars that so much training on `column` takes beyond the same on `best`; below 0 where it saves."""
        there_s = samples / float(self.known.per_s[best])
        return seconds - there_s, self._usd(seconds, column) - self._usd(there_s, best)

    def _usd(self, seconds: float, column: int) -> float:
        return seconds * float(self.usd_per_h[column]) / 3600.0

    def _share(self, best: int, overhead_s: float, overhead_usd: float) -> float | None:
        """The share of the whole run that an overhead is, in what the goal is about."""
        left = self.place.left if math.isfinite(self.place.left) else 0.0
        run_s = (self.place.done + left) / float(self.known.per_s[best])
        if run_s <= 0:
            return None
        run_usd = self._usd(run_s, best)
        of_time, of_cost = overhead_s / run_s, overhead_usd / run_usd if run_usd > 0 else 0.0
        return {"time": of_time, "cost": of_cost, "balanced": max(of_time, of_cost)}[self.aim.objective]


def _view(aim: Aim, configurations: Configurations, known: Known, place: Place) -> _View:
    runs = known.allowed & (known.per_s >= _LEAST) & (known.per_s <= _MOST)
    per_s = np.where(runs, known.per_s, 1.0)
    left = max(place.left, 1.0) if math.isfinite(place.left) else 1.0
    priced = bool(configurations.usd_per_h.any())
    usd_per_h = configurations.usd_per_h if priced else configurations.slots.astype(np.float64)
    time_s = left / per_s
    low = np.where(runs & (known.low > 0), np.clip(known.low, per_s / _LATEST, per_s), per_s)
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


def _why(aim: Aim, *, within: bool, skipped: int) -> str:
    what = {"time": "the fastest", "cost": "the cheapest", "balanced": "the knee of time and cost"}
    chosen = f"{what[aim.objective]} of what is known"
    if not within:
        chosen = "nothing keeps to the limits of its goal with 90 %: this comes nearest"
    elif math.isfinite(aim.max_time_s) or math.isfinite(aim.max_cost_usd):
        chosen += " within the limits of its goal"
    if skipped:
        visits = "visit" if skipped == 1 else "visits"
        chosen += f"; {skipped} {visits} would have cost more than {BOUND:.0%} of the run"
    return chosen
