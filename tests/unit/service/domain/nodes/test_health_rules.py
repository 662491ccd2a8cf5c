"""The rules of quarantines and slow ranks as tables: grades, responses, waits, and limits."""

from __future__ import annotations

from dataclasses import replace
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
    Fault,
    FaultResponse,
    Quarantine,
    RankPace,
    after_probe,
    decide,
    grade,
    is_due,
    is_held_against,
    is_replaced,
    released,
    slow_ranks,
)
from tests.unit.service.builders import NOW

SLOT = SlotKey("n", 2)
DEVICE, OTHER = "GPU-first", "GPU-second"
FATAL, SUSPICIOUS, JOB_ERROR = FaultGrade.FATAL, FaultGrade.SUSPICIOUS, FaultGrade.JOB_ERROR
NOTE, CONFINE, WORSEN, POSTPONE, STAY = FaultResponse


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def fault(cause: FaultCause = FaultCause.XID, code: int | None = 63, **fields: Any) -> Fault:
    return Fault(cause=cause, code=code, **{"device_kind": "a100", **fields})


PASSING, LASTING, OF_THE_JOB = fault(code=63), fault(code=79), fault(code=31)
SLOW, BY_OPERATOR = fault(FaultCause.SLOW, None), fault(FaultCause.OPERATOR, None)


def quarantine(**fields: Any) -> Quarantine:
    """An open quarantine that began now and is probed in a minute."""
    usual = {
        "node_id": "n",
        "slot": 2,
        "device": DEVICE,
        "grade": SUSPICIOUS,
        "cause": FaultCause.XID,
        "message": "it failed",
        "since": NOW,
        "probe_at": later(FIRST_PROBE_S),
    }
    return Quarantine(**(usual | fields))


def past(ago_s: float, cause: FaultCause = FaultCause.XID, device: str = DEVICE) -> Quarantine:
    """A quarantine that began so long ago and has ended."""
    return quarantine(
        since=later(-ago_s), probe_at=None, released_at=later(-ago_s / 2), cause=cause, device=device
    )


def test_a_quarantine_knows_its_slot_and_whether_it_is_open() -> None:
    assert quarantine().key == SLOT
    assert quarantine().is_open
    assert not quarantine(released_at=NOW).is_open


@pytest.mark.parametrize(
    ("present", "one", "step"),
    [
        (None, OF_THE_JOB, NOTE),
        (None, PASSING, CONFINE),
        (None, LASTING, CONFINE),
        (None, SLOW, CONFINE),
        (None, BY_OPERATOR, CONFINE),
        (None, fault(FaultCause.SLOW, None, device_kind="cpu"), NOTE),
        (SUSPICIOUS, OF_THE_JOB, NOTE),
        (SUSPICIOUS, PASSING, POSTPONE),
        (SUSPICIOUS, SLOW, POSTPONE),
        (SUSPICIOUS, LASTING, WORSEN),
        (SUSPICIOUS, BY_OPERATOR, WORSEN),
        (FATAL, OF_THE_JOB, NOTE),
        (FATAL, PASSING, STAY),
        (FATAL, LASTING, STAY),
        (FATAL, BY_OPERATOR, STAY),
    ],
)
def test_the_response_to_a_fault_by_the_quarantine_of_its_slot(
    present: FaultGrade | None, one: Fault, step: FaultResponse
) -> None:
    open_one = quarantine(grade=present, probe_at=None if present is FATAL else later(60))
    history = [past(1e6)] if present is None else [past(1e6), open_one]
    verdict = decide(one, SLOT, DEVICE, history, NOW)
    assert verdict.step is step
    assert (verdict.quarantine is None) is (step is NOTE)
    if verdict.quarantine is not None:
        assert verdict.quarantine.is_open
        is_fatal = present is FATAL or one in (LASTING, BY_OPERATOR)
        assert verdict.quarantine.grade is (FATAL if is_fatal else SUSPICIOUS)
        assert (verdict.quarantine.probe_at is None) is is_fatal
    if step is STAY:
        assert verdict.quarantine == open_one


def test_a_worse_fault_replaces_the_cause_and_keeps_the_begin() -> None:
    verdict = decide(LASTING, SLOT, DEVICE, [quarantine(id=7, probes=2, cause=FaultCause.ECC)], later(9))
    worse = verdict.quarantine
    assert worse is not None
    assert (worse.id, worse.since, worse.cause, worse.probes) == (7, NOW, FaultCause.XID, 2)
    assert worse.message == verdict.reason == grade(LASTING).what


@pytest.mark.parametrize(
    ("probe_at", "probes", "expected"),
    [
        (60.0, 0, 60.0),  # a minute from now
        (10.0, 0, 60.0),
        (500.0, 0, 500.0),  # never sooner than planned
        (10.0, 3, 8 * 60.0),  # after three failed probes
        (-100.0, 20, 3600.0),
        (None, 1, 120.0),
    ],
)
def test_another_fault_postpones_the_probe(probe_at: float | None, probes: int, expected: float) -> None:
    present = quarantine(probe_at=None if probe_at is None else later(probe_at), probes=probes)
    verdict = decide(PASSING, SLOT, DEVICE, [present], NOW)
    assert verdict.quarantine == replace(present, probe_at=later(expected))


