"""Tests of the best widths for a budget: the linear program, the paper's example, and steps by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]

from service.domain.policies.framework.widths import column_prices, fixed_widths, hull


def linear_program(load, rate, prices, budget: float) -> tuple[float, float] | None:
    """The least mean number of jobs within the budget, and the dollars' dual; None when nothing is within it."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    row = solver.Constraint(-solver.infinity(), float(budget))
    for one in range(len(load)):
        whole = solver.Constraint(1.0, 1.0)
        for column in np.flatnonzero(rate[one] > 0):
            jobs = float(load[one] / rate[one, column])
            part = solver.NumVar(0.0, 1.0, "")
            whole.SetCoefficient(part, 1.0)
            row.SetCoefficient(part, jobs * float(prices[column]))
            solver.Objective().SetCoefficient(part, jobs)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return None
    return solver.Objective().Value(), -row.dual_value()


@pytest.mark.parametrize("seed", range(30))
def test_fixed_widths_of_random_classes_agree_with_the_linear_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, slots = int(rng.integers(1, 6)), np.array([1, 2, 4, 8, 16, 1, 2, 4])
    prices = slots * np.repeat([1.0, 3.0], [5, 3]) * rng.uniform(0.8, 1.2, 8)
    rate = slots ** rng.uniform(0.1, 1.2, (classes, 1)) * rng.uniform(0.5, 2.0, (classes, 8))
    rate[:, 1:][rng.random((classes, 7)) < 0.2] = 0.0
    load = rng.uniform(0.1, 3.0, classes)
    cheapest = fixed_widths(load, rate, prices, budget_usd_per_h=0.0).usd_per_h
    budget = cheapest * rng.uniform(1.0, 3.0)
    found, exact = (
        fixed_widths(load, rate, prices, budget_usd_per_h=budget),
        linear_program(load, rate, prices, budget),
    )
    assert exact is not None
    assert found.jobs == pytest.approx(exact[0], rel=1e-6)
    assert found.usd_per_h <= budget * (1 + 1e-9)
    assert found.mu_h_per_usd == pytest.approx(exact[1], rel=1e-6, abs=1e-9)
    assert found.share.sum(axis=1) == pytest.approx(np.ones(classes))
    assert ((found.share > 0).sum(axis=1) > 1).sum() <= 1
    # At its mu every class has what is best for one of its jobs alone.
    cost = np.where(rate > 0, (1 + found.mu_h_per_usd * prices) / np.where(rate > 0, rate, 1.0), np.inf)
    for one in range(classes):
        assert cost[one, found.share[one] > 0] == pytest.approx(cost[one].min())


@pytest.mark.parametrize(
    ("budget", "amdahl", "root", "hours"),
    [
        (0.9, 2.07, 1.07, 0.7760),
        (1.0, 2.43, 1.47, 0.6765),
        (1.5, 4.21, 4.44, 0.4322),
        (2.0, 6.00, 9.00, 0.3333),
        (2.5, 7.79, 15.15, 0.2798),
        (3.0, 9.57, 22.90, 0.2463),
    ],
)
def test_fixed_widths_of_two_classes_are_the_worked_example_of_the_paper(
    budget: float, amdahl: float, root: float, hours: float
) -> None:
    """Figure 1: a class that is parallel to 80 % and one that speeds up as the root; both a load of 0.4."""
    widths = np.arange(1.0, 30.0, 0.01)
    rate = np.array([1 / (0.2 + 0.8 / widths), np.sqrt(widths)])
    found = fixed_widths(np.array([0.4, 0.4]), rate, widths, budget_usd_per_h=budget)
    assert (found.share @ widths).tolist() == pytest.approx([amdahl, root], abs=0.012)
    assert found.jobs / 0.8 == pytest.approx(hours, rel=1e-3)
    assert found.usd_per_h == pytest.approx(budget)


def test_a_class_whose_speedup_is_not_concave_mixes_two_widths() -> None:
    """The counterexample to the theorem as it is stated: the best single width takes .833."""
    widths = np.arange(1.0, 3.0001, 0.01)
    rate = np.interp(widths, [1, 2, 3], [1, 1.2, 1.7])[None]
    found = fixed_widths(np.array([1.0]), rate, widths, budget_usd_per_h=5 / 3)
    used = np.flatnonzero(found.share[0])
    assert widths[used].tolist() == pytest.approx([1, 3])
    assert found.share[0, used].tolist() == pytest.approx([0.13, 0.87], abs=0.005)
    assert found.jobs == pytest.approx(0.641, abs=0.001)
    assert found.mixed_class == 0
    # Narrow jobs stay longer, so of those that are present they are more than of those that arrive.
    assert found.narrow_share == pytest.approx(0.13 / (0.13 + 0.87 / 1.7), abs=0.01)


@given(
    st.integers(0, 10_000),
    st.floats(1e-6, 1e6),
)
@settings(max_examples=40, deadline=None)
def test_the_hull_has_the_best_column_for_every_worth_of_a_dollar(seed: int, mu: float) -> None:
    rng = np.random.default_rng(seed)
    prices, rate = rng.choice([0.0, 1.0, 2.0, 4.0, 7.0], 8), rng.choice([0.0, 1.0, 2.0, 3.0, 3.5], 8)
    corners = hull(rate, prices)
    if not (rate > 0).any():
        assert corners == []
        return
    cost = (1 + mu * prices[rate > 0]) / rate[rate > 0]
    assert ((1 + mu * prices[corners]) / rate[corners]).min() == pytest.approx(cost.min())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 0.0])
