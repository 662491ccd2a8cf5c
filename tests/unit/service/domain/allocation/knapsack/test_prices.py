"""Dual prices: hand calculations, agreement with the linear relaxation, and bounds that always hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]

from service.domain.allocation.knapsack.core import Core
from service.domain.allocation.knapsack.prices import Dual, minimise
from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row
from tests.unit.service.domain.allocation.knapsack.problems import (
    best_gain,
    core_of,
    gainful,
    problem,
    random_problem,
)

CLOSE = 1e-6


def prices_of(core: Core, *, tolerance: float = 1e-10, rounds: int = 200, expired: bool = False) -> Dual:
    return minimise(core, tolerance=tolerance, rounds=rounds, expired=lambda: expired)


def bound_at(core: Core, prices: np.ndarray) -> float:
    """The formula of the dual: the prices of all capacity, and each job's best gain less its price."""
    net = core.gain - core.cell_prices(prices)[core.cell]
    return float(prices.sum() + np.maximum(net.max(axis=1), 0.0).sum())


def relaxed_gain(core: Core) -> float:
    """The optimum of the linear relaxation, in which jobs may have fractions of columns."""
    solver = pywraplp.Solver.CreateSolver("CLP")
    solver.Objective().SetMaximization()
    rows = [solver.Constraint(-solver.infinity(), 1.0) for _ in core.row]
    for job, gains in enumerate(core.gain):
        once = solver.Constraint(-solver.infinity(), 1.0)
        for column in np.flatnonzero(gains > 0.0).tolist():
            share = solver.NumVar(0.0, 1.0, "")
            once.SetCoefficient(share, 1.0)
            solver.Objective().SetCoefficient(share, float(gains[column]))
            for row, limit in enumerate(rows):
                taken = core.demand[row, column] * core.counts[row, core.cell[job]]
                limit.SetCoefficient(share, float(taken))
    assert solver.Solve() == pywraplp.Solver.OPTIMAL
    return float(solver.Objective().Value())


def slots(capacity: float, *demand: float, jobs: list[bool] | None = None) -> Row:
    return Row(
        name="slots",
        capacity=capacity,
        demand=np.array(demand),
        jobs=None if jobs is None else np.array(jobs),
    )


@pytest.mark.parametrize(
    ("utility", "capacity", "demand", "bound"),
    [
        # One slot for two jobs: the better job has it, at a price between their gains.
        ([[3.0], [2.0]], 1.0, [1.0], 3.0),
        # Room for both: the row has no price, and both gains count.
        ([[3.0], [2.0]], 2.0, [1.0], 5.0),
        # Two jobs want 2 of 3 slots each: the relaxation runs one and a half of them.
        ([[2.0], [2.0]], 3.0, [2.0], 3.0),
        # A quarter of the second job fits beside the first.
        ([[4.0], [2.0]], 5.0, [4.0], 4.5),
        # The best mix of sizes of one job: half small, half large.
        ([[2.0, 3.0]], 1.5, [1.0, 2.0], 2.0),
        # Four equal jobs whose second slot is worth half of their first.
        ([[2.0, 3.0]] * 4, 6.0, [1.0, 2.0], 10.0),
    ],
)
def test_the_bound_is_the_optimum_of_the_relaxation(
    utility: list[list[float]], capacity: float, demand: list[float], bound: float
) -> None:
    core = core_of(problem(utility, (slots(capacity, *demand),)))
    assert prices_of(core).bound == pytest.approx(bound, rel=CLOSE)


def test_a_price_lies_between_the_gains_with_and_without_one_more_slot() -> None:
    core = core_of(problem([[3.0], [2.0]], (slots(1.0, 1.0),)))
    (price,) = prices_of(core).prices
    assert 2.0 - CLOSE <= price <= 3.0 + CLOSE


def test_a_row_with_room_has_no_price() -> None:
    core = core_of(problem([[3.0], [2.0]], (slots(1.0, 1.0), slots(9.0, 1.0))))
    prices = prices_of(core).prices
    assert prices[0] > 1.0
    assert prices[1] == pytest.approx(0.0, abs=CLOSE)


def test_each_project_pays_for_its_own_quota() -> None:
    rows = (slots(1.0, 1.0, jobs=[True, True, False]), slots(1.0, 1.0, jobs=[False, False, True]))
    core = core_of(problem([[5.0], [4.0], [7.0]], rows))
    dual = prices_of(core)
    assert dual.bound == pytest.approx(12.0, rel=CLOSE)
    assert 4.0 - CLOSE <= dual.prices[0] <= 5.0 + CLOSE


