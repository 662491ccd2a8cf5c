"""Rounding: losses that explain every gain, mixtures in proportion, and choices that no single switch improves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.core import FULL, Core
from service.domain.allocation.knapsack.prices import Dual, minimise
from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row
from service.domain.allocation.knapsack.rounding import Switches, improve, mixed, switches
from service.domain.shared.arrays import IntArray
from tests.unit.service.domain.allocation.knapsack.problems import (
    choices_of,
    core_of,
    gainful,
    problem,
    random_problem,
)

N = NOTHING


def slots(capacity: float, *demand: float) -> Row:
    return Row(name="slots", capacity=capacity, demand=np.array(demand))


def dual_of(core: Core) -> Dual:
    return minimise(core, tolerance=1e-9, rounds=200, expired=lambda: False)


def free(core: Core) -> Switches:
    return switches(core, np.zeros(len(core.row)))


def table(moves: Switches) -> dict[tuple[int, int], float]:
    keys = zip(moves.job.tolist(), moves.column.tolist(), strict=True)
    return dict(zip(keys, moves.loss.tolist(), strict=True))


def test_a_loss_is_the_distance_to_the_best_choice() -> None:
    core = core_of(problem([[2.0, 3.0], [5.0, -1.0]], (slots(4.0, 1.0, 2.0),)))
    assert table(free(core)) == {(0, 0): 1.0, (0, 1): 0.0, (0, N): 3.0, (1, 0): 0.0, (1, N): 5.0}
    priced = switches(core, np.array([8.0]))  # a slot costs 2
    assert table(priced) == {(0, 0): 0.0, (0, 1): 1.0, (0, N): 0.0, (1, 0): 0.0, (1, N): 3.0}
    assert priced.gain.tolist() == [2.0, 3.0, 0.0, 5.0, 0.0]
    assert priced.demand.tolist() == [[0.25], [0.5], [0.0], [0.25], [0.0]]
    assert priced.horizon == np.inf


@given(gainful(), st.data())
@settings(max_examples=25)
def test_gain_is_the_bound_less_losses_and_less_the_price_of_unused_capacity(
    given: Problem, data: st.DataObject
) -> None:
    core = core_of(given, cells=data.draw(st.integers(1, 4)))
    prices = np.array(
        data.draw(st.lists(st.floats(0.0, 5.0), min_size=len(core.row), max_size=len(core.row)))
    )
    moves = switches(core, prices)
    loss = table(moves)
    bound = prices.sum() * FULL + core.best_choice(prices)[1].sum()
    for choice in list(choices_of(core))[:32]:
        losses = sum(loss[job, column] for job, column in enumerate(choice.tolist()))
        unused = prices @ (FULL - core.usage(choice))
        assert core.value(choice) == pytest.approx(bound - losses - unused, abs=1e-9)


@given(gainful(), st.integers(1, 4))
@settings(max_examples=25)
def test_switches_have_the_gain_and_demand_of_their_column(given: Problem, cells: int) -> None:
    core = core_of(given, cells=cells)
    moves = free(core)
    for index, (job, column) in enumerate(zip(moves.job.tolist(), moves.column.tolist(), strict=True)):
        alone = np.full(len(core.job), N)
        alone[job] = column
        assert moves.gain[index] == pytest.approx(core.value(alone))
        assert moves.demand[index] == pytest.approx(core.usage(alone))
        assert moves.loss[index] >= 0.0


def test_switches_beyond_the_limit_are_those_of_the_least_loss() -> None:
    given = random_problem(1, jobs=900, columns=9, common=2, quotas=32, load=0.5)
    core = core_of(given, cells=1)
    moves = free(core)
    assert np.isfinite(moves.horizon)
    alternatives = moves.loss > 0.0
    assert 5_000 < alternatives.sum() <= 6_000
    assert (moves.loss <= moves.horizon).all()
    net = np.concatenate([core.gain, np.zeros((len(core.job), 1))], axis=1)
    losses = net.max(axis=1, keepdims=True) - net
    assert ((losses > 0.0) & (losses < moves.horizon)).sum() == (
        alternatives & (moves.loss < moves.horizon)
    ).sum()
    assert set(moves.job[alternatives].tolist()) == set(moves.job.tolist()), "no job without an alternative"
    assert (moves.loss == 0.0).sum() == len(set(moves.job.tolist())), "each job with its best choice"


def test_switches_of_equal_loss_stay_within_the_limit() -> None:
    members = [np.arange(900) % 34 == index for index in range(34)]
    rows = tuple(
        Row(name=str(index), capacity=9.0, demand=np.ones(9), jobs=jobs) for index, jobs in enumerate(members)
    )
    core = core_of(problem(np.tile(np.arange(1.0, 10.0), (900, 1)), rows), cells=1)
    moves = free(core)
    assert (moves.loss > 0.0).sum() == 6_000
    assert moves.loss.max() == moves.horizon


def by_hand(core: Core, choices: list[list[int]], weights: list[float]) -> Dual:
    return Dual(
        prices=np.zeros(len(core.row)),
        bound=0.0,
        choices=np.array(choices),
        weights=np.array(weights)[:, None] * np.ones(core.counts.shape[1]),
    )


@pytest.mark.parametrize("shares", [(0.3, 0.5), (0.5, 0.5), (1.0, 0.0), (0.0, 0.0), (0.1, 0.1)])
def test_choices_share_a_cell_in_proportion_to_their_weights(shares: tuple[float, float]) -> None:
    jobs = 50
    core = core_of(problem([[2.0, 3.0]] * jobs, (slots(50.0, 1.0, 2.0),)), cells=1)
    chosen = mixed(core, by_hand(core, [[0] * jobs, [1] * jobs], list(shares)))
    for column, share in ((0, shares[0]), (1, shares[1]), (N, 1.0 - sum(shares))):
        assert abs(int((chosen == column).sum()) - share * jobs) <= 2
        assert share > 0.0 or not (chosen == column).any()


def test_jobs_on_which_the_iterations_agree_keep_their_choice() -> None:
    core = core_of(problem([[2.0, 3.0]] * 4, (slots(8.0, 1.0, 2.0),)), cells=1)
    chosen = mixed(core, by_hand(core, [[0, 1, 1, 0], [0, 1, 0, 1]], [0.5, 0.5]))
    assert chosen[:2].tolist() == [0, 1]
    assert set(chosen.tolist()) <= {0, 1}


def test_iterations_without_weight_do_not_count() -> None:
    core = core_of(problem([[2.0, 3.0]] * 3, (slots(8.0, 1.0, 2.0),)), cells=1)
    assert mixed(core, by_hand(core, [[0, 0, 0], [1, 1, 1]], [1e-12, 1.0])).tolist() == [1, 1, 1]


def test_each_cell_has_its_own_mixture() -> None:
    core = core_of(problem([[2.0, 3.0]] * 4, (slots(8.0, 1.0, 2.0),)), cells=2)
    dual = by_hand(core, [[0] * 4, [1] * 4], [1.0, 1.0])
    dual.weights[:] = [[1.0, 0.0], [0.0, 1.0]]
    assert mixed(core, dual).tolist() == [0, 0, 1, 1]


def better_switches(core: Core, moves: Switches, choice: IntArray) -> list[tuple[int, int]]:
    """Single switches that gain and fit: none is left after `improve`."""
    found = []
    for job, column, gain in zip(moves.job, moves.column, moves.gain, strict=True):
        other = choice.copy()
        other[job] = column
        if gain > core.gain_of(choice)[job] + 1e-9 and (core.usage(other) <= FULL - 1e-9).all():
            found.append((int(job), int(column)))
    return found


@given(gainful(), st.data())
@settings(max_examples=40)
def test_an_improved_choice_fits_and_no_single_switch_improves_it(
    given: Problem, data: st.DataObject
) -> None:
    core = core_of(given, cells=data.draw(st.integers(1, 4)))
    start = data.draw(st.sampled_from(list(choices_of(core))[-40:]))
    moves = switches(core, dual_of(core).prices)
    before = start.copy()
    found = improve(core, moves, start)
    assert (start == before).all(), "the argument stays as it is"
    assert core.fits(found)
    assert not better_switches(core, moves, found)
    assert (improve(core, moves, found) == found).all()
    if core.fits(start):
        assert core.value(found) >= core.value(start) - 1e-9
    assert core.value(improve(core, moves, start, pairs=5)) >= core.value(found) - 1e-9


def test_the_excess_is_removed_where_it_costs_least() -> None:
    core = core_of(problem([[5.0], [1.0], [3.0]], (slots(2.0, 1.0),)))
    assert improve(core, free(core), np.zeros(3, np.int64)).tolist() == [0, N, 0]


def test_one_large_job_is_dropped_in_place_of_many_small_ones_that_gain_more() -> None:
    """Three slots too many: the large job loses 3 for them, the small ones would lose 3.6."""
    utility = [[3.0, -1.0], *[[-1.0, 1.2]] * 4]
    core = core_of(problem(utility, (slots(5.0, 4.0, 1.0),)))
    assert improve(core, free(core), np.array([0, 1, 1, 1, 1])).tolist() == [N, 1, 1, 1, 1]
    utility[0][0] = 4.0
    core = core_of(problem(utility, (slots(5.0, 4.0, 1.0),)))
    assert improve(core, free(core), np.array([0, 1, 1, 1, 1])).tolist() == [0, N, N, N, 1]


def test_a_job_shrinks_before_it_loses_everything() -> None:
    core = core_of(problem([[4.0, 5.0], [4.0, 5.0]], (slots(3.0, 1.0, 2.0),)))
    found = improve(core, free(core), np.array([1, 1]))
    assert sorted(found.tolist()) == [0, 1]


def no_switches(core: Core) -> Switches:
    nothing = np.zeros(0)
    return Switches(
        job=np.zeros(0, np.int64),
        column=np.zeros(0, np.int64),
        gain=nothing,
        loss=nothing,
        demand=np.zeros((0, len(core.row))),
        horizon=0.0,
    )


@pytest.mark.parametrize(
    ("capacity", "kept"),
    [
        (9.0, [True, True, True]),
        (8.0, [False, True, True]),
        (6.0, [False, True, True]),
        (5.0, [False, True, False]),
        (4.0, [False, False, False]),
    ],
)
def test_without_alternatives_jobs_that_gain_least_for_their_demand_are_dropped(
    capacity: float, kept: list[bool]
) -> None:
    """Gains for each slot: 4/3, 10/5 and 1.5/1; all three need 9 slots."""
    utility = [[4.0, -1.0, -1.0], [-1.0, 10.0, -1.0], [-1.0, -1.0, 1.5]]
    core = core_of(problem(utility, (slots(10.0, 3.0, 5.0, 1.0),)))
    core = Core(
        gain=core.gain,
        demand=core.demand * 10.0 / capacity,
        counts=core.counts,
        cell=core.cell,
        job=core.job,
        row=core.row,
        capacity=core.capacity,
        idle=core.idle,
    )
    found = improve(core, no_switches(core), np.array([0, 1, 2]))
    assert (found != N).tolist() == kept


def test_free_capacity_is_filled_with_the_best_switch() -> None:
    core = core_of(problem([[1.0], [3.0], [2.0]], (slots(2.0, 1.0),)))
    assert improve(core, free(core), np.full(3, N)).tolist() == [N, 0, 0]


def test_filling_goes_on_with_what_a_switch_has_freed() -> None:
    """The first job moves to another kind for a little more, and only then the second one fits."""
    rows = (slots(1.0, 1.0, 0.0), Row(name="other", capacity=1.0, demand=np.array([0.0, 1.0])))
    core = core_of(problem([[1.0, 1.5], [2.0, -1.0]], rows))
    assert improve(core, free(core), np.array([0, N])).tolist() == [1, 0]


def test_a_column_of_equal_gain_is_no_improvement() -> None:
    core = core_of(problem([[2.0, 2.0]], (slots(4.0, 1.0, 1.0),)))
    assert improve(core, free(core), np.array([1])).tolist() == [1]


def test_pairs_find_what_no_single_switch_can() -> None:
    """The first job gives up a slot for almost nothing, so that the second one fits."""
    core = core_of(problem([[5.0, 4.9], [-1.0, 3.0]], (slots(4.0, 3.0, 2.0),)))
    start = np.array([0, N])
    moves = free(core)
    assert improve(core, moves, start).tolist() == [0, N]
    assert improve(core, moves, start, pairs=1).tolist() == [1, 1]
    assert improve(core, moves, start, pairs=1, goal=5.0).tolist() == [0, N], "the goal is reached already"
    assert improve(core, moves, start, pairs=1, goal=5.1).tolist() == [1, 1]


def test_a_column_of_equal_gain_makes_room() -> None:
    core = core_of(problem([[5.0, 5.0], [-1.0, 3.0]], (slots(4.0, 3.0, 2.0),)))
    assert improve(core, free(core), np.array([0, N]), pairs=1).tolist() == [1, 1]


@pytest.mark.parametrize(("pairs", "found"), [(1, 1), (2, 2), (9, 2)])
def test_as_many_pairs_are_made_as_asked(pairs: int, found: int) -> None:
    """Two projects, each with a pair of jobs as above."""
    utility = [[5.0, 4.9], [-1.0, 3.0]] * 2
    rows = tuple(
        Row(name=str(index), capacity=4.0, demand=np.array([3.0, 2.0]), jobs=np.arange(4) // 2 == index)
        for index in range(2)
    )
    core = core_of(problem(utility, rows))
    order = np.argsort(core.job)
    start = np.array([0, N, 0, N])[core.job]
    chosen = improve(core, free(core), start, pairs=pairs)[order]
    assert (chosen == 1).sum() == 2 * found


def test_a_pair_keeps_a_row_that_both_switches_need_more_of() -> None:
    """The job that gives up a slot would need $2 more for that, and the other one $2: $1 too much."""
    dollars = Row(name="dollars", capacity=4.0, demand=np.array([1.0, 3.0, 2.0]))
    core = core_of(problem([[5.0, 4.9, -1.0], [-1.0, -1.0, 3.0]], (slots(4.0, 3.0, 2.0, 2.0), dollars)))
    assert improve(core, free(core), np.array([0, N]), pairs=3).tolist() == [0, N]


def test_a_pair_that_loses_more_than_it_gains_is_left_alone() -> None:
    core = core_of(problem([[5.0, 1.0], [-1.0, 3.0]], (slots(4.0, 3.0, 2.0),)))
    assert improve(core, free(core), np.array([0, N]), pairs=5).tolist() == [0, N]


def test_a_pair_keeps_every_row() -> None:
    """Two rows: the pair that gains most would exceed the second one."""
    dollars = Row(name="dollars", capacity=4.0, demand=np.array([1.0, 1.0, 4.0]))
    utility = [[5.0, 4.9, -1.0], [-1.0, 2.0, 3.0]]
    core = core_of(problem(utility, (slots(4.0, 3.0, 2.0, 2.0), dollars)))
    assert improve(core, free(core), np.array([0, N]), pairs=3).tolist() == [1, 1]


def test_a_choice_of_several_rows_is_repaired_in_all_of_them() -> None:
    given = random_problem(7, jobs=60, columns=10, common=3, quotas=4, load=0.4)
    core = core_of(given, cells=8)
    greedy, _ = core.best_choice(np.zeros(len(core.row)))
    assert not core.fits(greedy)
    found = improve(core, free(core), greedy)
    assert core.fits(found)
    assert core.value(found) > 0.6 * dual_of(core).bound
