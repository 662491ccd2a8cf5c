"""Ranks that stay slower than their peers: found soon, never by chance."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.train.data.stragglers import (
    CLEARED_AT,
    FEWEST_RANKS,
    FOUND_AT,
    FOUND_DEVIATIONS,
    SLOW,
    WINDOW,
    StragglerWatch,
)

WITHIN = 50
"""Steps within which a straggler is found."""
SEEDS = st.integers(0, 2**32 - 1)


def steps_until(
    watch: StragglerWatch, times: list[float], noise: float, dice: random.Random, most: int
) -> int:
    """Return the number of steps until the watch changes, `most` if it does not. Samples follow the speeds, as balanced ones."""
    samples = [max(1, round(24 / one)) for one in times]
    for step in range(most):
        compute_s = [
            0.01 * count * one * dice.lognormvariate(0.0, noise)
            for count, one in zip(samples, times, strict=True)
        ]
        watch.observe(samples, compute_s, ())
        if watch.changed:
            return step + 1
    return most


@given(SEEDS, st.integers(FEWEST_RANKS, 24), st.floats(1.5, 20.0), st.floats(0.0, 0.1))
def test_a_slow_rank_is_found_within_50_steps(seed: int, ranks: int, times: float, noise: float) -> None:
    dice, watch = random.Random(seed), StragglerWatch()
    slow = dice.randrange(ranks)
    assert steps_until(watch, [1.0] * ranks, noise, dice, 200) == 200, "all alike"
    assert (
        steps_until(watch, [times if rank == slow else 1.0 for rank in range(ranks)], noise, dice, 51)
        <= WITHIN
    )
    told = watch.take()
    assert [rank for rank, one in enumerate(told) if one] == [slow]
    assert told[slow] == pytest.approx(times, rel=0.35)
    assert watch.take() == (), "said once"
    assert steps_until(watch, [1.0] * ranks, noise, dice, 51) <= WITHIN, "it has recovered"
    assert watch.take() == (0.0,) * ranks


@given(SEEDS, st.integers(2, 24), st.floats(0.0, 0.5), st.floats(0.0, 0.3))
@example(seed=2101, ranks=18, noise=0.5, share=0.25)
def test_noise_and_single_long_steps_are_no_stragglers(
    seed: int, ranks: int, noise: float, share: float
) -> None:
    dice, watch = random.Random(seed), StragglerWatch()
    for _ in range(500):
        compute_s = [
            0.1 * dice.lognormvariate(0.0, noise) * (10.0 if dice.random() < share else 1.0)
            for _ in range(ranks)
        ]
        watch.observe([8] * ranks, compute_s, ())
        assert not watch.changed


@given(SEEDS, st.integers(6, 24), st.floats(3.0, 20.0))
def test_a_slow_rank_is_found_although_long_steps_are_frequent(seed: int, ranks: int, times: float) -> None:
    """One of ten steps of each rank takes ten times as long, and the slow rank is slow in all of them."""
    dice, watch = random.Random(seed), StragglerWatch()
    for _ in range(WITHIN):
        own = [0.1 * (10.0 if dice.random() < 0.1 else 1.0) for _ in range(ranks - 1)]
        watch.observe([8] * ranks, [0.1 * times * max(1.0, dice.lognormvariate(0.0, 0.3)), *own], ())
    assert [rank for rank, one in enumerate(watch.take()) if one] == [0]


@given(SEEDS, st.integers(3, 12))
def test_at_most_half_of_the_ranks_are_stragglers(seed: int, ranks: int) -> None:
    dice, watch = random.Random(seed), StragglerWatch()
    times = [dice.choice([1.0, 2.0, 5.0]) for _ in range(ranks)]
    steps_until(watch, times, 0.0, dice, WITHIN)
    for _ in range(WINDOW):
        watch.observe([8] * ranks, [0.1 * one for one in times], ())
    assert sum(one > 0 for one in watch.take()) <= ranks / 2


def test_expected_speeds_are_no_slowness() -> None:
    watch = StragglerWatch()
    for _ in range(100):
        watch.observe([8, 8, 2], [0.1, 0.1, 0.1], (4.0, 4.0, 1.0))
    assert not watch.changed


def test_differences_of_a_millisecond_do_not_count() -> None:
    watch = StragglerWatch()
    for _ in range(100):
        watch.observe([8, 8, 8], [0.0003, 0.0003, 0.0012], ())
    assert not watch.changed


def test_a_straggler_is_told_again_and_other_ranks_begin_anew() -> None:
    watch = StragglerWatch()
    told = 0
    for _ in range(2048):
        watch.observe([8, 8, 8], [0.1, 0.1, 0.3], ())
        told += watch.take() != ()
    assert told == 3
    watch.observe([8, 8], [0.1, 0.3], ())
    assert watch.take() == ()


@given(SEEDS, st.integers(FEWEST_RANKS, 8), st.floats(0.0, 0.6), st.floats(1.0, 4.0))
def test_watch_finds_the_stragglers_of_the_rule_applied_to_every_rank_in_every_step(
    seed: int, ranks: int, noise: float, times: float
) -> None:
    dice, watch = random.Random(seed), StragglerWatch()
    slow: list[list[bool]] = [[] for _ in range(ranks)]
    found: set[int] = set()
    reported: set[int] = set()
    for step in range(160):
        usual = [times if rank == 0 and step < 100 else 1.0 for rank in range(ranks)]
        took_s = [0.1 * one * dice.lognormvariate(0.0, noise) for one in usual]
        watch.observe([8] * ranks, took_s, ())
        for rank, own in enumerate(took_s):
            others = statistics.geometric_mean(middle_two(took_s[:rank] + took_s[rank + 1 :]))
            longer = own > statistics.median_low(took_s)
            slow[rank] = [*slow[rank], longer and own >= SLOW * others][-WINDOW:]
            mean = statistics.fmean(sum(one) for one in slow)
            chance = mean + FOUND_DEVIATIONS * math.sqrt(mean * (1.0 - mean / WINDOW))
            if rank not in found and sum(slow[rank]) >= max(FOUND_AT, chance):
                found.add(rank)
            elif sum(slow[rank]) <= CLEARED_AT:
                found.discard(rank)
        if told := watch.take():
            reported = {rank for rank, one in enumerate(told) if one}
        assert reported == found, step


def middle_two(times: list[float]) -> list[float]:
    """Return the middle time of an odd number, and the middle two of an even one."""
    return [statistics.median_low(times), statistics.median_high(times)]
