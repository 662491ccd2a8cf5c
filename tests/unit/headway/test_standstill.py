"""The watch of a main loop: what a process does to its own loop is reported, what the host does to it is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.standstill import Readings, locked_s, unanswered_s

SECONDS = st.floats(0.0, 1e3)
ZERO = Readings(0.0, 0.0, 0.0, 0.0, 0.0)


def after(
    at_s: float, cpu_s: float = 0.0, others_s: float = 0.0, queued_s: float = 0.0, own_s: float = 0.0
) -> Readings:
    return Readings(at_s, cpu_s, others_s, queued_s, own_s)


def test_blocked_loop_counts_whole_while_the_watcher_is_on_time() -> None:
    assert unanswered_s(ZERO, after(3.0), late_s=0.0) == 3.0


def test_computing_loop_counts_its_processor_time() -> None:
    assert unanswered_s(ZERO, after(3.0, cpu_s=2.0, queued_s=1.0), late_s=1.5) == 2.0


def test_stopped_process_counts_nothing() -> None:
    assert unanswered_s(ZERO, after(60.0), late_s=60.0) == 0.0
    assert locked_s(ZERO, after(60.0), 0.05) == 0.0


def test_starved_process_counts_nothing() -> None:
    assert unanswered_s(ZERO, after(5.0, queued_s=5.0), late_s=0.0) == 0.0
    assert locked_s(ZERO, after(5.0, cpu_s=4.0, own_s=4.95), 0.05) == 0.0


def test_interpreter_lock_held_by_another_thread_counts_its_processor_time() -> None:
    assert unanswered_s(ZERO, after(4.0, others_s=3.5), late_s=4.0) == 3.5


def test_native_call_between_two_probes_counts() -> None:
    assert round(locked_s(ZERO, after(8.05, cpu_s=7.9), 0.05), 6) == 7.9


@given(at_s=SECONDS, cpu_s=SECONDS, others_s=SECONDS, queued_s=SECONDS, late_s=SECONDS)
def test_share_is_at_least_the_processor_time_and_falls_with_lateness(
    at_s: float, cpu_s: float, others_s: float, queued_s: float, late_s: float
) -> None:
    readings = after(at_s, cpu_s, others_s, queued_s)
    share = unanswered_s(ZERO, readings, late_s)
    assert share >= cpu_s
    assert share <= unanswered_s(ZERO, readings, late_s / 2)
