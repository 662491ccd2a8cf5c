"""Tests of the reconciliation of machines with their provider's list: no fault causes a leak."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from service.domain.rental.fleet import (
    FleetPlan,
    Joined,
    Patience,
    given_back,
    joined,
    launched,
    reconcile,
)
from service.domain.rental.machines import ENDED, Found, Machine, MachineReason, MachineState, cost_usd
from tests.unit.service.builders import NOW, machine_of


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def running(machine_id: str = "m1", **fields: Any) -> Machine:
    return machine_of(
        machine_id,
        **{
            "state": MachineState.RUNNING,
            "external_id": f"i-{machine_id}",
            "billed_from": NOW,
            **fields,
        },
    )


def found_of(machine_id: str = "m1", **fields: Any) -> Found:
    return Found(
        **{
            "external_id": f"i-{machine_id}",
            "machine_id": machine_id,
            "ended": False,
            "billed_from": NOW,
            **fields,
        }
    )


def node_of(**fields: Any) -> Joined:
    return Joined(**{"node_id": "n1", "state": NodeState.READY, "seen_at": NOW, "empty": True, **fields})


def plan_of(
    machines: list[Machine], listed: list[Found] | None, seconds: float = 1.0, **rest: Any
) -> FleetPlan:
    nodes = rest.pop("nodes", {})
    seen = rest.pop("seen", {})
    return reconcile(machines, listed, nodes, seen, at(seconds), **rest)


def only(plan: FleetPlan) -> Machine:
    (machine,) = plan.changed
    return machine


def test_what_is_wanted_is_asked_for_until_it_is_listed() -> None:
    wanted = machine_of()
    assert plan_of([wanted], []).launches == (wanted,)
    assert plan_of([wanted], None).launches == (wanted,)
    plan = plan_of([wanted], [found_of()])
    assert plan.launches == ()
    assert (only(plan).state, only(plan).external_id, only(plan).billed_from) == (
        MachineState.LAUNCHING,
        "i-m1",
        NOW,
    )


def test_unknown_is_not_terminated() -> None:
    """Neither an unreadable list nor one without the machine shows that it is gone."""
    machine = running()
    nodes = {"m1": node_of(seen_at=at(10_000))}
    assert plan_of([machine], None, 10_000, nodes=nodes).changed == ()
    assert plan_of([machine], [], 10, nodes=nodes).changed == ()


def test_one_that_is_missing_for_long_is_gone_and_was_paid_for_until_it_was_last_listed() -> None:
    machine, nodes = running(), {"m1": node_of(state=NodeState.LOST)}
    seen = {"m1": at(100)}
    patience = Patience(missing_s=300, agent_s=10_000)
    assert plan_of([machine], [], 390, nodes=nodes, seen=seen, patience=patience).changed == ()
    unread = plan_of([machine], None, 500, nodes=nodes, seen=seen, patience=patience)
    assert unread.changed == ()
    assert unread.seen == seen
    gone = only(plan_of([machine], [], 500, nodes=nodes, seen=unread.seen, patience=patience))
    assert (gone.state, gone.reason, gone.billed_to) == (
        MachineState.GONE,
        MachineReason.VANISHED,
        at(100),
    )


def test_a_missing_machine_whose_agent_still_reports_is_not_gone() -> None:
    plan = plan_of([running()], [], 5_000, nodes={"m1": node_of(seen_at=at(4_999))}, seen={"m1": NOW})
    assert plan.changed == ()


def test_after_a_restart_patience_counts_anew() -> None:
    plan = plan_of([running()], [], 5_000, nodes={"m1": node_of(seen_at=at(4_990))})
    assert plan.seen == {"m1": at(5_000)}
    assert plan.changed == ()


def test_what_no_lease_knows_is_terminated() -> None:
    plan = plan_of([], [found_of("ghost")])
    (one,) = plan.terminations
    assert (one.external_id, one.machine_id) == ("i-ghost", None)
    assert plan_of([], [found_of("ghost", ended=True)]).terminations == ()


@pytest.mark.parametrize("state", sorted(ENDED))
def test_what_still_runs_after_its_lease_has_ended_is_terminated_and_paid_for(state: MachineState) -> None:
    plan = plan_of([machine_of(state=state, external_id=None)], [found_of()])
    assert (only(plan).state, only(plan).reason) == (MachineState.ENDING, MachineReason.LEFT_OVER)
    assert only(plan).billed_from == NOW
    assert [one.external_id for one in plan.terminations] == ["i-m1"]


def test_a_launch_that_made_two_keeps_one_and_pays_for_the_other_until_it_is_gone() -> None:
    twice = [found_of(), found_of(external_id="i-more", billed_from=at(1))]
    plan = plan_of([machine_of()], twice[::-1], 2)
    assert only(plan).external_id == "i-m1"
    (more,) = plan.found
    assert (more.external_id, more.state, more.reason) == (
        "i-more",
        MachineState.ENDING,
        MachineReason.DUPLICATE,
    )
    assert more.id != "m1"
    assert [one.external_id for one in plan.terminations] == ["i-more"]
    later = plan_of([only(plan), more], [twice[0], replace(twice[1], ended=True, billed_to=at(9))], 10)
    assert [(one.id, one.state, one.billed_to) for one in later.changed] == [
        (more.id, MachineState.GONE, at(9))
    ]
    assert later.found == ()


def test_an_agent_that_never_joins_costs_no_more_than_the_patience() -> None:
    machine = running(state=MachineState.LAUNCHING)
    assert plan_of([machine], [found_of()], 600).changed == ()
    plan = plan_of([machine], [found_of()], 601)
    assert (only(plan).state, only(plan).reason) == (MachineState.ENDING, MachineReason.NEVER_JOINED)
    assert [one.external_id for one in plan.terminations] == ["i-m1"]


def test_one_that_has_joined_runs() -> None:
    plan = plan_of([running(state=MachineState.LAUNCHING)], None, nodes={"m1": node_of()})
    assert only(plan).state is MachineState.RUNNING


def test_one_whose_agent_is_lost_for_long_is_given_back() -> None:
    nodes = {"m1": node_of(state=NodeState.LOST, seen_at=at(50))}
    assert plan_of([running()], [found_of()], 169, nodes=nodes).changed == ()
    plan = plan_of([running()], [found_of()], 171, nodes=nodes)
    assert only(plan).reason == MachineReason.AGENT_LOST
    assert len(plan.terminations) == 1


def test_jobs_leave_first_and_then_it_is_terminated() -> None:
    ending = given_back(running(), MachineReason.NOT_WORTH_IT, "", NOW)
    listed = [found_of()]
    busy = plan_of([ending], listed, nodes={"m1": node_of(empty=False)})
    assert (busy.drains, busy.terminations) == ((ending,), ())
    empty = plan_of([ending], listed, nodes={"m1": node_of()})
    assert (empty.drains, empty.terminations) == ((ending,), ()), "no job may start there meanwhile"
    draining = plan_of([ending], listed, nodes={"m1": node_of(state=NodeState.DRAINING, empty=False)})
    assert (draining.drains, draining.terminations) == ((), ())
    drained = plan_of([ending], listed, nodes={"m1": node_of(state=NodeState.DRAINING)})
    assert len(drained.terminations) == 1
    late = plan_of([ending], listed, 601, nodes={"m1": node_of(state=NodeState.DRAINING, empty=False)})
    assert len(late.terminations) == 1


def test_a_notice_ends_the_lease_and_says_why() -> None:
    nodes = {"m1": node_of(state=NodeState.DRAINING, empty=False, reclaim_at=at(120))}
    plan = plan_of([running()], [found_of()], nodes=nodes)
    assert (only(plan).state, only(plan).reason) == (MachineState.ENDING, MachineReason.SPOT_RECLAIMED)
    assert plan.terminations == ()


@pytest.mark.parametrize(
    ("market", "reason"),
    [
        (Market.SPOT, MachineReason.SPOT_RECLAIMED),
        (Market.ON_DEMAND, MachineReason.ENDED_BY_PROVIDER),
    ],
)
def test_one_that_ends_without_notice_is_paid_for_to_the_second(
    market: Market, reason: MachineReason
) -> None:
    plan = plan_of([running(market=market)], [found_of(ended=True, billed_to=at(77.5))], 90)
    assert (only(plan).state, only(plan).reason, only(plan).billed_to) == (
        MachineState.GONE,
        reason,
        at(77.5),
    )
    assert cost_usd(only(plan), at(10_000)) == pytest.approx(0.0775)


def test_clocks_that_disagree_make_no_negative_bill() -> None:
    ahead = found_of(billed_from=at(500), ended=True, billed_to=at(480))
    gone = only(plan_of([running()], [ahead]))
    assert gone.billed_to == gone.billed_from == at(500)
    assert cost_usd(gone, NOW) == pytest.approx(60 * 3.6 / 3600), "the least that is billed"


def test_a_provider_that_never_answers_is_given_up_and_what_it_made_is_found_all_the_same() -> None:
    given_up = only(plan_of([machine_of()], None, 601))
    assert (given_up.state, given_up.reason) == (MachineState.ENDING, MachineReason.GIVEN_UP)
    assert plan_of([given_up], None, 5_000).changed == ()
    assert only(plan_of([given_up], [], 1_000, seen={"m1": at(601)})).state is MachineState.FAILED
    plan = plan_of([given_up], [found_of()], 700)
    assert (only(plan).state, only(plan).external_id) == (MachineState.ENDING, "i-m1")
    assert len(plan.terminations) == 1


@pytest.mark.parametrize(
    ("state", "seconds", "after", "reason"),
    [
        (MachineState.WANTED, 600, MachineState.WANTED, None),
        (MachineState.WANTED, 601, MachineState.ENDING, MachineReason.GIVEN_UP),
        (MachineState.LAUNCHING, 600, MachineState.LAUNCHING, None),
        (MachineState.LAUNCHING, 601, MachineState.ENDING, MachineReason.NEVER_JOINED),
        (MachineState.RUNNING, 120, MachineState.RUNNING, None),
        (MachineState.RUNNING, 121, MachineState.ENDING, MachineReason.AGENT_LOST),
        (MachineState.ENDING, 9999, MachineState.ENDING, None),
    ],
)
def test_patience_with_a_machine_without_a_node(
    state: MachineState,
    seconds: float,
    after: MachineState,
    reason: MachineReason | None,
) -> None:
    """The provider does not answer, so that only time counts."""
    machine = machine_of(state=state)
    plan = plan_of([machine], None, seconds)
    assert (only(plan) if plan.changed else machine).state is after
    if reason is None:
        assert plan.changed == ()
    else:
        assert (only(plan).reason, only(plan).state_since) == (reason, at(seconds))


@pytest.mark.parametrize(
    ("node", "seconds", "reason"),
    [
        (node_of(), 9999, None),
        (node_of(state=NodeState.CORDONED), 9999, None),
        (node_of(state=NodeState.DRAINED), 9999, None),
        (node_of(state=NodeState.LOST, seen_at=at(900)), 1020, None),
        (node_of(state=NodeState.LOST, seen_at=at(900)), 1021, MachineReason.AGENT_LOST),
        (node_of(state=NodeState.LOST, seen_at=at(-900)), 120, None),
        (node_of(state=NodeState.LOST, seen_at=at(-900)), 121, MachineReason.AGENT_LOST),
        (node_of(reclaim_at=at(60)), 1, MachineReason.SPOT_RECLAIMED),
        (node_of(state=NodeState.LOST, reclaim_at=at(60)), 1, MachineReason.SPOT_RECLAIMED),
    ],
)
def test_patience_with_a_running_machine_by_its_node(
    node: Joined, seconds: float, reason: MachineReason | None
) -> None:
    """An agent has two minutes from its last report, or from the machine's join."""
    plan = plan_of([running()], [found_of()], seconds, nodes={"m1": node})
    assert [one.reason for one in plan.changed] == ([] if reason is None else [reason])