@pytest.mark.parametrize(
    ("earlier", "wait_s", "graded"),
    [
        ([], 60.0, SUSPICIOUS),
        ([past(3600)], 120.0, SUSPICIOUS),
        ([past(3600), past(1800)], None, FATAL),  # the third within a day
        ([past(3600, FaultCause.SLOW)], 120.0, SUSPICIOUS),
        ([past(3600, FaultCause.SLOW)] * 5, 1920.0, SUSPICIOUS),
        ([past(3600, FaultCause.SLOW)] * 7, LONGEST_WAIT_S, SUSPICIOUS),
        ([past(3600, FaultCause.SLOW)] * 2000, LONGEST_WAIT_S, SUSPICIOUS),
        ([past(3600, FaultCause.OPERATOR)] * 5, 60.0, SUSPICIOUS),
        ([past(3600, device=OTHER)] * 5, 60.0, SUSPICIOUS),
        ([past(86_399), past(86_399)], None, FATAL),
        ([past(86_400), past(86_400)], 60.0, SUSPICIOUS),  # a day is over
        ([past(86_400), past(3600)], 120.0, SUSPICIOUS),
        ([past(3600, FaultCause.TEMPERATURE), past(1800, FaultCause.GONE)], None, FATAL),
        ([past(3600, FaultCause.SLOW), past(1800)], 240.0, SUSPICIOUS),
    ],
)
def test_the_wait_doubles_with_each_quarantine_of_the_day_and_the_third_is_fatal(
    earlier: list[Quarantine], wait_s: float | None, graded: FaultGrade
) -> None:
    begun = decide(PASSING, SLOT, DEVICE, earlier, NOW).quarantine
    assert begun is not None
    assert begun.grade is graded
    assert begun.probe_at == (None if wait_s is None else later(wait_s))


@pytest.mark.parametrize("earlier", [2, 20])
def test_slowness_never_makes_a_quarantine_fatal(earlier: int) -> None:
    begun = decide(SLOW, SLOT, DEVICE, [past(3600)] * earlier, NOW).quarantine
    assert begun is not None
    assert begun.grade is SUSPICIOUS


def test_the_day_of_a_quarantine_ends_to_the_second() -> None:
    begun = quarantine(since=NOW, released_at=later(60))
    for wait, expected in ((REMEMBERED, 60.0), (REMEMBERED - timedelta(seconds=1), 120.0)):
        found = decide(PASSING, SLOT, DEVICE, [begun], NOW + wait).quarantine
        assert found is not None
        assert found.probe_at == NOW + wait + timedelta(seconds=expected)


def test_the_message_of_a_fault_is_kept() -> None:
    verdict = decide(fault(message="row 17"), SLOT, DEVICE, [], NOW)
    what = "Xid 63: bad memory was found and will be replaced by spare memory at the next reset (row 17)"
    assert (verdict.reason, verdict.quarantine) == (what, quarantine(message=what))
    reason = decide(OF_THE_JOB, SLOT, DEVICE, [], NOW).reason
    assert reason == grade(OF_THE_JOB).what
    assert reason.startswith("Xid 31: ")


@pytest.mark.parametrize(
    ("fields", "now_s", "due"),
    [
        ({}, 59.0, False),
        ({}, 60.0, True),
        ({}, 1e6, True),
        ({"probe_at": None}, 1e6, False),
        ({"released_at": NOW}, 1e6, False),
    ],
)
def test_a_probe_is_due_while_the_quarantine_is_open(fields: dict[str, Any], now_s: float, due: bool) -> None:
    one = quarantine(**fields)
    assert is_due(one, later(now_s)) is due
    if not due:
        for healthy in (True, False):
            assert after_probe(one, later(now_s), healthy=healthy, message="x") == one


@pytest.mark.parametrize(
    ("probes", "wait_s"), [(0, 120.0), (1, 240.0), (4, 1920.0), (5, 3600.0), (500, 3600.0)]
)
def test_each_failed_probe_doubles_the_wait(probes: int, wait_s: float) -> None:
    after = after_probe(quarantine(probes=probes), later(100), healthy=False, message="slow")
    assert (after.probes, after.probe_at) == (probes + 1, later(100 + wait_s))
    assert after.is_open


@pytest.mark.parametrize(
    ("message", "probe", "expected"),
    [
        ("it failed", "slow", "it failed; last probe: slow"),
        ("it failed", "", "it failed; last probe: bad"),
        ("it failed; last probe: wrong", "slow", "it failed; last probe: slow"),
    ],
)
def test_only_the_last_probe_is_described(message: str, probe: str, expected: str) -> None:
    assert (
        after_probe(quarantine(message=message), later(60), healthy=False, message=probe).message == expected
    )


