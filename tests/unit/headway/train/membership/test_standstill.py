"""When a rank that waits for its peers stands still, and when a stop ends its wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.train.membership.standstill import (
    ABORTED_AFTER,
    LEAST_S,
    LEAST_STEPS,
    Standing,
    StepPace,
    must_abort,
)
from headway.train.membership.waits import Waits

PATIENCE_S = 30.0

step_times = st.lists(st.floats(0.001, 20), min_size=5, max_size=64)


def paced(steps_s: list[float]) -> tuple[StepPace, float]:
    """A rank after these steps, and the time of the last one."""
    pace, now_s = StepPace(), 100.0
    for step_s in steps_s:
        now_s += step_s
        pace.end(now_s, step_s)
    return pace, now_s


@given(step_times, st.floats(0, 500), st.floats(0, 2000))
def test_a_rank_stands_once_it_waits_longer_than_both_limits_and_than_it_was_busy(
    steps_s: list[float], busy_s: float, waited_s: float
) -> None:
    pace, ended_s = paced(steps_s)
    usual_s = float(torch.tensor(steps_s, dtype=torch.float64).quantile(0.5))
    since_s = ended_s + busy_s
    limit_s = max(LEAST_S, LEAST_STEPS * usual_s) + busy_s
    standing = pace.standing(since_s + waited_s, since_s)
    if waited_s < limit_s - 1e-6:
        assert standing is None
    elif waited_s > limit_s + 1e-6:
        assert standing is not None
        assert standing.silent_s == pytest.approx(busy_s + waited_s)
        assert standing.usual_s == pytest.approx(usual_s)


@given(step_times)
def test_nobody_stands_who_waits_for_no_peer_or_has_new_peers(steps_s: list[float]) -> None:
    pace, ended_s = paced(steps_s)
    later_s = ended_s + 10_000
    assert pace.standing(later_s, ended_s) is not None
    assert pace.standing(later_s, None) is None
    pace.restart()
    assert pace.standing(later_s, ended_s) is None


@given(st.lists(st.floats(0.001, 20), max_size=4))
def test_nobody_stands_before_the_usual_step_is_known(steps_s: list[float]) -> None:
    pace, ended_s = paced(steps_s)
    assert pace.standing(ended_s + 10_000, ended_s) is None


def test_the_step_that_ends_a_standstill_reports_it_once_and_is_no_usual_step() -> None:
    pace, ended_s = paced([1.0] * 5)
    pace.announced = pace.standing(ended_s + 30, ended_s)
    assert pace.end(ended_s + 42.0, 42.0) == Standing(pytest.approx(42.0), pytest.approx(1.0))
    assert pace.end(ended_s + 43.0, 1.0) is None
    again = pace.standing(ended_s + 99.0, ended_s + 43.0)
    assert again is not None
    assert again.usual_s == pytest.approx(1.0)


@given(st.floats(0, 1000), st.floats(0, 1000), st.floats(0.1, 600), st.floats(0, 2000))
def test_a_stop_ends_a_wait_after_its_share_of_the_grace_period_and_no_younger_one(
    stopped_s: float, since_s: float, grace_s: float, after_s: float
) -> None:
    now_s = max(stopped_s, since_s) + after_s
    assert must_abort(now_s, since_s, stopped_s, grace_s) == (
        now_s - max(stopped_s, since_s) >= ABORTED_AFTER * grace_s
    )
    assert not must_abort(now_s, None, stopped_s, grace_s)


GRACE_S = 60.0


@pytest.mark.parametrize(
    ("after_s", "save_s", "gone", "aborts"),
    [
        (19.9, 2.0, True, False),
        (20.1, 2.0, True, True),
        (20.1, 2.0, False, False),
        (48.9, 2.0, False, False),
        (49.1, 2.0, False, True),  # three saves and 5 s before the end
        (20.1, None, False, True),
        (20.1, 18.4, False, True),
    ],
)
def test_a_stop_waits_for_a_slow_peer_as_long_as_a_save_still_fits(
    after_s: float, save_s: float | None, *, gone: bool, aborts: bool
) -> None:
    found = must_abort(100.0 + after_s, 100.0, 100.0, GRACE_S, save_s=save_s, is_gone=lambda: gone)
    assert found == aborts


def test_a_wait_that_began_late_lasts_for_its_share_too() -> None:
    assert not must_abort(155.0, 140.0, 100.0, GRACE_S, save_s=1.0)
    assert must_abort(160.1, 140.0, 100.0, GRACE_S, save_s=1.0)


class Work:
    """A collective that ends when it is told to."""

    def __init__(self) -> None:
        self.ended = False

    def is_completed(self) -> bool:
        return self.ended


def test_a_wait_is_as_old_as_the_oldest_operation_that_has_not_ended() -> None:
    waits, work = Waits(), Work()
    began: list[float | None] = [waits.since_s()]
    waits.gathering(work)
    began.append(waits.since_s())
    promise = waits.promise(torch.zeros(1))
    began.append(waits.since_s())
    work.ended = True
    began.append(waits.since_s())
    promise.fulfil()
    began.append(waits.since_s())
    with waits.blocking():
        began.append(waits.since_s())
    began.append(waits.since_s())
    known: list[Any] = began
    assert [one is None for one in known] == [True, False, False, False, True, False, True]
    assert known[1] == known[2] <= known[3] <= known[5]


def test_an_abandoned_promise_counts_as_stuck_once() -> None:
    waits = Waits()
    waits.promise(torch.zeros(1))
    assert waits.fulfil()
    assert waits.since_s() is None
    assert not waits.fulfil()


class ForgottenWork:
    """A collective that never ends, whose wait of a limited time fails after it, as those of gloo do."""

    def __init__(self) -> None:
        self.looks = threading.Semaphore(0)

    def is_completed(self) -> bool:
        return False

    def wait(self, limit: timedelta) -> None:
        self.looks.release()
        threading.Event().wait(limit.total_seconds())
        raise RuntimeError("Operation timed out!")


class FailedWork:
    """A collective that has failed."""

    def is_completed(self) -> bool:
        return True

    def wait(self, _limit: timedelta) -> None:
        raise RuntimeError("Connection closed by peer")


def test_wait_for_an_operation_that_gloo_forgets_lasts_until_the_abort() -> None:
    waits, work = Waits(), ForgottenWork()
    with ThreadPoolExecutor(1) as aside:
        waiting = aside.submit(waits.until, work)
        for _ in range(3):
            assert work.looks.acquire(timeout=PATIENCE_S)
        assert not waiting.done()
        assert not waits.outlast()
        waits.fulfil()
        with pytest.raises(RuntimeError, match="aborted"):
            waiting.result(PATIENCE_S)
    assert waits.outlast(), "its group cannot be destroyed"


def test_wait_for_a_failed_operation_raises_its_error_without_an_abort() -> None:
    waits = Waits()
    with pytest.raises(RuntimeError, match="closed by peer"):
        waits.until(FailedWork())
    waits.fulfil()
    assert not waits.outlast()


def test_gather_that_gloo_forgets_keeps_its_group_after_the_abort() -> None:
    waits = Waits()
    waits.gathering(ForgottenWork())
    waits.fulfil()
    assert waits.outlast()


def test_call_of_another_thread_returns_its_error_or_ends_with_the_abort() -> None:
    waits, may_end = Waits(), threading.Event()
    done = []
    waits.until_returned(lambda: done.append(1))
    assert done == [1]

    def fail() -> None:
        raise ValueError("of the call")

    with pytest.raises(ValueError, match="of the call"):
        waits.until_returned(fail)
    assert not waits.outlast()
    waits.fulfil()
    with pytest.raises(RuntimeError, match="aborted"):
        waits.until_returned(lambda: may_end.wait(PATIENCE_S))
    may_end.set()
    assert waits.outlast()
