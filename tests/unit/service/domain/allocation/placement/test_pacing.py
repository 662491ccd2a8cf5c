"""The number of voluntary changes that a round begins, and their order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState, Reason
from service.domain.allocation.decision.plan import Action, Decision, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.placement.pacing import ORDERS, OptionalChange, put_off
from service.domain.cluster.snapshot import Measurement, Orders, Snapshot
from service.domain.jobs.job import Job
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of

wishes = st.lists(
    st.tuples(st.floats(1e-9, 1e9), st.integers(1, 2 * ORDERS)),
    max_size=30,
).map(lambda found: [OptionalChange(row, gain, orders) for row, (gain, orders) in enumerate(found)])


@given(wishes, st.integers(0, 2 * ORDERS))
def test_no_more_orders_are_on_their_way_than_there_is_room_for(
    found: list[OptionalChange], untaken: int
) -> None:
    waits = put_off(found, Orders(untaken))
    begun = [wish for wish in found if wish.row not in waits]
    fits = untaken + sum(wish.orders for wish in begun) <= ORDERS
    assert fits or not begun or (untaken == 0 and len(begun) == 1)


@given(wishes, st.integers(0, 2 * ORDERS))
def test_whoever_waits_gains_no_more_by_an_order_than_whoever_goes(
    found: list[OptionalChange], untaken: int
) -> None:
    waits = put_off(found, Orders(untaken))
    going = [wish.gain / wish.orders for wish in found if wish.row not in waits]
    waiting = [wish.gain / wish.orders for wish in found if wish.row in waits]
    assert not going or not waiting or min(going) >= max(waiting)


@given(wishes.filter(bool))
def test_something_begins_whenever_nothing_is_on_its_way(found: list[OptionalChange]) -> None:
    assert len(put_off(found, Orders())) < len(found)


@given(wishes)
def test_nothing_begins_while_reports_are_late(found: list[OptionalChange]) -> None:
    assert put_off(found, Orders(late=True)).keys() == {wish.row for wish in found}


def growing(jobs: int) -> Snapshot:
    """Jobs on one slot each of nodes with two, and it pays for each to have both."""
    numbers = [f"{number:03}" for number in range(jobs)]
    shown = (
        Measurement("cpu", 1, 100.0, 1000, generation=1),
        Measurement("cpu", 2, 190.0, 1000, generation=2),
    )
    return snapshot_of(
        [node_of(f"n{number}", slots=2) for number in numbers],
        [running(f"j{number}") for number in numbers],
        {f"j{number}": [(f"n{number}", 0)] for number in numbers},
        {f"j{number}": shown for number in numbers},
    )


def running(job_id: str) -> Job:
    return job_of(job_id, JobState.RUNNING, age_s=600.0, spec=spec_of(job_id, elastic={"min": 1, "max": 2}))


def decisions_of(snapshot: Snapshot) -> tuple[Decision, ...]:
    return decide(build_round(snapshot), Goodput(), solve).decisions


def test_growth_beyond_the_room_waits_and_says_until_when() -> None:
    jobs = ORDERS // 2 + 3  # each takes two orders: its node stops it, and starts it again
    found = decisions_of(growing(jobs))
    later = [one for one in found if one.action is Action.KEEP]
    assert [one.action for one in found].count(Action.CHANGE) == ORDERS // 2
    assert len(later) == 3
    assert all(sum(map(len, one.allocation.values())) == 1 for one in later)
    assert {(one.reason, one.message) for one in later} == {
        (
            Reason.PROGRESSING,
            f"1 cpu slot for now; changes to 2 cpu slots once nodes have acknowledged {ORDERS} earlier commands",
        )
    }


def test_growth_waits_while_reports_are_late() -> None:
    (one,) = decisions_of(replace(growing(1), orders=Orders(late=True)))
    assert one.action is Action.KEEP
    assert one.message.endswith("once the service again answers reports of nodes in time")


def test_what_others_wait_for_never_waits() -> None:
    """One job has all slots and another none: that the first shrinks is not for its own sake."""
    jobs = [running("big"), job_of("small", age_s=600.0)]
    snapshot = snapshot_of([node_of("n", slots=2)], jobs, {"big": [("n", 0), ("n", 1)]})
    snapshot = replace(snapshot, orders=Orders(untaken=10 * ORDERS, late=True))
    found = {one.job_id: one for one in decisions_of(snapshot)}
    assert found["big"].action is Action.CHANGE
    assert found["big"].allocation in ({"n": (0,)}, {"n": (1,)})


def test_a_job_that_must_leave_does_not_wait() -> None:
    snapshot = growing(2)
    leaving = replace(snapshot.nodes["n000"], state=NodeState.DRAINING)
    snapshot = replace(
        snapshot, nodes={**snapshot.nodes, "n000": leaving}, orders=Orders(10 * ORDERS, late=True)
    )
    found = {one.job_id: one for one in decisions_of(snapshot)}
    assert found["j000"].action in {Action.CHANGE, Action.VACATE}
    assert found["j001"].action is Action.KEEP
