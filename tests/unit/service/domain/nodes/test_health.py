"""Bad devices: grades, quarantines that do not flap, and slow ranks."""

from __future__ import annotations

import statistics
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.health import FaultCause, FaultGrade
from headway.contract.run_facts import SlowRank
from service.domain.cluster.snapshot import SlotKey
from service.domain.nodes.health import (
    FIRST_PROBE_S,
    LONGEST_WAIT_S,
    REMEMBERED,
    SLOW_FACTOR,
    SLOW_FOR_S,
    SLOW_WINDOWS,
    STILL_SLOW,
    TOO_OFTEN,
    Fault,
    FaultResponse,
    Quarantine,
    RankPace,
    after_probe,
    decide,
    grade,
    is_due,
    released,
    slow_ranks,
)
from tests.unit.service.builders import NOW

SLOT = SlotKey("n", 2)
FIRST, SECOND = "GPU-first", "GPU-second"
FATAL, SUSPICIOUS, JOB_ERROR = FaultGrade.FATAL, FaultGrade.SUSPICIOUS, FaultGrade.JOB_ERROR


def fault(cause: FaultCause = FaultCause.XID, code: int | None = 63, **fields: Any) -> Fault:
    return Fault(cause=cause, code=code, **{"device_kind": "a100", **fields})


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def confined(one: Fault, history: list[Quarantine], now: datetime = NOW, device: str = FIRST) -> Quarantine:
    verdict = decide(one, SLOT, device, history, now)
    assert verdict.step is FaultResponse.CONFINE
    assert verdict.quarantine is not None
    return verdict.quarantine


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        *((fault(code=code), JOB_ERROR) for code in (13, 31, 43, 45)),
        *((fault(code=code), SUSPICIOUS) for code in (63, 94, 109)),
        *((fault(code=code), FATAL) for code in (48, 64, 74, 79, 95, 119, 120)),
        (fault(code=999), SUSPICIOUS),
        (fault(code=None), SUSPICIOUS),
        (fault(FaultCause.ECC, 3), SUSPICIOUS),
        (fault(FaultCause.ECC, 3, lasting=True), FATAL),
        (fault(FaultCause.TEMPERATURE, 95), SUSPICIOUS),
        (fault(FaultCause.GONE, None), SUSPICIOUS),
        (fault(FaultCause.SLOW, None), SUSPICIOUS),
        (fault(FaultCause.SLOW, None, device_kind="cpu"), JOB_ERROR),
        (fault(FaultCause.OPERATOR, None), FATAL),
    ],
)
def test_how_bad_a_fault_is(one: Fault, expected: FaultGrade) -> None:
    assert grade(one).grade is expected


def test_a_probe_from_before_the_last_fault_says_nothing() -> None:
    begun, due = confined(fault(), []), later(FIRST_PROBE_S)
    verdict = decide(fault(code=94), SLOT, FIRST, [begun], due)
    assert verdict.step is FaultResponse.POSTPONE
    assert verdict.quarantine is not None
    assert after_probe(verdict.quarantine, due, healthy=True, message="") == verdict.quarantine
    assert is_due(verdict.quarantine, due + timedelta(seconds=FIRST_PROBE_S))


def test_the_third_complaint_within_a_day_is_fatal() -> None:
    history: list[Quarantine] = []
    waits = []
    for number in range(1, TOO_OFTEN + 1):
        at = later(3600.0 * number)
        begun = confined(fault(), history, at)
        waits.append(begun.probe_at and (begun.probe_at - at).total_seconds())
        history.append(released(begun, at + timedelta(minutes=10), "a probe found it healthy"))
    assert waits == [FIRST_PROBE_S, 2 * FIRST_PROBE_S, None]
    assert history[-1].grade is FATAL
    assert "number 3 within a day" in history[-1].message
    another = confined(fault(), history, later(4 * 3600.0), SECOND)
    assert another.grade is SUSPICIOUS, "another device is in its place"
    much_later = confined(fault(), history, history[-1].since + REMEMBERED)
    assert (much_later.grade, much_later.probe_at) == (
        SUSPICIOUS,
        history[-1].since + REMEMBERED + timedelta(seconds=FIRST_PROBE_S),
    )


def test_slowness_and_operators_do_not_count_against_a_device_for_good() -> None:
    """Scripts say who is slow: their word keeps no device out until somebody comes."""
    history: list[Quarantine] = []
    for number in range(9):
        at = later(3600.0 * number)
        begun = confined(fault(FaultCause.SLOW, None), history, at)
        assert begun.grade is SUSPICIOUS
        assert begun.probe_at == at + timedelta(seconds=min(FIRST_PROBE_S * 2**number, LONGEST_WAIT_S))
        history.append(released(begun, begun.probe_at, "a probe found it healthy"))
    asked = confined(fault(FaultCause.OPERATOR, None), history, later(36_000))
    history.append(released(asked, later(36_001), "an operator"))
    assert confined(fault(), history, later(36_002)).grade is SUSPICIOUS


