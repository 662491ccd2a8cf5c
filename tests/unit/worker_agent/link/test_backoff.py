"""Delays of an agent before its next attempt."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from worker_agent.link.service_api import Backoff, Unreachable

SEEDS = st.integers(0, 2**32)


@given(seed=SEEDS, asked_s=st.floats(0.1, 10.0), failures=st.integers(1, 40))
def test_a_busy_service_says_itself_when_to_come_back(seed: int, asked_s: float, failures: int) -> None:
    backoff = Backoff(random.Random(seed))
    busy = Unreachable("429", retry_after_s=asked_s, is_busy=True)
    waits = [backoff.after_s(busy) for _ in range(failures)]
    assert all(asked_s <= one <= 1.5 * asked_s for one in waits)


@given(seed=SEEDS, asked_s=st.floats(0.0, 10.0), busy=st.booleans())
def test_a_service_that_is_away_is_asked_ever_less(seed: int, asked_s: float, *, busy: bool) -> None:
    """One that is busy and does not say for how long too."""
    asked_s = 0.0 if busy else asked_s
    backoff = Backoff(random.Random(seed))
    away = Unreachable("away", retry_after_s=asked_s, is_busy=busy)
    waits = [backoff.after_s(away) for _ in range(12)]
    assert all(asked_s <= one <= max(10.0, 1.5 * asked_s) for one in waits)
    assert waits[-1] >= 5.0
    backoff.reset()
    assert backoff.after_s(Unreachable("away")) <= 0.2
