"""Tests of rate limits: the rate on average, the burst at once, and clients in debt."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.identity.rates import Bucket, Rate

RATE = Rate(per_s=2.0, burst=10.0)


def full(at_s: float = 0.0) -> Bucket:
    return Bucket(left=RATE.burst, at_s=at_s)


@pytest.mark.parametrize(
    ("left", "later_s", "cost", "wait_s", "left_after"),
    [
        (10.0, 0.0, 1.0, 0.0, 9.0),
        (10.0, 0.0, 10.0, 0.0, 0.0),
        (10.0, 0.0, 11.0, 0.5, 10.0),
        (0.0, 0.0, 1.0, 0.5, 0.0),
        (0.0, 0.25, 1.0, 0.25, 0.5),
        (0.0, 0.5, 1.0, 0.0, 0.0),
        (0.0, 3.0, 1.0, 0.0, 5.0),
        (0.0, 100.0, 1.0, 0.0, 9.0),
        (-4.0, 0.0, 1.0, 2.5, -4.0),
        (-4.0, 2.5, 1.0, 0.0, 0.0),
        (5.0, 0.0, 0.0, 0.0, 5.0),
    ],
    ids=[
        "one", "burst", "more than burst", "empty", "too early", "just filled", "filled", "no more than full",
        "debt", "paid debt", "free",
    ],
)  # fmt: skip
def test_a_request_takes_its_tokens_or_is_told_when_they_are_there(
    left: float, later_s: float, cost: float, wait_s: float, left_after: float
) -> None:
    """Two tokens a second, ten at most."""
    bucket = Bucket(left=left, at_s=100.0)
    assert bucket.take(RATE, 100.0 + later_s, cost) == pytest.approx(wait_s)
    assert bucket.left == pytest.approx(left_after)


@pytest.mark.parametrize(
    ("left", "cost", "left_after"),
    [(10.0, 3.0, 7.0), (2.0, 3.0, -1.0), (0.0, 10.0, -10.0), (-5.0, 9.0, -10.0), (10.0, 1e9, -10.0)],
)
def test_a_charge_makes_debts_up_to_the_burst(left: float, cost: float, left_after: float) -> None:
    bucket = Bucket(left=left, at_s=0.0)
    bucket.charge(RATE, 0.0, cost)
    assert bucket.left == left_after


def test_a_charge_counts_the_time_before_it() -> None:
    bucket = Bucket(left=0.0, at_s=0.0)
    bucket.charge(RATE, 2.0, 1.0)
    assert (bucket.left, bucket.at_s) == (3.0, 2.0)


def test_a_clock_that_goes_back_neither_adds_nor_removes_tokens() -> None:
    bucket = Bucket(left=1.0, at_s=100.0)
    assert bucket.take(RATE, 50.0) == 0.0
    assert (bucket.left, bucket.at_s) == (0.0, 100.0)
    assert bucket.take(RATE, 100.0) == 0.5, "time that counted once does not count again"


rates = st.builds(Rate, per_s=st.floats(0.1, 100), burst=st.floats(1, 100))
requests = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), max_size=30)


@settings(max_examples=60)
@given(rates, requests)
def test_no_client_takes_more_than_the_burst_and_the_rate(
    rate: Rate, asked: list[tuple[float, float]]
) -> None:
    bucket, now_s, taken = Bucket(left=rate.burst, at_s=0.0), 0.0, 0.0
    for later_s, cost in asked:
        now_s += later_s
        taken += cost if bucket.take(rate, now_s, cost) == 0.0 else 0.0
        assert taken <= rate.burst + rate.per_s * now_s + 1e-6
        assert 0 <= bucket.left <= rate.burst


@settings(max_examples=60)
@given(rates, st.floats(-50, 100), st.floats(0, 1))
def test_who_waits_as_long_as_told_is_served(rate: Rate, left: float, part: float) -> None:
    bucket = Bucket(left=min(left, rate.burst), at_s=0.0)
    cost = part * rate.burst
    wait_s = bucket.take(rate, 0.0, cost)
    if wait_s > 0:
        assert bucket.take(rate, wait_s * 0.99, cost) > 0, "not earlier"
        assert bucket.take(rate, wait_s + 1e-6, cost) == 0.0


def test_clients_within_the_rate_never_wait() -> None:
    bucket = full()
    waits = [bucket.take(RATE, 0.5 * number) for number in range(1000)]
    assert set(waits) == {0.0}


def test_a_burst_waits_for_the_rate_once_the_bucket_is_empty() -> None:
    bucket = full()
    waits = [bucket.take(RATE, 0.0) for _ in range(12)]
    assert waits == [0.0] * 10 + [0.5] * 2
