"""Tests of paid periods."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.rental.ledger import Lease, to_us
from service.domain.rental.machines import Machine, billed_s, paid_until
from service.domain.rental.paid import Host, lease_of_machine, leases_of_host
from tests.unit.service.builders import NOW
from tests.unit.service.domain.rental.test_fleet import running

S = 1_000_000
BEGAN_US = to_us(NOW)


def billed_of(**fields: Any) -> Machine:
    return running(**{"slots": 4, "device_kind": "a100", **fields})


def host_of(**fields: Any) -> Host:
    return Host(
        **{
            "node_id": "n1",
            "lost": False,
            "slots": {0: "a100", 1: "a100"},
            "market": Market.ON_DEMAND,
            "usd_per_slot_h": None,
            "joined_us": BEGAN_US,
            "seen_us": BEGAN_US + 10 * S,
            **fields,
        }
    )


@settings(max_examples=50)
@given(st.floats(0, 1e4), st.none() | st.floats(0, 1e4), st.floats(0, 1e4))
def test_the_list_of_machines_and_the_ledger_count_the_same_time(
    now_s: float, billed_s_: float | None, minimum_s: float
) -> None:
    billed_to = None if billed_s_ is None else NOW + timedelta(seconds=billed_s_)
    machine = billed_of(billed_to=billed_to, min_billed_s=minimum_s)
    now = NOW + timedelta(seconds=now_s)
    lease = lease_of_machine(machine, None, None, now)
    assert lease is not None
    assert lease.slot_us == round(billed_s(machine, now) * S) * machine.slots
    assert lease.open == (billed_to is None)


def test_a_machine_that_is_not_billed_has_no_lease() -> None:
    machine = billed_of(billed_from=None)
    assert (paid_until(machine, NOW), billed_s(machine, NOW)) == (None, 0.0)
    assert lease_of_machine(machine, None, None, NOW) is None


def test_slots_that_the_agent_does_not_report_are_paid_for_too() -> None:
    lease = lease_of_machine(billed_of(), host_of(slots={0: "a100", 2: "a100"}), None, NOW)
    assert lease is not None
    assert (lease.node_id, lease.slots) == ("n1", (0, 2, 1, 3))


def test_a_lease_keeps_its_node_when_that_is_another_machines_later() -> None:
    first = lease_of_machine(billed_of(), host_of(), None, NOW)
    later = lease_of_machine(billed_of(), host_of(node_id="n2"), first, NOW + timedelta(seconds=5))
    assert first is not None
    assert later == replace(first, to_us=first.to_us + 5 * S)


def hosted(host: Host, known: list[Lease], usd: float = 1.0) -> list[Lease]:
    return leases_of_host(host, known, {"a100": usd}, accrued_us=BEGAN_US)


def test_a_host_is_paid_for_while_it_is_heard_of() -> None:
    (first,) = hosted(host_of(), [])
    (later,) = hosted(host_of(seen_us=BEGAN_US + 30 * S), [first])
    assert later == replace(first, to_us=BEGAN_US + 30 * S)
    (ended,) = hosted(host_of(lost=True, seen_us=BEGAN_US + 30 * S), [later])
    assert ended == replace(later, open=False)


def test_a_new_price_begins_where_the_old_one_ends() -> None:
    (first,) = hosted(host_of(), [])
    ended, begun = hosted(host_of(seen_us=BEGAN_US + 30 * S), [first], usd=2.0)
    assert ended == replace(first, open=False)
    assert (begun.from_us, begun.to_us, begun.usd_per_slot_h) == (ended.to_us, BEGAN_US + 30 * S, 2.0)


def test_each_kind_of_a_host_has_a_lease_of_its_own() -> None:
    found = hosted(host_of(slots={0: "cpu", 1: "a100", 2: "cpu"}), [])
    assert {(one.device_kind, one.slots, one.usd_per_slot_h) for one in found} == {
        ("a100", (1,), 1.0),
        ("cpu", (0, 2), None),
    }


@pytest.mark.parametrize(
    ("reported", "paid_slots", "slots"),
    [
        (None, 0, ()),
        (None, 3, (0, 1, 2)),
        ({}, 2, (0, 1)),
        ({0: "a100", 1: "a100"}, 2, (0, 1)),
        ({1: "a100"}, 3, (1, 0, 2)),
        ({5: "a100", 3: "a100"}, 4, (3, 5, 0, 1)),
        ({0: "a100", 1: "a100", 2: "a100"}, 2, (0, 1)),
    ],
)
def test_as_many_slots_as_are_paid_for_the_reported_ones_first(
    reported: dict[int, str] | None, paid_slots: int, slots: tuple[int, ...]
) -> None:
    host = None if reported is None else host_of(slots=reported)
    lease = lease_of_machine(billed_of(slots=paid_slots), host, None, NOW)
    assert lease is not None
    assert lease.slots == slots


def test_the_lease_of_a_machine_has_its_facts() -> None:
    machine = billed_of(market=Market.SPOT, usd_per_h=8.0, billed_to=NOW + timedelta(seconds=90))
    lease = lease_of_machine(machine, None, None, NOW + timedelta(seconds=500))
    assert lease == Lease(
        id="m1",
        node_id=None,
        machine_id="m1",
        slots=(0, 1, 2, 3),
        device_kind="a100",
        market=Market.SPOT,
        usd_per_slot_h=2.0,
        from_us=BEGAN_US,
        to_us=BEGAN_US + 90 * S,
        open=False,
    )


def test_a_lease_without_a_node_takes_the_first_that_joins() -> None:
    before = lease_of_machine(billed_of(), None, None, NOW)
    joined = lease_of_machine(billed_of(), host_of(slots={3: "a100"}), before, NOW)
    assert before is not None
    assert joined is not None
    assert (before.node_id, before.slots) == (None, (0, 1, 2, 3))
    assert (joined.node_id, joined.slots) == ("n1", (3, 0, 1, 2))
    assert lease_of_machine(billed_of(), None, joined, NOW) == joined, "the node is gone, the lease stays"


def test_a_new_host_is_charged_from_its_join_or_from_the_last_update_of_the_ledger() -> None:
    """Nothing before the last update is charged, so that a host that was LOST is not charged for that time."""
    late = host_of(joined_us=BEGAN_US + 5 * S)
    (lease,) = hosted(late, [])
    assert (lease.from_us, lease.to_us) == (BEGAN_US + 5 * S, BEGAN_US + 10 * S)
    early = host_of(joined_us=BEGAN_US - 5 * S)
    (lease,) = hosted(early, [])
    assert lease.from_us == BEGAN_US
    silent = host_of(joined_us=BEGAN_US + 30 * S)
    (lease,) = hosted(silent, [])
    assert (lease.from_us, lease.to_us) == (BEGAN_US + 30 * S, BEGAN_US + 30 * S), "not a negative time"


def test_a_host_that_comes_back_after_it_was_lost_begins_a_new_lease() -> None:
    (first,) = hosted(host_of(), [])
    (closed,) = hosted(host_of(lost=True), [first])
    (again,) = leases_of_host(host_of(seen_us=BEGAN_US + 90 * S), [], {}, accrued_us=BEGAN_US + 60 * S)
    assert not closed.open
    assert (again.from_us, again.to_us) == (BEGAN_US + 60 * S, BEGAN_US + 90 * S)
    assert again.id != first.id


def test_the_end_of_a_lease_does_not_go_back_with_a_clock() -> None:
    (first,) = hosted(host_of(), [])
    (same,) = hosted(host_of(seen_us=BEGAN_US + 4 * S), [first])
    assert same == first


@pytest.mark.parametrize(
    ("change", "slots", "usd"),
    [
        ({"slots": {0: "a100"}}, (0,), 1.0),
        ({"slots": {0: "a100", 1: "a100", 2: "a100"}}, (0, 1, 2), 1.0),
        ({"usd_per_slot_h": 3.0}, (0, 1), 3.0),
        ({"usd_per_slot_h": 0.0}, (0, 1), 0.0),
        ({"market": Market.SPOT}, (0, 1), 1.0),
    ],
    ids=["fewer slots", "more slots", "own price", "free", "market"],
)
def test_a_change_of_slots_price_or_market_begins_a_new_lease_without_a_gap(
    change: dict[str, Any], slots: tuple[int, ...], usd: float
) -> None:
    (first,) = hosted(host_of(), [])
    ended, begun = hosted(host_of(seen_us=BEGAN_US + 20 * S, **change), [first])
    assert ended == replace(first, open=False)
    assert (begun.slots, begun.usd_per_slot_h, begun.open) == (slots, usd, True)
    assert (begun.from_us, begun.to_us) == (first.to_us, BEGAN_US + 20 * S)
    assert begun.market is change.get("market", Market.ON_DEMAND)


def test_the_slots_of_one_kind_may_change_while_another_lease_continues() -> None:
    host = host_of(slots={0: "a100", 1: "cpu"})
    known = hosted(host, [])
    later = hosted(replace(host, slots={0: "a100"}, seen_us=BEGAN_US + 20 * S), known)
    by_kind = {one.device_kind: one for one in later}
    assert (by_kind["cpu"].open, by_kind["cpu"].to_us) == (False, BEGAN_US + 10 * S)
    assert (by_kind["a100"].open, by_kind["a100"].to_us) == (True, BEGAN_US + 20 * S)


def test_a_host_without_slots_has_no_open_lease() -> None:
    known = hosted(host_of(), [])
    assert hosted(host_of(slots={}), []) == []
    assert [one.open for one in hosted(host_of(slots={}), known)] == [False]
    assert hosted(host_of(lost=True), []) == []


reports = st.lists(
    st.tuples(
        st.integers(0, 100),
        st.dictionaries(st.integers(0, 3), st.sampled_from(["a100", "cpu"]), max_size=4),
        st.booleans(),
        st.sampled_from([1.0, 2.0]),
    ),
    max_size=8,
)


@settings(max_examples=40)
@given(reports)
def test_no_slot_is_charged_twice_for_any_time(
    steps: list[tuple[int, dict[int, str], bool, float]],
) -> None:
    """A host changes its slots, is lost and comes back; leases are updated after each report."""
    open_leases: list[Lease] = []
    closed: dict[str, Lease] = {}
    now_us = accrued_us = BEGAN_US
    for later_s, slots, lost, usd in steps:
        now_us += later_s * S
        host = host_of(slots=slots, lost=lost, seen_us=now_us)
        found = leases_of_host(host, open_leases, {"a100": usd}, accrued_us)
        accrued_us = max(accrued_us, now_us)
        open_leases = [one for one in found if one.open]
        closed |= {one.id: one for one in found if not one.open and one.to_us > one.from_us}
        assert {slot for one in open_leases for slot in one.slots} == (set() if lost else set(slots))
    charged = [
        (slot, one.from_us, one.to_us) for one in [*closed.values(), *open_leases] for slot in one.slots
    ]
    for slot in range(4):
        spans = sorted((begin, end) for one, begin, end in charged if one == slot and begin < end)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
