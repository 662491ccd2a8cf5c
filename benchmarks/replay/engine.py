"""The replay itself: rounds in virtual time, with the policies and the solver of the service.

A job that keeps its configuration has its own clock: seconds of training from its start to any point of progress on
that configuration, piecewise linear over epochs. So progress and end are exact however long a round is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.replay.profiles import Application
from benchmarks.replay.worlds import Rules, World
from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.arrays import FloatArray, IntArray
from service.domain.policies.policy import Choices, Policy, RoundInput


class BrokenChoice(Exception):
    """A policy gave out more than there is, or what a job may not have."""


@dataclass(slots=True)
class Run:
    """One job of the replay, as it is now. All times are since the start of the stream."""

    submit_s: float
    application: Application
    application_index: int
    requested_slots: int
    served_s: FloatArray
    """(K,) by device kind."""
    column: int = NOTHING
    progress: float = 0.0
    """Reference samples, at `since_s`."""
    since_s: float = 0.0
    """When `column` was given; training goes on from `trains_from_s`."""
    trains_from_s: float = 0.0
    held_until_s: float = 0.0
    """When it last held slots, or its submit."""
    served_slot_s: float = 0.0
    changes: int = 0
    started_s: float = math.inf
    finished_s: float = math.inf
    ends_s: float = math.inf
    """When it will have finished if it keeps what it has."""

    @property
    def total(self) -> float:
        """Reference samples of the whole job."""
        return float(self.application.boundaries[-1])

    def progress_at(self, now_s: float) -> float:
        """Reference samples done."""
        trained_s = now_s - self.trains_from_s
        if self.column == NOTHING or trained_s <= 0.0:
            return self.progress
        clock_s = self._clock_s()
        done_s = np.interp(self.progress, self.application.boundaries, clock_s)
        return float(np.interp(done_s + trained_s, clock_s, self.application.boundaries))

    def give(self, column: int, now_s: float, pause_s: float) -> None:
        """Changes what it holds; training goes on after the pause."""
        self.progress = self.progress_at(now_s)
        self.column, self.since_s, self.trains_from_s = column, now_s, now_s + pause_s
        self.ends_s = math.inf
        if column != NOTHING:
            self.started_s = min(self.started_s, now_s)
            clock_s = self._clock_s()
            left_s = clock_s[-1] - np.interp(self.progress, self.application.boundaries, clock_s)
            self.ends_s = self.trains_from_s + float(left_s)

    def _clock_s(self) -> FloatArray:
        """(E + 1,) seconds of training until each boundary with what it holds."""
        work = np.diff(self.application.boundaries)
        return np.concatenate(([0.0], np.cumsum(work / self.application.goodput[:, self.column])))


@dataclass(frozen=True, slots=True)
class Record:
    """What happened until `end_s`. `decisions_s`: real seconds of every decision; `load`: the time of each round, and how
    many jobs it had.
    """

    end_s: float

    runs: tuple[Run, ...]
    decisions_s: tuple[float, ...]
    load: tuple[tuple[float, int], ...]


@dataclass(slots=True)
class Replay:
    """A world under one policy. `clock` gives real seconds, to time decisions; nothing depends on it."""

    world: World
    policy: Policy
    solve: Solve
    rules: Rules
    clock: Callable[[], float]
    _runs: list[Run] = field(init=False)
    _active: list[Run] = field(init=False, default_factory=list)
    _decisions_s: list[float] = field(init=False, default_factory=list)
    _load: list[tuple[float, int]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        kinds = len(self.world.configurations.kinds)
        self._runs = [
            Run(
                job.submit_s,
                self.world.applications[job.application],
                job.application,
                job.requested_slots,
                np.zeros(kinds),
                held_until_s=job.submit_s,
            )
            for job in self.world.jobs
        ]

    def run(self) -> Record:
        """Everything, until the last job ended or `give_up_s` is over. Raises BrokenChoice."""
        waiting = list(reversed(self._runs))
        last_s = max((run.submit_s for run in self._runs), default=0.0) + self.rules.give_up_s
        now_s = 0.0
        while (waiting or self._active) and now_s <= last_s:
            now_s = self._next_s(now_s, waiting[-1].submit_s if waiting else math.inf)
            self._advance(now_s)
            while waiting and waiting[-1].submit_s <= now_s:
                self._active.append(waiting.pop())
            if self._active:
                self._round(now_s)
        return Record(now_s, tuple(self._runs), tuple(self._decisions_s), tuple(self._load))

    def _next_s(self, now_s: float, arrival_s: float) -> float:
        """When the next round is due."""
        interval_s = self.rules.interval_s
        from_s = now_s if self._active else max(now_s, math.nextafter(arrival_s, -math.inf))
        tick_s = (math.floor(from_s / interval_s) + 1) * interval_s
        if not self.rules.on_events:
            return tick_s
        return min(tick_s, arrival_s, *(run.ends_s for run in self._active))

    def _advance(self, now_s: float) -> None:
        """Lets time pass for all jobs that hold slots, and those end that are done."""
        configurations = self.world.configurations
        for run in self._active:
            if run.column != NOTHING:
                until_s = min(now_s, run.ends_s)
                held_s = until_s - run.held_until_s
                run.served_s[configurations.kind[run.column]] += held_s
                run.served_slot_s += held_s * float(configurations.slots[run.column])
                run.held_until_s = until_s
                if run.ends_s <= now_s:
                    run.finished_s, run.progress, run.column = run.ends_s, run.total, NOTHING
        self._active = [run for run in self._active if math.isinf(run.finished_s)]

    def _round(self, now_s: float) -> None:
        given = self._input(now_s)
        began_s = self.clock()
        choices = self.policy.choose(given, self.solve)
        self._decisions_s.append(self.clock() - began_s)
        self._load.append((now_s, len(self._active)))
        self._check(given, choices)
        for run, column in zip(self._active, choices.chosen.tolist(), strict=True):
            if column != run.column:
                self._change(run, column, now_s)

    def _change(self, run: Run, column: int, now_s: float) -> None:
        live_s = self.rules.live_pause_s
        pause_s = run.application.restart_s if run.column == NOTHING or live_s is None else live_s
        if column != NOTHING:
            run.changes += math.isfinite(run.started_s)
            run.held_until_s = now_s
        run.give(column, now_s, pause_s)

    def _check(self, given: RoundInput, choices: Choices) -> None:
        chosen = choices.chosen
        has = chosen != NOTHING
        if not given.allowed[np.flatnonzero(has), chosen[has]].all():
            raise BrokenChoice(f"{self.policy.name} gave a job what it may not have")
        for row in given.rows:
            taken = float(row.demand[chosen[has]].sum())
            if taken > row.capacity * (1 + 1e-9):
                raise BrokenChoice(f"{self.policy.name} gave out {taken:g} of {row.capacity:g} {row.name}")

    def _input(self, now_s: float) -> RoundInput:
        active = self._active
        progress = [run.progress_at(now_s) for run in active]
        goodput = np.stack(
            [
                run.application.goodput[_epoch(run.application, done)]
                for run, done in zip(active, progress, strict=True)
            ]
        )
        live_s = self.rules.live_pause_s
        return RoundInput(
            configurations=self.world.configurations,
            rows=self.world.rows,
            goodput=goodput,
            allowed=goodput > 0.0,
            current=_integers([run.column for run in active]),
            weight=np.ones(len(active)),
            age_s=np.array([now_s - run.submit_s for run in active]),
            waited_s=np.array([now_s - run.held_until_s for run in active]),
            served_s=np.stack([run.served_s for run in active]),
            served_slot_s=np.array([run.served_slot_s for run in active]),
            changes=_integers([run.changes for run in active]),
            change_s=np.array([run.application.restart_s if live_s is None else live_s for run in active]),
            remaining=np.array(
                [
                    run.total - done if self.rules.lengths_known else math.nan
                    for run, done in zip(active, progress, strict=True)
                ]
            ),
            requested_slots=_integers([run.requested_slots for run in active]),
            job_class=_integers([run.application_index for run in active]),
        )


def _epoch(application: Application, progress: float) -> int:
    epoch = int(np.searchsorted(application.boundaries, progress, side="right")) - 1
    return min(epoch, len(application.goodput) - 1)


def _integers(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