def test_without_rows_every_job_has_its_best() -> None:
    core = core_of(problem([[3.0, 4.0], [2.0, 1.0]]))
    dual = prices_of(core)
    assert dual.bound == pytest.approx(6.0)
    assert dual.prices.shape == (0,)
    assert dual.choices[-1].tolist() == [1, 0]


@given(gainful(), st.integers(1, 4))
@settings(max_examples=40)
def test_prices_agree_with_the_linear_relaxation(given: Problem, cells: int) -> None:
    core = core_of(given, cells=cells)
    dual = prices_of(core)
    assert dual.bound == pytest.approx(relaxed_gain(core), rel=CLOSE)
    assert dual.bound == pytest.approx(bound_at(core, dual.prices), rel=CLOSE)
    assert (dual.prices >= 0.0).all()


@given(gainful(), st.sampled_from([1, 2, 5]), st.booleans())
@settings(max_examples=25)
def test_no_choice_gains_more_than_the_bound_however_early_it_stops(
    given: Problem, rounds: int, expired: bool
) -> None:
    core = core_of(given)
    dual = prices_of(core, rounds=rounds, expired=expired)
    assert dual.bound >= best_gain(core)
    assert len(dual.choices) <= (1 if expired else rounds)
    assert dual.weights.shape == (len(dual.choices), core.counts.shape[1])


@given(gainful(), st.integers(1, 4))
@settings(max_examples=15)
def test_the_mixture_keeps_the_rows_and_gains_the_bound(given: Problem, cells: int) -> None:
    core = core_of(given, cells=cells)
    dual = prices_of(core)
    assert (dual.weights >= 0.0).all()
    assert (dual.weights.sum(axis=0) <= 1.0 + CLOSE).all()
    usage, gain = np.zeros(len(core.row)), 0.0
    for choice, weight in zip(dual.choices, dual.weights, strict=True):
        usage += weight @ core.cell_usage(choice)
        gain += float((weight[core.cell] * core.gain_of(choice)).sum())
    assert (usage <= 1.0 + CLOSE).all()
    assert gain == pytest.approx(dual.bound, rel=1e-5)


def test_prices_stop_at_the_tolerance() -> None:
    core = core_of(random_problem(3, jobs=40, columns=10, common=3, quotas=4, load=0.6))
    exact, rough = prices_of(core), prices_of(core, tolerance=0.05)
    assert len(rough.choices) < len(exact.choices)
    assert exact.bound <= rough.bound + CLOSE
    assert rough.bound <= exact.bound * 1.06


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_unit_of_the_utility_does_not_matter(scale: float) -> None:
    given = random_problem(4, jobs=20, columns=6, common=2, quotas=2, load=0.6)
    base = prices_of(core_of(problem(given.utility, given.rows)))
    scaled = prices_of(core_of(problem(given.utility * scale, given.rows)))
    assert scaled.bound == pytest.approx(scale * base.bound, rel=CLOSE)


@pytest.mark.parametrize("seed", range(3))
def test_prices_beside_one_large_gain_keep_small_differences(seed: int) -> None:
    """The unit of the linear program shrinks with the gap, since it is accurate to about 1e-8 of it."""
    few = random_problem(seed, jobs=20, columns=6, common=2, quotas=2, load=0.5)
    gains = np.column_stack([few.utility, np.full(20, -1.0)])
    huge = np.append(np.full(6, -1.0), 1e9)
    rows = tuple(
        Row(
            name=row.name,
            capacity=row.capacity,
            demand=np.append(row.demand, 0.0),
            jobs=None if row.jobs is None else np.append(row.jobs, False),
        )
        for row in few.rows
    )
    alone = prices_of(core_of(problem(few.utility, few.rows)))
    beside = prices_of(core_of(problem(np.vstack([gains, huge]), rows)), tolerance=1e-14)
    assert beside.bound - 1e9 == pytest.approx(alone.bound, abs=2e-3)
    assert (beside.choices[0] != NOTHING).all(), "without prices every job takes its best"


def test_equal_input_gives_equal_prices() -> None:
    core = core_of(random_problem(5, jobs=30, columns=8, common=2, quotas=3, load=0.6), cells=16)
    one, other = prices_of(core), prices_of(core)
    assert one.prices.tolist() == other.prices.tolist()
    assert one.weights.tolist() == other.weights.tolist()
