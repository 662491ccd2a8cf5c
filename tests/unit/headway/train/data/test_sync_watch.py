"""Synchronisation that becomes slower: found soon, told once, never by chance."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from headway.train.data.sync_watch import FOUND_AT, LEAST_EXCESS_S, SLOW, USUAL_STEPS, WINDOW, SyncWatch

SEEDS = st.integers(0, 2**32 - 1)


def steps_until(watch: SyncWatch, sync_s: float, noise: float, dice: random.Random, most: int) -> int:
    """Return the number of steps until the watch tells something, `most` if it does not."""
    for step in range(most):
        watch.observe(sync_s * dice.lognormvariate(0.0, noise))
        if watch.take():
            return step + 1
    return most


@given(SEEDS, st.floats(0.01, 1.0), st.floats(2.5, 50.0), st.floats(0.0, 0.1))
def test_slower_synchronisation_is_found_within_20_steps_and_equal_one_never(
    seed: int, usual_s: float, times: float, noise: float
) -> None:
    dice, watch = random.Random(seed), SyncWatch()
    assert steps_until(watch, usual_s, noise, dice, 300) == 300
    assert steps_until(watch, usual_s * times, noise, dice, 50) <= WINDOW


def test_the_ratio_is_told_once_and_the_new_time_is_usual_then() -> None:
    watch = SyncWatch()
    for _ in range(USUAL_STEPS):
        watch.observe(0.1)
    for _ in range(FOUND_AT):
        watch.observe(0.9)
    assert watch.take() == 9.0
    assert watch.take() == 0.0
    assert steps_until(watch, 0.9, 0.0, random.Random(0), 200) == 200


def test_a_pause_of_some_steps_and_differences_below_the_least_are_nothing() -> None:
    watch, dice = SyncWatch(), random.Random(0)
    for _ in range(10):
        assert steps_until(watch, 0.1, 0.0, dice, 30) == 30
        assert steps_until(watch, 10.0, 0.0, dice, FOUND_AT - 1) == FOUND_AT - 1
    tiny = SyncWatch()
    assert steps_until(tiny, LEAST_EXCESS_S / 10, 0.0, dice, 100) == 100
    assert steps_until(tiny, SLOW * LEAST_EXCESS_S / 10, 0.0, dice, 100) == 100


def test_another_membership_begins_anew() -> None:
    watch = SyncWatch()
    assert steps_until(watch, 0.1, 0.0, random.Random(0), USUAL_STEPS) == USUAL_STEPS
    watch.forget()
    assert steps_until(watch, 0.9, 0.0, random.Random(0), 200) == 200