@pytest.mark.parametrize("state", [MachineState.WANTED, MachineState.LAUNCHING])
def test_a_join_of_a_new_machine_makes_it_run_and_keeps_why_it_was_rented(state: MachineState) -> None:
    machine = machine_of(state=state, message="worth it")
    ran = joined(machine, at(9))
    assert (ran.state, ran.reason, ran.message, ran.state_since) == (
        MachineState.RUNNING,
        MachineReason.JOINED,
        "worth it",
        at(9),
    )


@pytest.mark.parametrize("state", sorted(set(MachineState) - {MachineState.WANTED, MachineState.LAUNCHING}))
def test_a_join_of_any_other_machine_changes_nothing(state: MachineState) -> None:
    machine = machine_of(state=state)
    assert joined(machine, at(9)) is machine


def test_a_launch_that_was_answered_is_launching_or_gone_at_once() -> None:
    answered = launched(machine_of(message="worth it"), found_of(billed_from=at(3)), at(4))
    assert (answered.state, answered.reason, answered.message) == (
        MachineState.LAUNCHING,
        MachineReason.LAUNCHED,
        "worth it",
    )
    assert (answered.external_id, answered.billed_from, answered.billed_to) == ("i-m1", at(3), None)
    gone = launched(machine_of(), found_of(ended=True, message="out of stock"), at(4))
    assert (gone.state, gone.message, gone.billed_to) == (MachineState.GONE, "out of stock", at(4))


