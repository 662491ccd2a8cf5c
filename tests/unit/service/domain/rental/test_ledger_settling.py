"""Tests of single parts of the ledger: times, cuts at hours, slots of generations, and the settling of rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from headway.contract.views.money import Category
from service.domain.rental.ledger import (
    HOUR_US,
    ChargeKey,
    Held,
    JobHistory,
    Lease,
    SettledTime,
    from_us,
    hour_of,
    split,
    to_us,
    write,
)
from service.domain.rental.timeline import FOR_EVER, Phase

NODE = "n1"
IDLE, USEFUL, RESIZE, LOST = Category.IDLE, Category.USEFUL, Category.RESIZE, Category.LOST


def lease(**fields: Any) -> Lease:
    return Lease(
        **{
            "id": "l1",
            "node_id": NODE,
            "machine_id": None,
            "slots": (0,),
            "device_kind": "cpu",
            "market": Market.ON_DEMAND,
            "usd_per_slot_h": 1.0,
            "from_us": 0,
            "to_us": 100,
            "open": True,
            **fields,
        }
    )


def held(begin: int, end: int | None, job: str = "j1", slot: int = 0, node: str = NODE) -> Held:
    return Held(place=(node, slot), job_id=job, from_us=begin, to_us=end)


def trains(begin: int = 0, end: int = FOR_EVER, generation: int = 1) -> JobHistory:
    return JobHistory("p1", (Phase(begin, end, USEFUL, generation),))


def key(category: Category, job: str = "j1", cause: str = "", hour_us: int = 0) -> ChargeKey:
    return ChargeKey(hour_us, job, "p1" if job else "", category, cause)


NOBODY = key(IDLE, "")


@pytest.mark.parametrize(
    ("moment", "microseconds"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 1, tzinfo=UTC), HOUR_US),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        (datetime(1970, 1, 1, 0, 0, 0, 7, tzinfo=UTC), 7),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
    ],
)
def test_moments_are_whole_microseconds(moment: datetime, microseconds: int) -> None:
    assert to_us(moment) == microseconds
    assert from_us(microseconds) == moment


@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
@settings(max_examples=50)
def test_a_moment_is_kept_to_the_microsecond_and_lies_in_its_hour(moment: datetime) -> None:
    us = to_us(moment)
    assert from_us(us) == moment
    begin = from_us(hour_of(us))
    assert (begin.minute, begin.second, begin.microsecond) == (0, 0, 0)
    assert begin <= moment < begin + timedelta(hours=1)


@pytest.mark.parametrize(
    ("grants", "expected"),
    [
        ([], {NOBODY: 100}),
        ([held(0, None)], {key(USEFUL): 100}),
        ([held(20, 50)], {NOBODY: 70, key(USEFUL): 30}),
        ([held(20, 50), held(50, 60)], {NOBODY: 60, key(USEFUL): 40}),
        ([held(20, 50), held(40, 60)], {NOBODY: 60, key(USEFUL): 40}),
        ([held(20, 80), held(30, 40)], {NOBODY: 40, key(USEFUL): 60}),
        ([held(-50, 30)], {NOBODY: 70, key(USEFUL): 30}),
        ([held(90, 300)], {NOBODY: 90, key(USEFUL): 10}),
        ([held(-50, -10), held(200, None)], {NOBODY: 100}),
        ([held(30, 30)], {NOBODY: 100}),
        ([held(0, None, slot=1)], {NOBODY: 100}),
        ([held(0, None, node="n2")], {NOBODY: 100}),
    ],
    ids=[
        "none", "all", "part", "two", "overlap", "inside", "before", "after", "outside", "empty", "slot", "node",
    ],
)  # fmt: skip
def test_the_time_of_a_slot_by_the_grants_of_it(grants: list[Held], expected: dict[ChargeKey, int]) -> None:
    assert split(lease(), grants, {"j1": trains()}, 0) == expected


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ([], {key(RESIZE): 100}),
        ([Phase(30, 60, USEFUL, 1)], {key(RESIZE): 70, key(USEFUL): 30}),
        ([Phase(0, 40, LOST, 0, "HUNG"), Phase(40, FOR_EVER, USEFUL, 1)], {
            key(LOST, cause="HUNG"): 40,
            key(USEFUL): 60,
        }),
        ([Phase(-20, 10, USEFUL, 1), Phase(10, 20, LOST, 1, "A"), Phase(20, 30, LOST, 1, "B")], {
            key(USEFUL): 10,
            key(LOST, cause="A"): 10,
            key(LOST, cause="B"): 10,
            key(RESIZE): 70,
        }),
        ([Phase(150, 200, USEFUL, 1)], {key(RESIZE): 100}),
    ],
    ids=["no phase", "gap", "recovery", "causes", "later"],
)  # fmt: skip
def test_the_time_of_a_held_slot_by_the_phases_of_its_job(
    phases: list[Phase], expected: dict[ChargeKey, int]
) -> None:
    jobs = {"j1": JobHistory("p1", tuple(phases))}
    assert split(lease(), [held(0, None)], jobs, 0) == expected


@pytest.mark.parametrize(
    ("members", "category"),
    [
        ({}, USEFUL),
        ({1: {(NODE, 0)}}, USEFUL),
        ({1: {(NODE, 1)}}, RESIZE),
        ({1: set()}, RESIZE),
        ({2: {(NODE, 0)}}, USEFUL),
    ],
    ids=["unknown", "member", "other slot", "no members", "other generation"],
)
def test_a_slot_outside_the_members_is_being_started_or_released(
    members: dict[int, set[tuple[str, int]]], category: Category
) -> None:
    job = JobHistory("p1", (Phase(0, FOR_EVER, USEFUL, 1),), members)
    assert split(lease(), [held(0, None)], {"j1": job}, 0) == {key(category): 100}


def test_a_slot_outside_the_members_carries_no_cause() -> None:
    job = JobHistory("p1", (Phase(0, FOR_EVER, LOST, 1, "HUNG"),), {1: {(NODE, 5)}})
    assert split(lease(), [held(0, None)], {"j1": job}, 0) == {key(RESIZE): 100}


def test_every_slot_of_a_lease_counts() -> None:
    rows = split(
        lease(slots=(0, 1, 4)), [held(0, 50), held(50, None, "j2", 4)], {"j1": trains(), "j2": trains()}, 0
    )
    assert rows == {NOBODY: 50 + 100 + 50, key(USEFUL): 50, key(USEFUL, "j2"): 50}


def test_a_machine_without_a_node_is_idle() -> None:
    assert split(lease(node_id=None), [held(0, None)], {"j1": trains()}, 0) == {NOBODY: 100}


def test_time_is_cut_at_hours_for_every_job() -> None:
    paid = lease(from_us=HOUR_US - 10, to_us=HOUR_US + 30)
    rows = split(paid, [held(HOUR_US - 5, HOUR_US + 20)], {"j1": trains()}, 0)
    assert rows == {
        key(IDLE, ""): 5,
        key(USEFUL): 5,
        key(USEFUL, hour_us=HOUR_US): 20,
        key(IDLE, "", hour_us=HOUR_US): 10,
    }


@pytest.mark.parametrize(("since", "left"), [(0, 100), (60, 40), (100, 0), (300, 0)])
def test_only_time_from_a_moment_on_is_written(since: int, left: int) -> None:
    assert sum(split(lease(), [], {}, since).values()) == left


def test_the_size_of_a_lease_is_its_slots_times_its_length() -> None:
    assert lease(slots=(0, 1, 2), from_us=10, to_us=100).slot_us == 270
    assert lease(to_us=0).slot_us == 0


@pytest.mark.parametrize(
    ("is_open", "since", "settle", "settled"),
    [
        (True, 0, 60, 60),
        (True, 0, 100, 100),
        (True, 0, 101, 0),
        (True, 70, 60, 70),
        (True, 70, 200, 70),
        (False, 0, 60, 60),
        (False, 0, 200, 100),
        (False, 70, 200, 100),
    ],
    ids=[
        "within", "at the end", "open beyond", "settled later", "open beyond later", "closed within",
        "closed beyond", "closed beyond later",
    ],
)  # fmt: skip
def test_rows_are_settled_up_to_a_moment_or_the_end_of_a_closed_lease(
    is_open: bool, since: int, settle: int, settled: int
) -> None:
    written = write(lease(open=is_open), [held(0, None)], {"j1": trains()}, since, settle)
    assert written.lease.settled_us == settled
    assert written.rows == {key(USEFUL): SettledTime(100 - since, settled - since)}


def test_settled_and_open_time_of_different_categories_are_different_rows() -> None:
    written = write(lease(), [held(50, None)], {"j1": trains()}, 0, 60)
    assert written.rows == {NOBODY: SettledTime(50, 50), key(USEFUL): SettledTime(50, 10)}


def test_a_lease_without_time_has_no_rows() -> None:
    written = write(lease(to_us=0), [], {}, 0, 50)
    assert written.rows == {}
    assert written.lease.settled_us == 0
