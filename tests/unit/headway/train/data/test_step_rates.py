"""Times of a sample per rank, reported only when a rank is slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.train.data.step_rates import NOTABLE, RANKS_EVERY_STEP, StepRates


def test_whoever_is_slow_is_named_with_all_others() -> None:
    paces = StepRates()
    paces.add([4, 4, 2], [0.04, 0.06, 0.04])
    paces.add([4, 4, 2], [0.04, 0.06, 0.08])
    assert paces.take() == pytest.approx((0.01, 0.015, 0.03))
    assert paces.take() == (), "once"


def test_nothing_is_said_while_all_are_about_as_fast() -> None:
    paces = StepRates()
    paces.add([4, 4, 4], [0.04, 0.04, 0.04 * NOTABLE * 0.99])
    assert paces.take() == ()
    paces.add([4], [100.0])
    assert paces.take() == ()


def test_who_does_not_say_is_not_taken_for_a_fast_one() -> None:
    paces = StepRates()
    paces.add([4, 4, 4], [0.0, 0.04, 0.08])
    paces.add([4, 4, 4], [0.0, 0.0, 0.08])
    assert paces.take() == pytest.approx((0.0, 0.01, 0.02))


def test_other_ranks_begin_anew() -> None:
    paces = StepRates()
    paces.add([4, 4], [0.04, 4.0])
    paces.add([4, 4, 4], [0.04, 0.04, 0.04])
    assert paces.take() == ()
    paces.add([4, 4], [0.04, 4.0])
    paces.forget()
    paces.add([4, 4], [0.04, 0.04])
    assert paces.take() == ()


def test_many_ranks_are_looked_at_now_and_then() -> None:
    paces, ranks = StepRates(), 4 * RANKS_EVERY_STEP
    compute_s = [0.01] * (ranks - 1) + [0.05]
    taken = []
    for _ in range(12):
        paces.add([1] * ranks, compute_s)
        taken.append(paces._samples[0])
    assert taken[-1] == 12 // 4
    assert paces.take()[-1] == pytest.approx(0.05)


@given(st.lists(st.lists(st.floats(0.0, 1e6), min_size=3, max_size=3), max_size=20))
def test_what_is_said_can_be_sent(steps: list[list[float]]) -> None:
    paces = StepRates()
    for compute_s in steps:
        paces.add([1, 2, 3], compute_s)
    said = paces.take()
    assert len(said) in {0, 3}
    assert all(0.0 <= one < float("inf") for one in said)
