"""Reports on their way to trackers, and TensorBoard's files as TensorBoard reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.train.trackers import sender as sending
from headway.train.trackers.sender import Sender, TrackedReport
from headway.train.trackers.tensorboard import _masked_crc, _varint
from tests.unit.headway.train.test_session import make_run

FIRST = TrackedReport(
    step=1, first_step=1, epoch=0, samples=8, generation=1, world_size=2, at_s=1e9, values={"loss": 1.0}
)


def at(step: int, *, generation: int = 1, first_step: int = 1, **values: float) -> TrackedReport:
    return replace(FIRST, step=step, generation=generation, first_step=first_step, values=values)


class Kept:
    """A tracker that keeps what it gets, unless `fails` says that it is away."""

    def __init__(self, *, fails: Callable[[], bool] = lambda: False) -> None:
        self.reports: list[TrackedReport] = []
        self.closed: list[bool] = []
        self.tries = threading.Semaphore(0)
        self._fails = fails

    def write(self, reports: Sequence[TrackedReport]) -> None:
        failed = self._fails()
        self.tries.release()
        if failed:
            raise OSError("nobody answers")
        self.reports += reports

    def close(self, *, complete: bool) -> None:
        self.closed.append(complete)


def test_reports_arrive_in_order_and_the_tracker_is_closed() -> None:
    kept = Kept()
    sender = Sender("kept", lambda: kept)
    for step in range(2000):
        sender.put(at(step))
    sender.close(complete=True)
    assert [report.step for report in kept.reports] == list(range(2000))
    assert kept.closed == [True]


def test_nothing_is_opened_without_a_report() -> None:
    def never() -> Kept:
        raise AssertionError("it was opened")

    Sender("kept", never).close(complete=True)


def test_a_tracker_that_was_away_gets_what_it_missed(capsys: pytest.CaptureFixture[str]) -> None:
    away = threading.Event()
    away.set()
    kept = Kept(fails=away.is_set)
    sender = Sender("kept", lambda: kept)
    sender.put(at(1))
    assert kept.tries.acquire(timeout=30)
    sender.put(at(2))
    away.clear()
    sender.close(complete=False)
    assert [report.step for report in kept.reports] == [1, 2]
    assert (
        "kept does not accept reports, so they are retried later: OSError: nobody answers"
        in capsys.readouterr().err
    )


def test_what_did_not_arrive_is_said_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    kept = Kept(fails=lambda: True)
    sender = Sender("kept", lambda: kept)
    sender.put(at(1))
    sender.close(complete=True)
    assert "1 reports did not reach kept" in capsys.readouterr().err
    assert kept.closed == []


def test_a_tracker_that_never_answers_holds_up_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    gate, entered = threading.Event(), threading.Event()

    def hang() -> bool:
        entered.set()
        gate.wait()
        return False

    sender = Sender("kept", lambda: Kept(fails=hang))
    sender.put(at(0))
    assert entered.wait(30)
    for step in range(sending.MOST_WAITING + 5):
        sender.put(at(step))
    sender.close(complete=True, within_s=0.0)
    assert f"{sending.MOST_WAITING + 6} reports did not reach kept" in capsys.readouterr().err
    gate.set()


def test_the_crc_is_castagnoli_s() -> None:
    crc = 0xE3069283  # of "123456789", RFC 3720 and every table of CRCs
    assert _masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@given(st.integers(0, 2**63 - 1))
def test_integers_are_protobuf_s(value: int) -> None:
    encoded = _varint(value)
    assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded)) == value
    assert [byte >> 7 for byte in encoded] == [1] * (len(encoded) - 1) + [0]


def test_a_run_without_trackers_has_no_thread_for_them() -> None:
    before = set(threading.enumerate())
    run = make_run()
    run.report(loss=1.0)
    assert not set(threading.enumerate()) - before