@pytest.mark.parametrize(("message", "suffix"), [("2.1 ms", ": 2.1 ms"), ("", "")])
def test_a_healthy_device_is_released(message: str, suffix: str) -> None:
    after = after_probe(quarantine(), later(60), healthy=True, message=message)
    assert (after.released_at, after.probe_at) == (later(60), None)
    assert after.release_message == f"a probe found it healthy{suffix}"


def test_a_released_quarantine_keeps_its_history() -> None:
    one = quarantine(id=3, probes=2)
    after = released(one, later(9), "by ada")
    assert after == replace(one, probe_at=None, released_at=later(9), release_message="by ada")


@pytest.mark.parametrize(
    ("fields", "device", "replaced"),
    [
        ({}, OTHER, True),
        ({}, DEVICE, False),
        ({}, "", False),
        ({"device": ""}, OTHER, False),
        ({"device": ""}, "", False),
        ({"released_at": NOW}, OTHER, False),
    ],
)
def test_another_device_ends_an_open_quarantine(fields: dict[str, Any], device: str, replaced: bool) -> None:
    assert is_replaced(quarantine(**fields), device) is replaced


def paces(*sample_s: float) -> list[RankPace]:
    return [RankPace(SlotKey("n", slot), one) for slot, one in enumerate(sample_s)]


@pytest.mark.parametrize(
    ("sample_s", "slow"),
    [
        ((), {}),
        ((9.0,), {}),
        ((1.0, 9.0), {}),  # of two, either may be the wrong one
        ((1.0, 1.0, 1.5), {2: 1.5}),
        ((1.0, 1.0, 1.49), {}),
        ((1.0, 2.0, 3.0), {2: 1.5}),  # beside 1 and 2 the upper one is the median
        ((1.0, 1.0, 3.0, 3.0), {2: 3.0 / 1.0, 3: 3.0 / 1.0}),
        ((1.0, 3.0, 3.0, 3.0), {}),
        ((0.0, 1.0, 1.0, 2.0), {3: 2.0}),  # a rank without a time does not count
        ((0.0, 0.0, 1.0, 2.0), {}),
        ((-1.0, 1.0, 2.0), {}),
        ((1e-9, 1e-9, 1e9), {2: 1e6}),  # the stored ratio is bounded
    ],
)
def test_a_rank_is_slow_compared_with_the_median_of_its_peers(
    sample_s: tuple[float, ...], slow: dict[int, float]
) -> None:
    found = slow_ranks([], paces(*sample_s), NOW)
    assert {one.slot: one.times for one in found} == pytest.approx(slow)
    assert all((one.windows, one.since, one.told) == (1, NOW, False) for one in found)


@pytest.mark.parametrize(
    ("times", "was_slow", "is_slow"),
    [
        (SLOW_FACTOR, False, True),
        (SLOW_FACTOR - 0.01, False, False),
        (SLOW_FACTOR - 0.01, True, True),
        (STILL_SLOW, True, True),
        (STILL_SLOW - 0.01, True, False),
        (1.0, True, False),
    ],
)
def test_slowness_has_hysteresis(times: float, was_slow: bool, is_slow: bool) -> None:
    known = SlowRank(node_id="n", slot=2, times=2.0, since=later(-30), windows=4, told=True)
    found = slow_ranks([known] if was_slow else [], paces(1.0, 1.0, times), NOW)
    assert bool(found) is is_slow
    if is_slow and was_slow:
        assert found[0] == known.model_copy(update={"times": times, "windows": 5})


def test_slowness_belongs_to_a_slot_of_a_node() -> None:
    known = SlowRank(node_id="other", slot=2, times=2.0, since=later(-30), windows=4)
    (found,) = slow_ranks([known], paces(1.0, 1.0, 2.0), NOW)
    assert (found.node_id, found.windows) == ("n", 1)


@pytest.mark.parametrize(
    ("windows", "for_s", "told", "held"),
    [
        (SLOW_WINDOWS, SLOW_FOR_S, False, True),
        (SLOW_WINDOWS - 1, SLOW_FOR_S, False, False),
        (SLOW_WINDOWS, SLOW_FOR_S - 0.1, False, False),
        (SLOW_WINDOWS, SLOW_FOR_S, True, False),
        (100, 1e4, False, True),
    ],
)
def test_a_device_is_suspected_after_enough_reports_over_a_minute(
    windows: int, for_s: float, told: bool, held: bool
) -> None:
    one = SlowRank(node_id="n", slot=0, times=2.0, since=later(-for_s), windows=windows, told=told)
    assert is_held_against(one, NOW) is held


@given(st.lists(st.floats(0.001, 100.0), min_size=3, max_size=9), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_neither_the_order_nor_the_unit_of_the_times_matters(sample_s: list[float], rng: Any) -> None:
    one = slow_ranks([], paces(*sample_s), NOW)
    shuffled = paces(*sample_s)
    rng.shuffle(shuffled)
    other = slow_ranks([], shuffled, NOW)
    assert {found.slot: found.times for found in one} == {found.slot: found.times for found in other}
    scaled = slow_ranks([], paces(*(pace * 2.0**8 for pace in sample_s)), NOW)
    assert [found.slot for found in scaled] == [found.slot for found in one]