def test_an_ending_machine_keeps_its_reason_when_it_is_gone() -> None:
    ending = given_back(running(), MachineReason.IDLE, "no job needed it", at(5))
    gone = only(plan_of([ending], [found_of(ended=True, billed_to=at(50))], 60))
    assert (gone.state, gone.reason, gone.message) == (
        MachineState.GONE,
        MachineReason.IDLE,
        "no job needed it",
    )
    later = plan_of([gone], [found_of(ended=True, billed_to=at(55))], 70)
    assert only(later).billed_to == at(55), "the provider corrects the end of its bill"
    assert only(later).state_since == gone.state_since
    assert plan_of([gone], [found_of(ended=True)], 70).changed == (), "a known end stays"


@pytest.mark.parametrize(
    ("external_id", "last_seen_s", "seconds", "state"),
    [
        ("i-m1", 100, 400, MachineState.GONE),
        ("i-m1", 101, 400, MachineState.LAUNCHING),
        (None, 0, 299, MachineState.LAUNCHING),
        (None, 0, 300, MachineState.FAILED),
    ],
)
def test_a_missing_launch_is_gone_if_it_was_ever_listed_and_failed_otherwise(
    external_id: str | None, last_seen_s: float, seconds: float, state: MachineState
) -> None:
    machine = machine_of(state=MachineState.LAUNCHING, external_id=external_id)
    plan = plan_of([machine], [], seconds, seen={"m1": at(last_seen_s)})
    assert (only(plan) if plan.changed else machine).state is state


