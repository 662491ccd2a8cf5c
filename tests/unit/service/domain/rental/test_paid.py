"""Tests of paid periods."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.rental.ledger import Lease, to_us
from service.domain.rental.machines import Machine, billed_s, paid_until
from service.domain.rental.paid import Host, lease_of_machine, leases_of_host
from tests.unit.service.domain.rental.test_fleet import NOW, running

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
