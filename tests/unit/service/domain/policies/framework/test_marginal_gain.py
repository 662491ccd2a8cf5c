"""Tests of the greedy order by marginal gain: hand calculations, the published loop, kinds, and capacities."""

from __future__ import annotations

import numpy as np
import pytest

from service.domain.allocation.knapsack.problem import Row
from service.domain.policies.framework.marginal_gain import MarginalGain
from tests.unit.service.domain.policies.rounds import a_round, brute_force, is_feasible, random_round

SIZES = [1, 2, 3, 4]


def rule(**fields) -> MarginalGain:
    return MarginalGain(**{"name": "greedy", "unsure": 1.0, **fields})


def slots_of(given, **fields) -> list[int]:
    """Slots of each job under the rule."""
    chosen = rule(**fields).choose(given, brute_force).chosen
    return np.append(given.configurations.slots, 0)[chosen].tolist()


def published(time_s: np.ndarray, capacity: int) -> list[int]:
    """Optimus's loop as the paper gives it, for workers alone: one each, then the greatest gain per worker."""
    jobs, most = time_s.shape
    workers = [1] * jobs
    for _ in range(capacity - jobs):
        gains = [
            time_s[job, held - 1] - time_s[job, held] if held < most else 0.0
            for job, held in enumerate(workers)
        ]
        best = int(np.argmax(gains))
        if gains[best] <= 0:
            break
        workers[best] += 1
    return workers


def test_by_hand() -> None:
    """Seconds to go: 100, 60, 50, 45 and 40, 24, 20, 18. Gains: 40, 10, 5 and 16, 4, 2."""
    goodput = [[1.0, 100 / 60, 2.0, 100 / 45], [1.0, 40 / 24, 2.0, 40 / 18]]
    found = {}
    for capacity in (2, 3, 4, 5, 6, 7, 8):
        found[capacity] = slots_of(a_round(goodput, SIZES, capacity=capacity, remaining=[100.0, 40.0]))
    assert found == {2: [1, 1], 3: [2, 1], 4: [2, 2], 5: [3, 2], 6: [4, 2], 7: [4, 3], 8: [4, 4]}


@pytest.mark.parametrize("seed", range(25))
def test_is_the_published_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, sizes = int(rng.integers(1, 6)), 5
    goodput = rng.uniform(1, 9, (jobs, 1)) * np.cumsum(
        np.sort(rng.uniform(0.0, 1.0, (jobs, sizes)))[:, ::-1], 1
    )
    remaining = rng.uniform(10, 1000, jobs)
    capacity = int(rng.integers(jobs, jobs * sizes + 1))
    given = a_round(goodput, range(1, sizes + 1), capacity=capacity, remaining=remaining)
    assert slots_of(given) == published(remaining[:, None] / goodput, capacity)


def test_a_job_stops_where_a_further_slot_spares_nothing() -> None:
    """The third slot is a loss, so the fourth is not reached although it would gain."""
    assert slots_of(a_round([[1.0, 2.0, 1.5, 4.0]], SIZES, capacity=4, remaining=[100.0])) == [2]
    assert slots_of(a_round([[1.0, 2.0, 2.0, 4.0]], SIZES, capacity=4, remaining=[100.0])) == [2]


def test_sizes_need_not_follow_one_another() -> None:
    """From 1 to 4 slots: (100 - 40) / 3 = 20 per slot, more than 10 of the other job from 1 to 2."""
    goodput = [[1.0, 0, 2.5], [2.0, 2.5, 0]]
    assert slots_of(a_round(goodput, [1, 2, 4], capacity=5, remaining=[100.0, 100.0])) == [4, 1]
    goodput = [[1.0, 0, 1.2], [2.0, 2.5, 0]]
    assert slots_of(a_round(goodput, [1, 2, 4], capacity=5, remaining=[100.0, 100.0])) == [1, 2]


def test_what_does_not_fit_leaves_the_slots_to_others() -> None:
    goodput = [[1.0, 0, 9.0], [1.0, 1.5, 0]]
    assert slots_of(a_round(goodput, [1, 2, 4], capacity=4, remaining=[1000.0, 10.0])) == [1, 2]


def test_every_job_has_something_before_anyone_has_more() -> None:
    goodput = np.outer([1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0])
    assert slots_of(a_round(goodput, SIZES, capacity=3, remaining=[1e6, 1.0, 1.0])) == [1, 1, 1]
    assert slots_of(a_round(goodput, SIZES, capacity=2, remaining=[1.0, 1.0, 1e6])) == [1, 1, 0]


def test_a_job_that_does_not_fit_holds_up_nobody() -> None:
    goodput = [[0, 0, 0, 9.0], [1.0, 0, 0, 0]]
    assert slots_of(a_round(goodput, SIZES, capacity=3, remaining=[10.0, 10.0])) == [0, 1]


def test_firm_jobs_then_seats_precede_the_order() -> None:
    goodput = [[1.0]] * 3
    given = {"remaining": [9.0] * 3, "capacity": 1, "slots": [1], "current": [-1, -1, 0]}
    assert slots_of(a_round(goodput, **given)) == [1, 0, 0]
    seats = [-1, 0, -1]
    none = np.zeros(3, dtype=np.bool_)
    assert slots_of(a_round(goodput, **given, seats=seats, firm=none)) == [0, 1, 0]
    firm = np.array([False, False, True])
    assert slots_of(a_round(goodput, **given, seats=seats, firm=firm)) == [0, 0, 1]


