"""Rounding of the dual solution to a choice that keeps every row: mixture, repair, and improvement by
switches.

All steps compare losses: the worth of a job's best choice at the prices less that of another choice. The gain
of any choice is the dual bound less the losses and less the price of the unused capacity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.domain.allocation.knapsack.core import FULL, Core
from service.domain.allocation.knapsack.prices import Dual
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.shared.arrays import FloatArray, IntArray

_MAX_NUMBERS = 200_000
"""Maximum number of switches times rows that are considered."""
_MIN_SWITCHES = 6_000
"""Minimum number of switches that are considered."""
_PASSES = 40
"""Maximum number of passes over the switches of one phase."""
_PAIRED = 200
"""Number of switches on each side that are tried in pairs."""
_LEAST_GAIN = 1e-12
"""Least change of the excess, or relative change of the gain, that is not a rounding error."""
_GOLDEN = 0.6180339887498949
"""Golden ratio less one: its multiples, modulo one, spread evenly over any prefix (Kronecker sequence)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Possible choices of the jobs (E,), job by job.

    Each has a column or `NOTHING`, its gain, its loss at the prices, and its demand on the rows (E, R). All
    choices with a loss below `horizon` are included, except for jobs without alternatives.
    """

    job: IntArray
    column: IntArray
    gain: FloatArray
    loss: FloatArray
    demand: FloatArray
    horizon: float


def switches(core: Core, prices: FloatArray) -> Switches:
    """Return the choices with the least loss, as many as are worth considering."""
    count, width = core.gain.shape
    costs = core.cell_prices(prices)
    net = np.zeros((count, width + 1))
    np.subtract(core.gain, costs[0] if len(costs) == 1 else costs[core.cell], out=net[:, :width])
    best = net.argmax(axis=1)
    places = np.arange(count) * (width + 1) + best
    loss = (net[np.arange(count), best][:, None] - net).reshape(-1)
    loss[places] = np.inf
    wanted = max(_MIN_SWITCHES, _MAX_NUMBERS // max(1, len(core.row)))
    horizon = np.inf if wanted >= len(loss) else float(np.partition(loss, wanted)[wanted])
    entries = np.flatnonzero(loss < horizon)
    if len(entries) < wanted and horizon < np.inf:
        entries = np.concatenate([entries, np.flatnonzero(loss == horizon)[: wanted - len(entries)]])
    loss[places] = 0.0
    entries = np.union1d(entries, places[np.unique(entries // (width + 1))])
    job, column = entries // (width + 1), entries % (width + 1)
    column[column == width] = NOTHING
    return Switches(
        job=job,
        column=column,
        gain=np.where(column == NOTHING, 0.0, core.gain[job, column]),
        loss=loss[entries],
        demand=_demand(core, job, column),
        horizon=horizon,
    )


def mixed(core: Core, dual: Dual) -> IntArray:
    """Return the rounded mixture of the relaxation.

    In each cell, the choices of the iterations share the jobs on which they disagree in proportion to their
    weights. Rows may be exceeded slightly.
    """
    choice = np.full(len(core.job), NOTHING)
    bounds = np.searchsorted(core.cell, np.arange(core.counts.shape[1] + 1))
    for cell, (start, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        used = np.flatnonzero(dual.weights[:, cell] > 1e-9)
        options = np.concatenate([dual.choices[used, start:end], np.full((1, end - start), NOTHING)])
        ends = np.cumsum(dual.weights[used, cell])
        order = np.lexsort(options)
        place = np.empty(len(order))
        place[order] = (np.arange(len(order)) * _GOLDEN + 0.5) % 1.0
        chosen = np.searchsorted(ends + 1e-9, place)
        choice[start:end] = options[chosen, np.arange(end - start)]
    return choice


def improve(
    core: Core, moves: Switches, choice: IntArray, *, pairs: int = 0, goal: float = np.inf
) -> IntArray:
    """Return a choice within the rows, near the given one, that no single switch improves.

    While the choice gains less than `goal`, the function also tries `pairs` pairs of switches.
    """
    state = _State(core, moves, choice.copy())
    state.repair()
    state.drop()
    state.fill()
    for _ in range(pairs):
        if state.gain >= goal or not state.pair():
            break
        state.fill()
    return state.choice


class _State:
    """A choice with its gains and demands, changed by one switch after another."""

    def __init__(self, core: Core, moves: Switches, choice: IntArray) -> None:
        self._core, self._moves, self.choice = core, moves, choice
        self._usage = core.usage(choice)
        self._demand = _demand(core, np.arange(len(choice)), choice)
        self._gain = core.gain_of(choice)

    @property
    def gain(self) -> float:
        """Total gain of the choice."""
        return float(self._gain.sum())

    def repair(self) -> None:
        """Make the switches that reduce the excess of rows most for the least gain lost."""
        for _ in range(_PASSES):
            exceeded = np.flatnonzero(self._usage > FULL)
            if not len(exceeded):
                return
            takers = np.nonzero(self._demand[:, exceeded])[0]
            entries = np.flatnonzero(np.isin(self._moves.job, takers))
            freed = self._excess(self._usage) - self._excess(self._usage + self._more(entries))
            lost = np.maximum(self._gain[self._moves.job[entries]] - self._moves.gain[entries], 0.0)
            useful = np.flatnonzero(freed > _LEAST_GAIN)
            order = useful[np.argsort(lost[useful] / freed[useful], kind="stable")]
            if not self._apply(entries[order], repairing=True):
                return

    def drop(self) -> None:
        """Set the jobs to nothing that gain least for their demand on an exceeded row, until the row is kept."""
        for row in range(len(self._usage)):
            excess = self._usage[row] - FULL
            if excess <= 0.0:
                continue
            holders = np.flatnonzero(self._demand[:, row] > 0.0)
            order = holders[np.argsort(self._gain[holders] / self._demand[holders, row], kind="stable")]
            needed = int(np.searchsorted(np.cumsum(self._demand[order, row]), excess)) + 1
            for job in order[:needed].tolist():
                self._set(job, NOTHING, 0.0, np.zeros(len(self._usage)))

    def fill(self) -> None:
        """Make the switches that gain more and still fit, in ascending order of their loss."""
        for _ in range(_PASSES):
            better = np.flatnonzero(self._moves.gain > self._gain[self._moves.job])
            better = better[(self._usage + self._more(better) <= FULL).all(axis=1)]
            order = better[np.lexsort((-self._moves.gain[better], self._moves.loss[better]))]
            if not self._apply(order, repairing=False):
                return

    def pair(self) -> bool:
        """Make the pair of switches of different jobs that gains most and fits. Return True if there was one."""
        moves = self._moves
        gained = moves.gain - self._gain[moves.job]
        other = moves.column != self.choice[moves.job]
        up, down = (
            side[np.argsort(moves.loss[side], kind="stable")[:_PAIRED]]
            for side in (np.flatnonzero(other & (gained > 0.0)), np.flatnonzero(other & (gained <= 0.0)))
        )
        if not len(up) or not len(down):
            return False
        together = gained[up][:, None] + gained[down]
        together[moves.job[up][:, None] == moves.job[down]] = 0.0
        more, less = self._usage + self._more(up), self._more(down)
        for row in np.flatnonzero(more.max(axis=0) + less.max(axis=0) > FULL).tolist():
            together[more[:, row][:, None] + less[:, row] > FULL] = 0.0
        best = int(together.argmax())
        if together.flat[best] <= _LEAST_GAIN * (1.0 + self.gain):
            return False
        for index in (int(up[best // len(down)]), int(down[best % len(down)])):
            self._make(index)
        return True

    def _more(self, entries: IntArray) -> FloatArray:
        """Return the additional demand of these switches on each row."""
        more: FloatArray = self._moves.demand[entries] - self._demand[self._moves.job[entries]]
        return more

    def _excess(self, usage: FloatArray) -> FloatArray:
        """Return the total excess over all rows."""
        excess: FloatArray = np.maximum(usage - FULL, 0.0).sum(axis=-1)
        return excess

    def _apply(self, order: IntArray, *, repairing: bool) -> bool:
        """Make the switches in this order, the first of each job only, while they serve their purpose.

        Return True if at least one was made.
        """
        touched: set[int] = set()
        excess = float(self._excess(self._usage))
        for index in order.tolist():
            job = int(self._moves.job[index])
            if job in touched:
                continue
            after = float(self._excess(self._usage + self._moves.demand[index] - self._demand[job]))
            if after < excess - _LEAST_GAIN if repairing else after <= 0.0:
                touched.add(job)
                self._make(index)
                excess = after
            if repairing and excess <= 0.0:
                break
        return bool(touched)

    def _make(self, index: int) -> None:
        self._set(
            int(self._moves.job[index]),
            int(self._moves.column[index]),
            float(self._moves.gain[index]),
            self._moves.demand[index],
        )

    def _set(self, job: int, column: int, gain: float, demand: FloatArray) -> None:
        self._usage = self._usage + demand - self._demand[job]
        self.choice[job], self._gain[job], self._demand[job] = column, gain, demand


def _demand(core: Core, job: IntArray, column: IntArray) -> FloatArray:
    """Return the demand (E, R) of the columns on each row when those jobs have them."""
    demand: FloatArray = core.demand.T[column] * core.counts.T[core.cell[job]]
    demand[column == NOTHING] = 0.0
    return demand
