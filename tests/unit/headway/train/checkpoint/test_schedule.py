"""The times of checkpoints: fixed ones, and those that follow the service's and the run's own losses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.checkpoint_interval import LONGEST_S, SHORTEST_S, best_interval_s
from headway.train.checkpoint.schedule import PRIOR_H, Schedule

HOUR_S = 3600.0
costs = st.floats(0, 1e4)


def test_a_fixed_interval() -> None:
    schedule = Schedule(10.0, now=100.0, losses_per_h=50.0)
    assert not schedule.due(109.9)
    assert schedule.due(110.0)
    schedule.saved(115.0, cost_s=5.0)
    schedule.expect(1e-6, 116.0)
    assert not schedule.due(124.9)
    assert schedule.due(125.0)


@given(
    cost_s=costs,
    total_s=costs,
    losses=st.integers(0, 1000),
    now=st.floats(0, 1e7),
    expected=st.none() | st.floats(0, 100),
)
def test_the_automatic_interval_is_within_its_bounds(
    cost_s: float, total_s: float, losses: int, now: float, expected: float | None
) -> None:
    schedule = Schedule(None, now=0.0, losses_per_h=expected)
    schedule.saved(0.0, cost_s)
    schedule.completed(total_s)
    for _ in range(losses):
        schedule.failed()
    assert SHORTEST_S <= schedule.interval_s(now) <= LONGEST_S
    assert schedule.interval_s(now) >= min(2 * total_s, LONGEST_S)


def test_without_a_service_losses_shorten_the_interval_and_their_absence_makes_it_longer() -> None:
    schedule = Schedule(None, now=0.0)
    schedule.saved(0.0, cost_s=1.0)
    assert schedule.losses_per_h(0.0) == 1 / PRIOR_H
    at_first = schedule.interval_s(0.0)
    assert at_first == best_interval_s(1.0, PRIOR_H * HOUR_S)
    assert schedule.interval_s(PRIOR_H * HOUR_S) > at_first
    for _ in range(3):
        schedule.failed()
    assert schedule.losses_per_h(PRIOR_H * HOUR_S) == 4 / (2 * PRIOR_H)
    assert schedule.interval_s(PRIOR_H * HOUR_S) < at_first


def test_the_interval_follows_what_the_service_expects() -> None:
    schedule = Schedule(None, now=0.0, losses_per_h=0.5)
    schedule.saved(0.0, cost_s=1.0)
    assert schedule.interval_s(0.0) == best_interval_s(1.0, 2 * HOUR_S)
    assert schedule.interval_s(10 * HOUR_S) == best_interval_s(1.0, 2 * HOUR_S), "calm hours change nothing"
    schedule.expect(2.0, 10 * HOUR_S)
    assert schedule.interval_s(10 * HOUR_S) == best_interval_s(1.0, HOUR_S / 2)
    schedule.expect(None, 11 * HOUR_S)
    assert schedule.losses_per_h(11 * HOUR_S) == 2.0


def test_more_losses_may_make_a_save_due_at_once() -> None:
    schedule = Schedule(None, now=0.0, losses_per_h=0.01)
    schedule.saved(0.0, cost_s=1.0)
    assert not schedule.due(300.0)
    schedule.expect(1.0, 300.0)
    assert schedule.due(300.0)


def test_only_losses_beyond_the_expected_ones_count() -> None:
    """By hand: 1 an hour for 2 hours, then 3 an hour: 5 losses are expected by the third hour."""
    schedule = Schedule(None, now=0.0, losses_per_h=1.0)
    schedule.expect(3.0, 2 * HOUR_S)
    for _ in range(5):
        schedule.failed()
    assert schedule.losses_per_h(3 * HOUR_S) == pytest.approx(3.0)
    schedule.failed()
    schedule.failed()
    assert schedule.losses_per_h(3 * HOUR_S) == pytest.approx(3.0 + 2 / (PRIOR_H + 3))
    # As the expected ones catch up, the excess is forgotten.
    assert schedule.losses_per_h(3 * HOUR_S + 2 * HOUR_S / 3) == pytest.approx(3.0)


def test_a_run_on_machines_that_hardly_fail_still_learns_from_its_own_losses() -> None:
    schedule = Schedule(None, now=9 * HOUR_S, losses_per_h=1e-4)
    schedule.failed()
    assert schedule.losses_per_h(10 * HOUR_S) == pytest.approx(1 / (PRIOR_H + 1), rel=1e-3)


def test_a_storage_that_is_slow_is_not_written_without_end() -> None:
    schedule = Schedule(None, now=0.0)
    schedule.saved(0.0, cost_s=0.01)
    assert schedule.interval_s(0.0) == SHORTEST_S
    schedule.completed(300.0)
    assert schedule.interval_s(0.0) == 600.0