def test_the_fastest_kind_goes_first_and_a_held_kind_stays() -> None:
    goodput = [[1.0, 3.0], [1.0, 3.0]]
    both = {"slots": [1, 1], "kind": [0, 1], "capacity": 1, "remaining": [9.0, 9.0]}
    assert rule().choose(a_round(goodput, **both), brute_force).chosen.tolist() == [1, 0]
    held = a_round(goodput, **both, current=[0, -1])
    assert rule().choose(held, brute_force).chosen.tolist() == [0, 1]


def test_a_share_of_a_scarce_kind_costs_more() -> None:
    """Both spare 50 s with a second slot, one of 8 on the first kind and one of 2 on the second."""
    total = Row(name="total", capacity=3.0, demand=np.array([1.0, 2, 1, 2]))
    goodput = [[0, 0, 1.0, 2.0], [1.0, 2.0, 0, 0]]
    given = a_round(
        goodput, [1, 2, 1, 2], kind=[0, 0, 1, 1], capacity=[8, 2], rows=(total,), remaining=[100.0, 100.0]
    )
    assert slots_of(given) == [1, 2]


def test_growth_stays_on_its_kind() -> None:
    goodput = [[1.0, 1.1, 0.5, 99.0]]
    given = a_round(goodput, [1, 2, 1, 2], kind=[0, 0, 1, 1], capacity=2, remaining=[100.0])
    assert rule().choose(given, brute_force).chosen.tolist() == [1]


def test_equal_sizes_take_the_faster_column() -> None:
    goodput = [[1.0, 2.0, 3.0, 4.0]]
    given = a_round(goodput, [1, 1, 2, 2], capacity=2, remaining=[100.0])
    assert rule().choose(given, brute_force).chosen.tolist() == [3]


def test_of_equal_columns_a_job_keeps_its_own() -> None:
    given = a_round([[2.0, 2.0]], [1, 1], capacity=1, remaining=[100.0])
    assert rule().choose(given, brute_force).chosen.tolist() == [0]
    held = a_round([[2.0, 2.0]], [1, 1], capacity=1, remaining=[100.0], current=[1])
    assert rule().choose(held, brute_force).chosen.tolist() == [1]


def test_the_guess_of_an_unknown_length_by_hand() -> None:
    """4,000 slot-seconds at 1.5 samples per slot-second at best are 6,000 samples."""
    goodput = [[1.5, 2.0]]
    given = a_round(goodput, [1, 2], capacity=2, served_slot_s=[4000.0])
    utility = rule().choose(given, brute_force).utility
    longest = 6000 / 1.5
    assert utility[0].tolist() == pytest.approx([2 * longest - 4000, 2 * longest - 3000])


def test_a_young_job_of_unknown_length_has_ten_minutes_ahead() -> None:
    utility = rule().choose(a_round([[2.0, 4.0]], [2, 4], capacity=4), brute_force).utility
    assert utility[0].tolist() == pytest.approx([1200 - 600, 1200 - 300])


@pytest.mark.parametrize(
    ("unsure", "expected"), [(1.0, [2, 1]), (0.5, [1, 2])], ids=["as sure", "half as sure"]
)
def test_gains_of_a_guess_count_less(unsure: float, expected: list[int]) -> None:
    """Both have 1.5 samples a second with a second slot; the guess of 1,100 s beats the known 1,000 s."""
    given = a_round(
        [[1.0, 1.5]] * 2, [1, 2], capacity=3, remaining=[np.nan, 1000.0], served_slot_s=[1100.0, 0.0]
    )
    assert slots_of(given, unsure=unsure) == expected


def test_fitted_work_replaces_the_guess_and_not_what_is_declared() -> None:
    given = a_round(
        [[1.0, 1.5]] * 3,
        [1, 2],
        capacity=4,
        remaining=[np.nan, 1000.0, np.nan],
        served_slot_s=[2000.0, 0.0, 900.0],
    )
    assert slots_of(given) == [2, 1, 1]
    assert slots_of(given, fitted=np.array([500.0, 1e6, np.nan])) == [1, 2, 1]
    assert slots_of(given, fitted=np.array([np.nan, np.nan, 5000.0])) == [1, 1, 2]


def test_fitted_work_is_sure() -> None:
    given = a_round([[1.0, 1.5]] * 2, [1, 2], capacity=3, remaining=[np.nan, 1000.0])
    assert slots_of(given, unsure=0.1, fitted=np.array([1100.0, np.nan])) == [2, 1]
    assert slots_of(given, unsure=0.1, fitted=np.array([np.inf, np.nan])) == [1, 2]


def test_a_choice_is_worth_the_seconds_that_it_spares() -> None:
    given = a_round([[1.0, 2.0, 0.0], [1.0, 0.5, 0.0]], [1, 2, 3], capacity=3, remaining=[100.0, 30.0])
    choices = rule().choose(given, brute_force)
    assert choices.unit == "seconds spared"
    assert choices.utility.tolist() == [[100.0, 150.0, -np.inf], [170.0, 140.0, -np.inf]]
    assert choices.chosen.tolist() == [1, 0]
    assert choices.solution.objective == choices.solution.bound == 320.0


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_kept_whatever_grows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    quota = Row(name="quota", capacity=3.0, demand=np.array([1.0, 2, 3] * 2), jobs=rng.random(5) < 0.5)
    nodes = Row(name="nodes", capacity=4.0, demand=np.array([0.0, 1, 1, 0, 2, 2]))
    given = random_round(seed, jobs=5, kinds=2, sizes=3, capacity=4, rows=(quota, nodes))
    chosen = rule().choose(given, brute_force).chosen
    assert is_feasible(given.rows, chosen[None])[0]
    holds = np.flatnonzero(chosen >= 0)
    assert (given.goodput[holds, chosen[holds]] > 0).all()
