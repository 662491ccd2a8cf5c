"""The time limit of the next attempt to reach a store."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headway.train.membership.meeting import next_attempt


@pytest.mark.parametrize(
    ("limit_s", "took_s", "next_s"),
    [(1, 0.2, 1), (1, 1.1, 1), (1, 2, 1), (1, 5, 10), (10, 10.5, 10), (10, 30, 60)],
)
def test_an_attempt_that_its_host_held_up_gives_the_next_twice_its_time(
    limit_s: float, took_s: float, next_s: float
) -> None:
    assert next_attempt(timedelta(seconds=limit_s), timedelta(seconds=took_s)) == timedelta(seconds=next_s)