steps = st.lists(
    st.tuples(
        st.floats(0.0, 7200.0),
        st.one_of(
            st.builds(
                fault,
                cause=st.sampled_from([one for one in FaultCause if one is not FaultCause.OPERATOR]),
                code=st.sampled_from([None, 13, 63, 79, 94]),
            ),
            st.booleans(),
        ),
    ),
    max_size=40,
)


@given(steps)
@settings(max_examples=50)
def test_any_sequence_of_faults_and_probes(steps_: list[tuple[float, Fault | bool]]) -> None:
    """Faults, and probes (True: good) whenever. One quarantine is open at most; fatal ones stay; nothing is tried early,
    and a device that keeps coming back is out in the end.
    """
    now, history = NOW, list[Quarantine]()
    for wait_s, what in steps_:
        now += timedelta(seconds=wait_s)
        present = history[-1] if history and history[-1].is_open else None
        if isinstance(what, bool):
            if present is None:
                continue
            after = after_probe(present, now, healthy=what, message="")
            assert after.is_open or (present.grade is SUSPICIOUS and what)
            if present.grade is FATAL or present.probe_at is None or present.probe_at > now:
                assert after == present
            history[-1] = after
        else:
            verdict = decide(what, SLOT, FIRST, history, now)
            if grade(what).grade is JOB_ERROR:
                assert verdict.step is FaultResponse.NOTE
                continue
            after = verdict.quarantine
            assert after is not None
            assert (verdict.step is FaultResponse.CONFINE) is (present is None)
            assert after.is_open
            assert (after.grade is FATAL) is (after.probe_at is None)
            if after.probe_at is not None:
                assert now + timedelta(seconds=FIRST_PROBE_S) <= after.probe_at
            if present is not None and present.grade is FATAL:
                assert after == present
            history[-1:] = [after] if present is not None else [*history[-1:], after]
    began = [one.since for one in history if one.cause is not FaultCause.SLOW and one.grade is SUSPICIOUS]
    for first, third in zip(began, began[TOO_OFTEN - 1 :], strict=False):
        assert third - first >= REMEMBERED


def paces(*sample_s: float) -> list[RankPace]:
    return [RankPace(SlotKey("n", slot), one) for slot, one in enumerate(sample_s)]


def reported(times: float, windows: int, over_s: float, *, normal: float = 0.01) -> list[SlowRank]:
    """Return the slow ranks after `windows` reports of a rank that takes `times` as long as its three peers."""
    known: list[SlowRank] = []
    for number in range(windows):
        at = later(over_s * number / max(windows - 1, 1))
        known = list(slow_ranks(known, paces(normal, normal, normal * times, normal), at))
    return known


def test_one_good_report_and_it_begins_anew() -> None:
    slow = reported(2.0, SLOW_WINDOWS, SLOW_FOR_S)
    assert slow_ranks(slow, paces(0.01, 0.01, 0.012, 0.01), later(61)) == ()
    assert slow_ranks(slow, [], later(61)) == ()


@given(st.lists(st.floats(STILL_SLOW * 1.001, SLOW_FACTOR * 0.999), min_size=1, max_size=30), st.booleans())
def test_in_between_nothing_changes(times: list[float], begins_slow: bool) -> None:
    """A rank about the limit is not called slow and well by turns."""
    known = reported(2.0, 1, 0.0) if begins_slow else []
    for number, one in enumerate(times):
        known = list(slow_ranks(known, paces(0.01, 0.01, 0.01 * one, 0.01), later(number)))
        assert bool(known) is begins_slow
    if begins_slow:
        assert known[0].windows == 1 + len(times)


@given(st.lists(st.floats(0.0, 1e3), max_size=12))
def test_at_most_half_are_slow(sample_s: list[float]) -> None:
    found = slow_ranks([], paces(*sample_s), NOW)
    known = [one for one in sample_s if one > 0]
    assert len(found) <= len(known) / 2
    if len(known) < 3:
        assert found == (), "of two nobody can say which one is wrong"
    for one in found:
        assert one.times <= 1e6
        others = [pace for slot, pace in enumerate(sample_s) if slot != one.slot and pace > 0]
        assert (
            sample_s[one.slot] / statistics.median_high(others) == pytest.approx(one.times)
            or one.times == 1e6
        )
        assert one.times >= SLOW_FACTOR


def test_a_rank_is_slow_only_among_ranks_of_its_kind() -> None:
    sample_s = (0.01, 0.01, 0.01, 0.04, 0.04, 0.08)
    kinds = ("a100", "a100", "a100", "t4", "t4", "t4")
    mixed = [
        RankPace(SlotKey("n", slot), one, kind)
        for slot, (one, kind) in enumerate(zip(sample_s, kinds, strict=True))
    ]
    (slow,) = slow_ranks((), mixed, NOW)
    assert (slow.slot, slow.times) == (5, pytest.approx(2.0))
    assert [one.slot for one in slow_ranks((), paces(*sample_s), NOW)] == [3, 4, 5]
