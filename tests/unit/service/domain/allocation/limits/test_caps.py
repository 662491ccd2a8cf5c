"""Caps: jobs shrink before one is stopped, and the jobs of the least weight are stopped first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row, Solution, Solve
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.limits.caps import choose_within_caps, joined, left_by, only, without
from service.domain.policies.framework.policy import Choices, RoundInput
from service.domain.policies.goodput import Goodput
from tests.unit.service.domain.policies.rounds import a_round, random_round

N = NOTHING


@dataclass
class Richest:
    """Policy that maximises goodput, with a record of its calls."""

    name: str = "richest"
    calls: list[RoundInput] = field(default_factory=list)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        self.calls.append(given)
        utility = np.where(given.allowed, given.goodput * given.weight[:, None], -np.inf)
        idle = np.zeros(len(utility))
        solution = solve(Problem(utility=utility, idle=idle, rows=given.rows, current=given.current))
        return Choices(
            chosen=solution.chosen, utility=utility, idle=idle, unit="samples/s", solution=solution
        )


def exactly(problem: Problem) -> Solution:
    return solve(problem, gap=0.0)


def row(name: str, capacity: float, *demand: float, jobs: list[bool] | None = None) -> Row:
    return Row(
        name=name,
        capacity=capacity,
        demand=np.array(demand),
        jobs=None if jobs is None else np.array(jobs),
    )


def cluster(
    *rows: Row, jobs: int = 3, slots: int = 12, current: list[int] | None = None, **fields: Any
) -> RoundInput:
    """Jobs of 1, 2 or 4 slots, where four train more than in proportion: a policy prefers few large jobs."""
    return a_round(
        np.tile([10.0, 30.0, 100.0], (jobs, 1)),
        [1, 2, 4],
        capacity=slots,
        current=np.array([2] * jobs if current is None else current),
        rows=rows,
        **fields,
    )


def chosen(given: RoundInput) -> list[int]:
    return choose_within_caps(given, Richest(), exactly).chosen.tolist()


def test_without_caps_the_policy_is_asked_once() -> None:
    policy = Richest()
    given = cluster(row("packing", 5.0, 1.0, 2.0, 4.0))
    found = choose_within_caps(given, policy, exactly)
    assert len(policy.calls) == 1
    assert policy.calls[0] is given
    assert (found.chosen == N).sum() == 1, "rows of slots and packing stop jobs as the policy wants"


@pytest.mark.parametrize("name", ["budget/all", "budget/", "quota/team"])
def test_caps_shrink_jobs_before_they_stop_one(name: str) -> None:
    assert sorted(chosen(cluster(row(name, 6.0, 1.0, 2.0, 4.0)))) == [0, 0, 2]
    assert Richest().choose(cluster(row(name, 6.0, 1.0, 2.0, 4.0)), exactly).chosen.tolist().count(N) == 1


@pytest.mark.parametrize("name", ["slots/a100", "lent/team", "firm/team", "budgets/all", "my-budget/all"])
def test_other_rows_stop_jobs_as_the_policy_wants(name: str) -> None:
    assert chosen(cluster(row(name, 6.0, 1.0, 2.0, 4.0))).count(N) == 1


@pytest.mark.parametrize(
    ("dollars", "running"), [(12.0, 3), (5.0, 3), (3.0, 3), (2.0, 2), (1.0, 1), (0.5, 0), (0.0, 0)]
)
def test_a_cap_stops_jobs_only_below_their_smallest_sizes(dollars: float, running: int) -> None:
    found = chosen(cluster(row("budget/all", dollars, 1.0, 2.0, 4.0)))
    assert sum(column != N for column in found) == running


def test_the_jobs_of_the_least_weight_are_stopped_first() -> None:
    capped = row("budget/all", 2.0, 1.0, 2.0, 4.0)
    weights = {"light first": [0.5, 1.0, 2.0], "light last": [2.0, 1.0, 0.5]}
    assert chosen(cluster(capped, weight=weights["light first"])) == [N, 0, 0]
    assert chosen(cluster(capped, weight=weights["light last"])) == [0, 0, N]
    assert chosen(cluster(capped)) == [0, 0, N], "of equal weight, the earlier jobs stay"


@pytest.mark.parametrize(("dollars", "expected"), [(4.0, [0, 1, 0]), (1.0, [0, N, N])])
def test_running_jobs_are_kept_and_waiting_ones_compete_for_the_rest(
    dollars: float, expected: list[int]
) -> None:
    given = cluster(
        row("budget/all", dollars, 1.0, 2.0, 4.0), current=[2, N, N], weight=np.array([0.5, 1.0, 1.0])
    )
    assert Richest().choose(given, exactly).chosen[0] == N, "without this rule the light job would be stopped"
    assert chosen(given) == expected


def test_a_lighter_job_does_not_take_the_place_of_a_heavier_one() -> None:
    """The policy gives the heaviest job everything. The others are kept only with what its smallest size leaves."""
    for dollars, expected in ((1.0, [N, N, 0]), (2.0, [N, 0, 0]), (3.0, [0, 0, 0]), (4.0, [0, 0, 1])):
        given = cluster(row("budget/all", dollars, 1.0, 2.0, 4.0), weight=np.array([0.5, 1.0, 2.0]))
        assert chosen(given) == expected


def test_a_heavier_job_on_most_of_the_slots_keeps_its_place() -> None:
    """One slot is free beside it, but the cap of $3 does not pay for the smallest sizes of both."""
    given = cluster(
        row("budget/all", 3.0, 2.0, 2.0, 3.0),
        jobs=2,
        slots=5,
        weight=np.array([0.5, 2.0]),
        usd_per_h=np.array([2.0, 2.0, 3.0]),
    )
    assert chosen(given) == [N, 2]


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        ([2.0, 1.0, 1.0], [2, 1]),  # of equal price the fewest slots
        ([2.0, 3.0, 1.0], [2, 2]),  # the cheapest, however many slots
    ],
)
def test_a_kept_job_has_its_cheapest_column(prices: list[float], expected: list[int]) -> None:
    given = a_round(
        np.tile([100.0, 1.0, 2.0], (2, 1)),
        [1, 2, 4],
        capacity=12,
        current=np.array([0, 0]),
        rows=(row("budget/all", 2.0, *prices),),
        usd_per_h=np.array(prices),
    )
    assert Richest().choose(given, exactly).chosen.tolist() == [0, N]
    assert chosen(given) == expected


def test_a_job_that_no_slots_are_left_for_is_stopped_as_the_policy_wants() -> None:
    """Both the cap and the slots would have to be exceeded: this is not due to the cap alone."""
    capped = row("budget/all", 100.0, 1.0, 2.0, 4.0)
    assert chosen(cluster(capped, slots=4)) == [2, N, N]
    tight = row("budget/all", 4.0, 1.0, 2.0, 4.0)
    assert chosen(cluster(tight, slots=4)) == [2, N, N]
    assert chosen(cluster(tight, slots=5)) == [1, 0, 0], "one slot was free beside the large job"


def test_a_column_that_is_not_allowed_or_worth_nothing_is_no_refuge() -> None:
    allowed = np.ones((3, 3), dtype=np.bool_)
    allowed[:, 0] = False
    capped = row("budget/all", 6.0, 1.0, 2.0, 4.0)
    assert sorted(chosen(cluster(capped, allowed=allowed))) == [1, 1, 1]
    allowed[:, 1] = False
    assert sorted(chosen(cluster(capped, allowed=allowed))) == [N, N, 2]


def test_a_cap_concerns_the_jobs_of_its_project() -> None:
    capped = row("quota/team", 4.0, 1.0, 2.0, 4.0, jobs=[True, True, False])
    found = chosen(cluster(capped))
    assert found[2] == 2
    assert sorted(found[:2]) == [0, 1]


def test_jobs_that_are_kept_may_cause_others_to_be_kept() -> None:
    """Every round keeps the jobs that it sees stopped, until no more are."""
    policy = Richest()
    given = cluster(row("budget/all", 6.0, 1.0, 2.0, 4.0), jobs=6, slots=24)
    found = choose_within_caps(given, policy, exactly)
    assert found.chosen.tolist() == [0] * 6
    assert 2 <= len(policy.calls) <= 9


@given(st.integers(0, 10_000), st.floats(0.0, 12.0), st.sampled_from([None, 0, 1]))
@settings(max_examples=25)
def test_every_row_is_kept_and_the_sums_are_right(seed: int, dollars: float, project: int | None) -> None:
    base = random_round(seed, jobs=4, sizes=3, kinds=2)
    members = None if project is None else np.arange(4) % 2 == project
    capped = Row(name="budget/x", capacity=dollars, demand=base.configurations.usd_per_h, jobs=members)
    given = replace(base, rows=(*base.rows, capped))
    policy = Richest()
    found = choose_within_caps(given, policy, exactly)
    for one in given.rows:
        assert one.taken(found.chosen) <= one.capacity + 1e-6
    first = policy.choose(given, exactly)
    running = given.current != N
    if (first.chosen[running] != N).all():
        assert found.chosen.tolist() == first.chosen.tolist(), "nobody was stopped"
    worth = np.where(found.chosen == N, found.idle, found.utility[np.arange(4), found.chosen])
    assert found.solution.objective == pytest.approx(worth[np.isfinite(worth)].sum())
    assert found.solution.bound >= found.solution.objective - 1e-6
    assert found.solution.chosen.tolist() == found.chosen.tolist()
    assert found.chosen[~given.allowed.any(axis=1)].tolist().count(N) == (~given.allowed.any(axis=1)).sum()


@given(st.integers(0, 10_000))
@settings(max_examples=10)
def test_it_is_the_same_for_a_policy_with_costs_of_change(seed: int) -> None:
    base = random_round(seed, jobs=4, sizes=3)
    capped = Row(name="budget/x", capacity=4.0, demand=base.configurations.usd_per_h)
    given = replace(base, rows=(*base.rows, capped))
    one, other = (choose_within_caps(given, Goodput(), exactly) for _ in range(2))
    assert one.chosen.tolist() == other.chosen.tolist()
    assert capped.taken(one.chosen) <= 4.0 + 1e-6


@pytest.mark.parametrize(("kept", "alone"), [({}, [N, N, N]), ({1: 2}, [N, 2, N]), ({0: 0, 2: 1}, [0, N, 1])])
def test_only_the_kept_jobs_have_a_choice(kept: dict[int, int], alone: list[int]) -> None:
    given = np.array([1, 1, 1])
    assert only(given, kept).tolist() == alone
    assert given.tolist() == [1, 1, 1]


def test_choices_leave_the_rest_of_each_row() -> None:
    given = cluster(row("quota/x", 6.0, 1.0, 2.0, 4.0, jobs=[True, False, True]))
    assert left_by(given, np.array([2, 1, N])).tolist() == [12.0 - 6.0, 6.0 - 4.0]
    assert left_by(given, np.array([2, 2, 2])).tolist() == [0.0, -2.0]


def test_the_other_jobs_share_what_the_kept_ones_leave() -> None:
    given = cluster(row("quota/x", 6.0, 1.0, 2.0, 4.0))
    rest = without(given, {0: 1, 2: 2})
    assert [one.capacity for one in rest.rows] == [6.0, 0.0]
    assert [one.name for one in rest.rows] == [one.name for one in given.rows]
    assert rest.allowed.tolist() == [[False] * 3, [True] * 3, [False] * 3]
    assert given.allowed.all(), "the round itself stays as it is"
    assert [one.capacity for one in without(given, {0: 2, 1: 2}).rows] == [4.0, 0.0], (
        "never less than nothing"
    )


def choices(picked: list[int], utility: list[list[float]], idle: list[float], objective: float) -> Choices:
    solution = Solution(
        chosen=np.array(picked),
        objective=objective,
        bound=objective + 1.0,
        prices=np.zeros(0),
        status="limit",
    )
    return Choices(
        chosen=np.array(picked),
        utility=np.array(utility),
        idle=np.array(idle),
        unit="u",
        solution=solution,
    )


def test_joined_choices_have_the_worth_of_both_parts() -> None:
    first = choices([N, 1], [[3.0, 5.0], [7.0, 9.0]], [1.0, 2.0], 10.0)
    others = choices([N, 0], [[-np.inf, -np.inf], [6.0, 8.0]], [0.5, 2.5], 6.5)
    found = joined(first, others, {0: 1})
    assert found.chosen.tolist() == found.solution.chosen.tolist() == [1, 0]
    assert found.utility.tolist() == [[3.0, 5.0], [6.0, 8.0]]
    assert found.idle.tolist() == [1.0, 2.5]
    assert found.solution.objective == pytest.approx(6.5 + 5.0 - 0.5), "a column in place of nothing"
    assert found.solution.bound == pytest.approx(7.5 + 5.0 - 0.5)
    assert others.chosen.tolist() == [N, 0]


@pytest.mark.parametrize("unknown", [-np.inf, np.nan, np.inf])
def test_a_column_of_unknown_worth_counts_as_nothing(unknown: float) -> None:
    first = choices([N], [[unknown]], [1.5], 1.5)
    others = choices([N], [[-np.inf]], [0.25], 0.25)
    assert joined(first, others, {0: 0}).solution.objective == pytest.approx(1.5)
