"""Dual of the allocation problem: the prices that minimise its upper bound.

At scaled prices y, `L(y) = sum(y) + sum over jobs of max(0, max over configurations of gain - y . demand)` is
an upper bound on the gain of any choice within the rows, for every y. L is convex and piecewise linear.
Cutting planes minimise it. In each iteration the jobs choose at some prices, their choice is a new cut of
each cell, and a linear program over prices and cells finds the minimum of the cuts. The next prices lie
between that point and the best known ones, which prevents oscillation (in-out separation: Ben-Ameur and Neto,
Networks 49, 2007).

CLP solves the program: GLOP ends as "abnormal" on some of these degenerate programs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]

from service.domain.allocation.knapsack.core import FULL, Core
from service.domain.shared.arrays import FloatArray, IntArray

_RESCALE = 1e-2
"""Fraction of the program's unit below which the remaining dual gap becomes the new unit. The linear program
is accurate to about 1e-8 of its unit.
"""
_FAR = 1e4
"""Distance in the program's unit beyond which prices and cuts are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dual:
    """Result of the dual.

    `prices` (R,) are scaled; `bound` is the least value found, an upper bound on the gain of any choice.
    `choices` (I, N) are the choices made in the iterations, and `weights` (I, G) their fractions in each
    cell: the mixture of the linear relaxation. The fractions of a cell sum to at most 1; the rest is having
    nothing.
    """

    prices: FloatArray
    bound: float
    choices: IntArray
    weights: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lowest:
    """The minimum of the cuts: scaled prices (R,) and value."""

    prices: FloatArray
    value: float


def minimise(core: Core, *, tolerance: float, rounds: int, expired: Callable[[], bool]) -> Dual:
    """Return prices whose bound is within `tolerance` of the minimum, relative to the whole objective."""
    rows, cells = core.demand.shape[0], core.counts.shape[1]
    unit = float(core.gain.max(axis=1).sum())
    program = _Program(rows=rows, cells=cells, unit=unit)
    between = 0.5 if cells < len(core.job) else 0.0
    prices = np.zeros(rows)
    best, bound = prices, np.inf
    choices: list[IntArray] = []
    for _ in range(rounds):
        choice, value = core.best_choice(prices)
        usage = core.cell_usage(choice)
        values = np.bincount(core.cell, weights=value, minlength=cells)
        choices.append(choice)
        reached = float(prices.sum() * FULL + values.sum())
        if reached < bound:
            best, bound = prices, reached
        program.add(values + usage @ prices, usage)
        enough = max(tolerance * abs(bound + core.idle), 1e-13 * unit)
        lowest = program.solve(best, enough)
        if lowest is None or bound - lowest.value <= enough or expired():
            break
        prices = between * best + (1.0 - between) * lowest.prices
    margin = 1e-13 * (unit + abs(core.idle))
    return Dual(prices=best, bound=bound + margin, choices=np.array(choices), weights=program.weights())


class _Program:
    """Linear program over the cuts: each states that a cell is worth at least `gain - usage . prices`.

    Its variables are distances from the best known prices and from the cells' values there, in a unit that
    shrinks with the gap.
    """

    def __init__(self, *, rows: int, cells: int, unit: float) -> None:
        self._rows, self._cells, self._unit = rows, cells, unit
        self._centre = np.zeros(rows)
        self._height = np.zeros(cells)
        self._gains: list[FloatArray] = []
        self._usages: list[FloatArray] = []
        self._cuts: list[tuple[int, int, pywraplp.Constraint]] = []
        self._start()

    def add(self, gains: FloatArray, usage: FloatArray) -> None:
        """Add the cuts of one choice: gains (G,) and usage (G, R)."""
        self._gains.append(gains)
        self._usages.append(usage)
        self._constrain(len(self._gains) - 1)

    def solve(self, best: FloatArray, enough: float) -> _Lowest | None:
        """Return the minimum of the cuts, or None if the solver failed. A gap of `enough` needs no smaller unit."""
        lowest = self._solve()
        heights = np.array(self._gains) - np.array(self._usages) @ best
        height = np.maximum(heights.max(axis=0), 0.0)
        gap = self._unit if lowest is None else best.sum() * FULL + height.sum() - lowest.value
        if lowest is None or enough < gap < _RESCALE * self._unit:
            self._unit, self._centre, self._height = gap, best, height
            self._start()
            for index in range(len(self._gains)):
                self._constrain(index)
            lowest = self._solve()
        return lowest

    def weights(self) -> FloatArray:
        """Return the fraction (I, G) of each choice in each cell at the last solution; 0 if it failed."""
        weights = np.zeros((len(self._gains), self._cells))
        for index, cell, cut in self._cuts:
            weights[index, cell] = cut.dual_value()
        return np.clip(weights, 0.0, 1.0)

    def _start(self) -> None:
        self._solver = pywraplp.Solver.CreateSolver("CLP")
        lowest = np.maximum(-self._centre / self._unit, -_FAR)
        self._price = [self._solver.NumVar(float(low), _FAR, "") for low in lowest]
        self._value = [self._solver.NumVar(float(low), np.inf, "") for low in -self._height / self._unit]
        objective = self._solver.Objective()
        objective.SetMinimization()
        for price in self._price:
            objective.SetCoefficient(price, FULL)
        for value in self._value:
            objective.SetCoefficient(value, 1.0)
        self._cuts = []

    def _constrain(self, index: int) -> None:
        usage = self._usages[index]
        least = (self._gains[index] - usage @ self._centre - self._height) / self._unit
        cuts: dict[int, pywraplp.Constraint] = {}
        for cell in np.flatnonzero((self._gains[index] > 0.0) & (least > -_FAR)).tolist():
            cuts[cell] = self._solver.Constraint(float(least[cell]), np.inf)
            cuts[cell].SetCoefficient(self._value[cell], 1.0)
        cells, rows = np.nonzero(usage)
        for cell, row, taken in zip(cells.tolist(), rows.tolist(), usage[cells, rows].tolist(), strict=True):
            if cell in cuts:
                cuts[cell].SetCoefficient(self._price[row], taken)
        self._cuts += [(index, cell, cut) for cell, cut in cuts.items()]

    def _solve(self) -> _Lowest | None:
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            self._cuts = []
            return None
        distance = np.array([price.solution_value() for price in self._price])
        value = self._centre.sum() * FULL + self._height.sum() + self._unit * self._solver.Objective().Value()
        return _Lowest(prices=np.maximum(self._centre + self._unit * distance, 0.0), value=float(value))