def test_a_load_or_rate_that_is_not_positive_does_not_count(bad: float) -> None:
    load, prices = np.array([1.0, bad, 2.0]), np.array([1.0, 2.0])
    rate = np.array([[1.0, 1.5], [1.0, 1.5], [bad, bad]])
    found = fixed_widths(load, rate, prices, budget_usd_per_h=1.2)
    assert found.share[1:].sum() == 0
    assert found.usd_per_h == pytest.approx(1.2)
    assert fixed_widths(load, rate, prices, budget_usd_per_h=np.nan).status == "unstable"


def test_widths_without_classes_are_slack() -> None:
    nothing = fixed_widths(np.zeros(0), np.zeros((0, 2)), np.ones(2), budget_usd_per_h=0.0)
    assert (nothing.jobs, nothing.status) == (0.0, "slack")


@pytest.mark.parametrize(
    ("rate", "prices", "corners"),
    [
        pytest.param([1.0, 1.5], [1.0, 2.0], [0, 1], id="two corners"),
        pytest.param([1.0, 2.0], [1.0, 2.0], [1], id="equal dollars: the faster one"),
        pytest.param([1.0, 3.0], [1.0, 2.0], [1], id="cheaper and faster"),
        pytest.param([1.5, 1.0], [2.0, 1.0], [1, 0], id="from the cheapest to the fastest"),
        pytest.param([1.0, 0.0, 1.5], [1.0, 1.0, 2.0], [0, 2], id="one cannot run"),
        pytest.param([1.0, 1.05, 1.9], [1.0, 2.0, 3.0], [0, 2], id="above the hull"),
        pytest.param([1.0, 1.0], [1.0, 2.0], [0], id="dearer and no faster"),
        pytest.param([2.0, 3.0, 3.5], [0.0, 1.0, 2.0], [0, 1, 2], id="a free one"),
        pytest.param([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0], id="equal columns"),
        pytest.param([], [], [], id="no columns"),
    ],
)
def test_corners_of_the_hull_by_hand(rate: list[float], prices: list[float], corners: list[int]) -> None:
    assert hull(np.array(rate), np.array(prices)) == corners


def test_a_corner_on_a_straight_line_is_dropped() -> None:
    """Dollars and hours of work are (1, 1), (1.5, 0.75) and (2, 0.5)."""
    rate = np.array([1.0, 1 / 0.75, 2.0])
    assert hull(rate, np.array([1.0, 2.0, 4.0])) == [0, 2]


@pytest.mark.parametrize(
    ("budget", "status", "mu", "share", "jobs", "narrow_share"),
    [
        # A job in the system needs $1 or $4/3; the wide width spares 1/3 of a job for $1/3.
        (0.5, "unstable", 2.0, [1.0, 0.0], 1.0, 0.0),
        (1.0, "optimal", 1.0, [1.0, 0.0], 1.0, 1.0),
        (1.0 + 1 / 6, "optimal", 1.0, [0.5, 0.5], 5 / 6, 0.5 / (0.5 + 1 / 3)),
        (1.25, "optimal", 1.0, [0.25, 0.75], 0.75, 0.25 / 0.75),
        (4 / 3, "slack", 0.0, [0.0, 1.0], 2 / 3, 0.0),
        (9.0, "slack", 0.0, [0.0, 1.0], 2 / 3, 0.0),
    ],
)
def test_one_class_by_hand(
    budget: float, status: str, mu: float, share: list[float], jobs: float, narrow_share: float
) -> None:
    found = fixed_widths(
        np.array([1.0]), np.array([[1.0, 1.5]]), np.array([1.0, 2.0]), budget_usd_per_h=budget
    )
    assert found.status == status
    assert found.mu_h_per_usd == pytest.approx(mu)
    assert found.share[0].tolist() == pytest.approx(share)
    assert found.jobs == pytest.approx(jobs)
    assert found.narrow_share == pytest.approx(narrow_share)
    assert (found.mixed_class == 0) == (status == "optimal")
    assert found.usd_per_h == pytest.approx(np.clip(budget, 1.0, 4 / 3))


@pytest.mark.parametrize(
    ("usd_per_h", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0]),
        ([0.0, 0.0], [1.0, 2.0]),  # slots
        ([0.0, 2.0], [0.0, 2.0]),
        ([1e-10, 2.0], [0.0, 2.0]),
        ([1e-10, 1e-10], [1.0, 2.0]),
        ([-1.0, 2.0], [1e9, 2.0]),
        ([np.inf, 2.0], [1e9, 2.0]),
        ([np.nan, 2.0], [1e9, 2.0]),
    ],
)
def test_prices_of_columns(usd_per_h: list[float], expected: list[float]) -> None:
    assert column_prices(np.array(usd_per_h), np.array([1, 2])).tolist() == expected
