"""The exact search: optimal choices, bounds that hold for any prices and any effort, and its lower bounds."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.core import Core
from service.domain.allocation.knapsack.exact import Finish, _distinct, _frontier
from service.domain.allocation.knapsack.prices import minimise
from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row
from service.domain.allocation.knapsack.rounding import improve, switches
from service.domain.shared.arrays import FloatArray
from tests.unit.service.domain.allocation.knapsack.problems import (
    best_gain,
    choices_of,
    core_of,
    gainful,
    problem,
    random_problem,
)

CLOSE = 1e-7


def prices_of(core: Core) -> FloatArray:
    return minimise(core, tolerance=1e-10, rounds=200, expired=lambda: False).prices


def finish_of(core: Core, prices: FloatArray, *, effort: float = 1.0) -> Finish:
    return Finish(core, switches(core, prices), prices, effort=effort)


def nothing(core: Core) -> np.ndarray:
    return np.full(len(core.job), NOTHING)


@given(gainful(), st.integers(1, 4))
@settings(max_examples=40)
def test_exact_search_proves_the_optimum(given: Problem, cells: int) -> None:
    core = core_of(given, cells=cells)
    choice, bound = finish_of(core, prices_of(core)).run(nothing(core), enough=0.0, expired=lambda: False)
    assert core.fits(choice)
    assert core.value(choice) == pytest.approx(best_gain(core), abs=CLOSE)
    assert bound == pytest.approx(best_gain(core), abs=CLOSE)


@given(gainful(), st.data())
@settings(max_examples=40)
def test_its_bound_holds_at_any_prices_and_any_effort(given: Problem, data: st.DataObject) -> None:
    core = core_of(given)
    size = len(core.row)
    prices = np.array(data.draw(st.lists(st.floats(0.0, 8.0), min_size=size, max_size=size)))
    finish = finish_of(core, prices, effort=data.draw(st.sampled_from([0.0, 1e-5, 1.0])))
    start = improve(core, switches(core, prices), nothing(core))
    by_kind = finish.by_kind()
    assert finish.bound >= best_gain(core) - CLOSE
    choice, bound = finish.run(start, enough=0.0, expired=lambda: False)
    assert core.fits(choice)
    assert core.value(choice) >= core.value(start) - CLOSE
    assert bound >= best_gain(core) - CLOSE
    assert len(by_kind) == len(core.job)


def test_without_effort_it_returns_what_it_was_given() -> None:
    core = core_of(random_problem(3, jobs=20, columns=6, common=2, quotas=0, load=0.6))
    prices = prices_of(core)
    start = improve(core, switches(core, prices), nothing(core))
    choice, bound = finish_of(core, prices, effort=0.0).run(start, enough=0.0, expired=lambda: False)
    assert choice.tolist() == start.tolist()
    assert bound >= core.value(start)


def test_exact_search_ends_at_once_at_its_time_limit_or_gap() -> None:
    core = core_of(problem([[3.0, 5.0]] * 5, (Row(name="s", capacity=7, demand=np.array([2.0, 3.0])),)))
    prices = prices_of(core)
    for enough, expired in ((0.0, True), (1e9, False)):
        choice, bound = finish_of(core, prices).run(
            nothing(core), enough=enough, expired=partial(bool, expired)
        )
        assert (choice == NOTHING).all()
        assert bound >= best_gain(core)


def test_an_integer_gap_is_closed() -> None:
    """Two jobs want 2 of 3 slots: the relaxation runs one and a half, the search proves that one is the most."""
    row = Row(name="slots", capacity=3.0, demand=np.array([2.0]))
    core = core_of(problem([[2.0], [1.9]], (row,)))
    prices = prices_of(core)
    finish = finish_of(core, prices)
    assert finish.bound == pytest.approx(2.95, abs=1e-6)
    choice, bound = finish.run(nothing(core), enough=0.0, expired=lambda: False)
    assert choice.tolist() == [0, NOTHING]
    assert bound == pytest.approx(2.0)


@pytest.mark.parametrize("members", [[False, False], None])
def test_exact_search_without_a_binding_row_is_optimal(members: list[bool] | None) -> None:
    """Either the row counts no job, or there is none."""
    rows = (
        () if members is None else (Row(name="r", capacity=1.0, demand=np.ones(1), jobs=np.array(members)),)
    )
    core = core_of(problem([[1.0], [0.5]], rows))
    choice, bound = finish_of(core, np.zeros(0)).run(nothing(core), enough=0.0, expired=lambda: False)
    assert choice.tolist() == [0, 0]
    assert bound == pytest.approx(1.5)


def quota(name: str, capacity: float, jobs: list[int], *demand: float, of: int = 6) -> Row:
    return Row(name=name, capacity=capacity, demand=np.array(demand), jobs=np.isin(np.arange(of), jobs))


def two_projects() -> Core:
    """Three jobs of each of two projects want 2 slots each, of a quota of 3 for each project."""
    rows = (
        Row(name="slots", capacity=12.0, demand=np.array([2.0])),
        quota("a", 3.0, [0, 1, 2], 2.0),
        quota("b", 3.0, [3, 4, 5], 2.0),
    )
    return core_of(problem([[5.0], [4.0], [3.0], [7.0], [6.0], [2.0]], rows))


def test_each_kind_of_jobs_is_settled_within_its_own_rows() -> None:
    core = two_projects()
    finish = finish_of(core, prices_of(core))
    before = finish.bound
    choice = finish.by_kind()
    gets = dict(zip(core.job.tolist(), choice.tolist(), strict=True))
    assert {job for job, column in gets.items() if column != NOTHING} == {0, 3}
    assert before > 12.0 + 0.5, "with fractions, half a job more of each project"
    assert finish.bound == pytest.approx(12.0)
    assert best_gain(core) == 12.0


@given(st.lists(st.integers(1, 9), min_size=6, max_size=6), st.integers(2, 9), st.integers(2, 9))
@settings(max_examples=15)
def test_the_choice_by_kind_is_the_best_of_each_kind(gains: list[int], of_a: int, of_b: int) -> None:
    sizes = (2.0, 3.0)
    rows = (
        Row(name="slots", capacity=30.0, demand=np.array(sizes)),
        quota("a", float(of_a), [0, 1, 2], *sizes),
        quota("b", float(of_b), [3, 4, 5], *sizes),
    )
    core = core_of(problem([[gain, gain * 1.4] for gain in gains], rows))
    finish = finish_of(core, prices_of(core))
    choice = finish.by_kind()
    assert core.value(choice) == pytest.approx(best_gain(core), abs=CLOSE), "the common row has room for all"
    assert finish.bound == pytest.approx(best_gain(core), abs=CLOSE)
    assert core.fits(choice)


def test_rows_that_count_everybody_are_left_to_the_whole_search() -> None:
    core = core_of(problem([[3.0], [2.0]], (Row(name="slots", capacity=1.0, demand=np.ones(1)),)))
    finish = finish_of(core, np.zeros(1))
    assert finish.by_kind().tolist() == [0, 0], "the common row may be exceeded"
    assert finish.bound == pytest.approx(5.0)


@pytest.mark.parametrize("seed", range(3))
def test_the_proof_survives_quotas_that_interact_with_a_common_row(seed: int) -> None:
    given = random_problem(seed, jobs=6, columns=3, common=1, quotas=2, load=0.8)
    core = core_of(given)
    finish = finish_of(core, prices_of(core))
    start = improve(core, switches(core, prices_of(core)), finish.by_kind())
    choice, bound = finish.run(start, enough=0.0, expired=lambda: False)
    best = max(core.value(one) for one in choices_of(core) if core.fits(one))
    assert core.value(choice) == pytest.approx(best)
    assert bound == pytest.approx(best)


points = st.lists(st.tuples(st.integers(0, 40), st.integers(-20, 20)), min_size=1, max_size=60)


def cheapest(amounts: np.ndarray, costs: np.ndarray, limit: float) -> float:
    return float(costs[amounts <= limit].min(initial=np.inf))


@given(points)
def test_a_frontier_has_the_least_cost_of_every_amount(found: list[tuple[int, int]]) -> None:
    amounts, costs = (np.array(one, float) for one in zip(*found, strict=True))
    kept, least = _frontier(amounts, costs)
    assert (np.diff(kept) > 0).all()
    assert (np.diff(least) < 0).all()
    for limit in range(-1, 42):
        assert cheapest(kept, least, limit) == cheapest(amounts, costs, limit)


def test_a_frontier_of_very_many_points_stays_a_lower_bound() -> None:
    rng = np.random.default_rng(1)
    amounts = np.sort(rng.uniform(0, 1, 3000))
    costs = np.sort(rng.uniform(-1, 0, 3000))[::-1]
    kept, least = _frontier(amounts, costs)
    assert len(kept) == 500
    assert (np.diff(kept) > 0).all()
    for limit in np.linspace(0, 1, 101).tolist():
        exact, bound = cheapest(amounts, costs, limit), cheapest(kept, least, limit)
        assert bound <= exact
        assert exact == np.inf or bound >= exact - 0.02


def test_states_of_the_same_usage_keep_the_cheapest() -> None:
    usage = np.array([[0.5, 0.2], [0.5, 0.2], [0.5, 0.3], [0.1, 0.2], [0.5, 0.2 + 1e-15]])
    cost = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
    assert sorted(_distinct(usage, cost).tolist()) == [1, 2, 3]


def test_usages_without_rows_are_all_the_same() -> None:
    assert _distinct(np.zeros((3, 0)), np.array([2.0, 1.0, 3.0])).tolist() == [1]
