"""Greedy allocation by the marginal gain of time to completion (Optimus: Peng et al., EuroSys'18, section 4.1)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.framework.queueing import Capacity, ordered_choices, turns_first
from service.domain.policies.framework.speedup import finite, kind_capacity, known_length, usable_goodput
from service.domain.shared.arrays import FloatArray, IntArray

_LEAST_S: Final = 600.0
"""Minimum seconds on the smallest size that a job of unknown length is assumed to have ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginalGain:
    """Allocation of one round: the smallest size for every job, then slots where they spare most time.

    `unsure` is the factor on the gains of jobs whose work is neither declared nor fitted. `fitted` (J,) is the
    work that loss curves predict, in reference samples, NaN without one; None if no job has one.
    """

    name: str
    unsure: float
    fitted: FloatArray | None = None

    def choose(self, given: RoundInput, solve: Solve) -> Choices:  # noqa: ARG002  # the greedy order is the choice
        """Return the choices of the greedy order. A choice is worth the seconds that it spares."""
        to_go_s, factor = self._to_go_s(given)
        chosen, capacity = _first_sizes(given, to_go_s)
        _grow(given, to_go_s, factor, chosen, capacity)
        runs = np.isfinite(to_go_s)
        longest_s = np.where(runs, to_go_s, 0.0).max(initial=0.0)
        utility = np.where(runs, 2.0 * longest_s - np.where(runs, to_go_s, 0.0), -np.inf)
        return ordered_choices(given, chosen, utility, "seconds spared")

    def _to_go_s(self, given: RoundInput) -> tuple[FloatArray, FloatArray]:
        """Return the seconds to go (J, C), infinite where a job cannot run, and the factor (J,) on its gains.

        A job of unknown length has as many slot-seconds ahead as behind, at its most efficient size.
        """
        goodput, slots = usable_goodput(given), np.maximum(given.configurations.slots, 1)
        runs = goodput > 0
        smallest = np.where(runs, slots, np.inf).min(axis=1, initial=np.inf)
        least_slot_s = _LEAST_S * np.where(np.isfinite(smallest), smallest, 0.0)
        behind = np.maximum(finite(given.served_slot_s), least_slot_s)
        work = behind * (goodput / slots).max(axis=1, initial=0.0)
        sure = known_length(given)
        if self.fitted is not None:
            predicted = ~sure & np.isfinite(self.fitted)
            work = np.where(predicted, self.fitted, work)
            sure = sure | predicted
        work = np.where(known_length(given), finite(given.remaining), work)
        to_go_s = np.where(runs, work[:, None] / np.where(runs, goodput, 1.0), np.inf)
        return to_go_s, np.where(sure, 1.0, self.unsure)


def _first_sizes(given: RoundInput, to_go_s: FloatArray) -> tuple[IntArray, Capacity]:
    """Return the smallest size (J,) of each job that fits, in the order of submission, and the capacity left.

    Among kinds with equal sizes, the kind that the job holds goes first, then the fastest.
    """
    capacity = Capacity(given.rows, *to_go_s.shape)
    chosen = np.full(len(to_go_s), NOTHING, dtype=np.int64)
    kind, slots = given.configurations.kind, given.configurations.slots
    for job in turns_first(given, np.arange(len(to_go_s))).tolist():
        columns = np.flatnonzero(np.isfinite(to_go_s[job]))
        held = given.current[job]
        elsewhere = kind[columns] != (kind[held] if held != NOTHING else NOTHING)
        columns = columns[np.lexsort((columns != held, to_go_s[job, columns], elsewhere, slots[columns]))]
        fitting = columns[capacity.fits(job, columns)]
        if len(fitting):
            chosen[job] = fitting[0]
            capacity.take(job, int(fitting[0]))
    return chosen, capacity


def _grow(
    given: RoundInput, to_go_s: FloatArray, factor: FloatArray, chosen: IntArray, capacity: Capacity
) -> None:
    """Let jobs grow in `chosen` (J,), one size at a time, where a share of the slots spares most seconds.

    A job stops growing when its next size does not fit or spares nothing.
    """
    slots, shared = given.configurations.slots, np.maximum(kind_capacity(given), 1.0)

    def step(job: int) -> tuple[float, int, int] | None:
        """Return the negative gain of the next size, the job and the column of that size."""
        now = int(chosen[job])
        kind = given.configurations.kind[now]
        larger = (given.configurations.kind == kind) & (slots > slots[now]) & np.isfinite(to_go_s[job])
        if not larger.any():
            return None
        next_size = np.flatnonzero(larger & (slots == slots[larger].min()))
        column = int(next_size[to_go_s[job, next_size].argmin()])
        share = (slots[column] - slots[now]) / shared[kind]
        gain = float(factor[job] * (to_go_s[job, now] - to_go_s[job, column]) / share)
        return (-gain, job, column) if gain > 0 else None

    steps = [one for job in np.flatnonzero(chosen != NOTHING).tolist() if (one := step(job)) is not None]
    heapq.heapify(steps)
    while steps:
        _, job, column = heapq.heappop(steps)
        if capacity.swap(job, int(chosen[job]), column):
            chosen[job] = column
            following = step(job)
            if following is not None:
                heapq.heappush(steps, following)