def test_a_vanished_machine_that_was_never_billed_has_no_bill() -> None:
    machine = running(billed_from=None)
    gone = only(plan_of([machine], [], 500, seen={"m1": NOW}))
    assert (gone.reason, gone.billed_to) == (MachineReason.VANISHED, None)


def test_the_last_sight_of_ended_machines_is_forgotten() -> None:
    machines = [running("m1"), running("m2"), running("m3", state=MachineState.GONE)]
    plan = plan_of(machines, [found_of("m1")], 50, seen={"m1": NOW, "m2": at(20), "m3": NOW})
    assert plan.seen == {"m1": at(50), "m2": at(20)}


def test_an_entry_with_a_known_name_belongs_to_its_machine_whatever_its_tag() -> None:
    plan = plan_of([running()], [found_of(machine_id="another", external_id="i-m1")])
    assert (plan.terminations, plan.found) == ((), ())
    assert plan.changed == ()


@pytest.mark.parametrize(
    ("ended", "billed_to", "state", "paid_until_s"),
    [
        (False, None, MachineState.ENDING, None),
        (True, at(20), MachineState.GONE, 20),
        (True, None, MachineState.GONE, 30),
        (True, at(-5), MachineState.GONE, 2),
    ],
)
def test_a_duplicate_has_a_lease_from_its_launch_to_its_end(
    ended: bool, billed_to: datetime | None, state: MachineState, paid_until_s: float | None
) -> None:
    more = found_of(external_id="i-more", billed_from=at(2), ended=ended, billed_to=billed_to)
    (duplicate,) = plan_of([running()], [found_of(), more], 30).found
    assert (duplicate.id, duplicate.state, duplicate.billed_from) == ("m1-i-more", state, at(2))
    assert duplicate.billed_to == (None if paid_until_s is None else at(paid_until_s))


def test_a_launch_is_missing_from_its_request_on_even_if_the_list_is_older() -> None:
    machine = machine_of(state=MachineState.LAUNCHING, external_id=None, state_since=at(200))
    assert plan_of([machine], [], 499, seen={"m1": NOW}).changed == ()
    assert only(plan_of([machine], [], 500, seen={"m1": NOW})).state is MachineState.FAILED
