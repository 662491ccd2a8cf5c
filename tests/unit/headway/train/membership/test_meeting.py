"""The time limit of the next attempt to reach a store."""

from __future__ import annotations

import math

import pytest

from headway.train.membership.meeting import next_limit_s


@pytest.mark.parametrize(
    ("limit_s", "took_s", "next_s"),
    [
        (1, -math.inf, 1),
        (1, 0.2, 1),
        (1, 1.1, 1),
        (1, 2, 1),
        (1, 5, 10),
        (10, 10.5, 10),
        (1, 3600, 60),
        (60, 3600, 60),
    ],
)
def test_an_attempt_that_its_host_held_up_gives_the_next_twice_its_time(
    limit_s: float, took_s: float, next_s: float
) -> None:
    assert next_limit_s(limit_s, took_s) == next_s
