from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headway.train.checkpoint.schedule import LONGEST_S, PRIOR_MTBF_S, SHORTEST_S, Schedule, best_interval_s

costs = st.floats(0, 1e4)
means = st.floats(1, 1e7)


def overhead(interval_s: float, cost_s: float, mtbf_s: float) -> float:
    """Time per second of training that goes into saving and into what a loss costs, after Daly (2006), with restarts
    that cost nothing and losses that come at random."""
    return mtbf_s * math.expm1((interval_s + cost_s) / mtbf_s) / interval_s


@given(cost_s=st.floats(0.01, 100), mtbf_s=st.floats(1e4, 1e6), factor=st.sampled_from([0.5, 0.8, 1.25, 2.0]))
def test_no_other_interval_is_better(cost_s: float, mtbf_s: float, factor: float) -> None:
    best = best_interval_s(cost_s, mtbf_s)
    assert overhead(best, cost_s, mtbf_s) <= overhead(best * factor, cost_s, mtbf_s) * (1 + 1e-9)


@given(cost_s=costs, mtbf_s=means)
def test_an_interval_is_at_most_the_time_between_losses(cost_s: float, mtbf_s: float) -> None:
    assert 0 <= best_interval_s(cost_s, mtbf_s) <= mtbf_s


def test_a_fixed_interval() -> None:
    schedule = Schedule(10.0, now=100.0)
    assert not schedule.due(109.9)
    assert schedule.due(110.0)
    schedule.saved(115.0, cost_s=5.0)
    assert not schedule.due(124.9)
    assert schedule.due(125.0)


@given(cost_s=costs, total_s=costs, losses=st.integers(0, 1000), now=st.floats(0, 1e7))
def test_the_automatic_interval_is_within_its_bounds(
    cost_s: float, total_s: float, losses: int, now: float
) -> None:
    schedule = Schedule(None, now=0.0)
    schedule.saved(0.0, cost_s)
    schedule.completed(total_s)
    for _ in range(losses):
        schedule.failed()
    assert SHORTEST_S <= schedule.interval_s(now) <= LONGEST_S
    assert schedule.interval_s(now) >= min(2 * total_s, LONGEST_S)


def test_losses_shorten_the_interval_and_their_absence_makes_it_longer() -> None:
    schedule = Schedule(None, now=0.0)
    schedule.saved(0.0, cost_s=1.0)
    assert schedule.mtbf_s(0.0) == PRIOR_MTBF_S
    at_first = schedule.interval_s(0.0)
    assert at_first == best_interval_s(1.0, PRIOR_MTBF_S)
    assert schedule.interval_s(PRIOR_MTBF_S) > at_first
    for _ in range(3):
        schedule.failed()
    assert schedule.mtbf_s(PRIOR_MTBF_S) == PRIOR_MTBF_S / 2
    assert schedule.interval_s(PRIOR_MTBF_S) < at_first


def test_a_storage_that_is_slow_is_not_written_without_end() -> None:
    schedule = Schedule(None, now=0.0)
    schedule.saved(0.0, cost_s=0.01)
    assert schedule.interval_s(0.0) == SHORTEST_S
    schedule.completed(300.0)
    assert schedule.interval_s(0.0) == 600.0
