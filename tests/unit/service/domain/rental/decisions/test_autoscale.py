"""Tests of the decisions which machines to rent and to release."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobState
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Cap, Measurement, Node, Snapshot
from service.domain.jobs.job import Job
from service.domain.policies.registry import policy
from service.domain.rental.candidates import candidates_of
from service.domain.rental.decisions.autoscale import decide_rental_targets
from service.domain.rental.fleet import LaunchBackoff, RentalPlace
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.domain.rental.offers import Offer
from service.domain.rental.rental_targets import Fleet, RentalRules, RentalTargets, RentalTerms
from service.domain.rental.worth.clusters import SnapshotCluster
from tests.unit.service.builders import NOW, job_of, snapshot_of, spec_of

LONG_AGO = NOW - timedelta(hours=1)


def offer_of(name: str = "small", slots: int = 2, **fields: Any) -> Offer:
    return Offer(
        **{
            "provider": "cloud",
            "region": "here",
            "instance_type": name,
            "device_kind": "cpu",
            "devices": slots,
            "on_demand_usd_per_h": 0.1 * slots,
            "seen_at": NOW,
            **fields,
        }
    )


def machine_of(machine_id: str, state: MachineState = MachineState.RUNNING, **fields: Any) -> Machine:
    return Machine(
        **{
            "id": machine_id,
            "provider": "cloud",
            "region": "here",
            "instance_type": "small",
            "device_kind": "cpu",
            "slots": 2,
            "market": Market.ON_DEMAND,
            "usd_per_h": 0.2,
            "state": state,
            "reason": MachineReason.JOINED,
            "message": "",
            "requested_at": LONG_AGO,
            "state_since": LONG_AGO,
            "billed_from": LONG_AGO,
            **fields,
        }
    )


def node_for(machine: Machine) -> Node:
    return Node(
        id=f"n-{machine.id}",
        name=f"n-{machine.id}",
        state=NodeState.READY,
        slots=dict.fromkeys(range(machine.slots), machine.device_kind),
        market=machine.market,
        usd_per_slot_h=machine.usd_per_slot_h,
    )


def measured(rates: Mapping[int, float]) -> tuple[Measurement, ...]:
    """Return measurements with these samples per second by slots, with a batch of 64."""
    return tuple(
        Measurement(
            "cpu", slots, rate, 1000, global_batch=64, local_batch=64 // slots, step_s=64 / rate, sync_s=0.0
        )
        for slots, rate in rates.items()
    )


GOOD_SCALING = measured({1: 100.0, 2: 195.0, 4: 380.0, 8: 730.0})
NO_SCALING = measured({1: 100.0, 2: 104.0, 4: 104.0})


def waiting(name: str = "gpt", **fields: Any) -> Job:
    spec = {"elastic": {"min": 1, "max": 4}, **fields}
    return job_of(name, spec=spec_of(name, **spec), age_s=60)


def runs(name: str = "gpt", **fields: Any) -> Job:
    spec = {"elastic": {"min": 1, "max": 8}, **fields}
    return job_of(name, JobState.RUNNING, spec=spec_of(name, **spec), age_s=900, generation=1, live=True)


def decided(
    snapshot: Snapshot,
    offers: Sequence[Offer] = (),
    machines: Sequence[Machine] = (),
    **rest: Any,
) -> RentalTargets:
    joined = {one.id: f"n-{one.id}" for one in machines if one.state is MachineState.RUNNING}
    nodes = {node.id: node for one in machines if one.id in joined for node in [node_for(one)]}
    return decide_rental_targets(
        SnapshotCluster(replace(snapshot, nodes={**snapshot.nodes, **nodes}), frozenset(joined.values())),
        Fleet(machines=machines, nodes=joined),
        offers,
        RentalTerms(
            **{
                "rules": RentalRules(),
                "policy": policy("goodput"),
                "solve": partial(solve, gap=0.0),
                **rest,
            }
        ),
    )


def test_without_jobs_nothing_is_rented() -> None:
    assert decided(snapshot_of(), [offer_of()]).rent == ()


def test_without_offers_nothing_is_rented() -> None:
    assert decided(snapshot_of(jobs=[waiting()])).rent == ()


@pytest.mark.parametrize("price", [None, -0.1, math.nan, math.inf, 1e300, 20_001.0])
def test_what_has_no_price_or_one_that_none_can_be_is_not_rented(price: float | None) -> None:
    assert candidates_of([offer_of(slots=2, on_demand_usd_per_h=price)]) == []
    assert len(candidates_of([offer_of(slots=2, on_demand_usd_per_h=20_000.0)])) == 1


def test_a_job_that_waits_in_an_empty_cluster_gets_the_cheapest_machine_that_runs_it() -> None:
    dear = offer_of("dear", on_demand_usd_per_h=0.5)
    wants = decided(snapshot_of(jobs=[waiting()]), [dear, offer_of()])
    (want,) = wants.rent
    assert (want.offer.instance_type, want.market, want.usd_per_h) == ("small", Market.ON_DEMAND, 0.2)
    assert want.message.startswith("on-demand small: worth $")
    assert "gpt (starts)" in want.message


def test_a_job_that_needs_several_machines_gets_them_at_once() -> None:
    wants = decided(snapshot_of(jobs=[waiting(elastic={"min": 4, "max": 4})]), [offer_of(slots=1)])
    assert len(wants.rent) == 4
    few = decided(
        snapshot_of(jobs=[waiting(elastic={"min": 4, "max": 4})]),
        [offer_of(slots=1)],
        rules=RentalRules(max_machines=3),
    )
    assert few.rent == ()
    assert "limit of 3 machines" in few.held_back


def test_what_is_on_its_way_is_not_rented_again() -> None:
    coming = machine_of("m1", MachineState.LAUNCHING)
    assert decided(snapshot_of(jobs=[waiting()]), [offer_of()], [coming]).rent == ()


@pytest.mark.parametrize(("market", "rented"), [("on-demand", []), ("spot", ["spot"]), ("mixed", ["spot"])])
def test_a_job_gets_machines_of_the_market_that_it_takes(market: str, rented: list[str]) -> None:
    spot = offer_of(on_demand_usd_per_h=None, spot_usd_per_h=0.06)
    wants = decided(snapshot_of(jobs=[waiting(market=market)]), [spot])
    assert [one.market.value for one in wants.rent] == rented


def test_a_job_that_scales_grows_and_one_that_does_not_stays() -> None:
    machine = machine_of("m1")
    for measurements, grows in ((GOOD_SCALING, True), (NO_SCALING, False)):
        snapshot = snapshot_of(
            [node_for(machine)],
            [runs()],
            {"gpt": [("n-m1", 0), ("n-m1", 1)]},
            {"gpt": measurements},
        )
        wants = decided(snapshot, [offer_of()], [machine])
        assert bool(wants.rent) is grows


def test_how_good_a_buy_it_has_to_be_is_the_objectives() -> None:
    """The second machine adds two fifths of the speed of the first: enough for time, not for cost."""
    machine = machine_of("m1")
    rents = {}
    for objective in ("time", "cost"):
        snapshot = snapshot_of(
            [node_for(machine)],
            [runs(goal={"objective": objective})],
            {"gpt": [("n-m1", 0), ("n-m1", 1)]},
            {"gpt": measured({1: 100.0, 2: 190.0, 3: 230.0, 4: 265.0})},
        )
        rents[objective] = len(decided(snapshot, [offer_of()], [machine]).rent)
    assert rents["cost"] == 0
    assert rents["time"] > 0


def test_budgets_bound_what_is_rented() -> None:
    snapshot = snapshot_of(jobs=[waiting("a"), waiting("b"), waiting("c")])
    offers = [offer_of(slots=1)]
    assert len(decided(snapshot, offers).rent) >= 3
    capped = replace(snapshot, caps=(Cap("all", None, 0.25),))
    assert sum(one.usd_per_h for one in decided(capped, offers).rent) <= 0.25
    ruled = decided(snapshot, offers, rules=RentalRules(max_usd_per_h=0.25))
    assert sum(one.usd_per_h for one in ruled.rent) <= 0.25
    assert "exceed the limit of $0.25/h" in ruled.held_back
    broke = replace(snapshot, caps=(Cap("all", None, 0.05),))
    assert decided(broke, offers).rent == ()


def test_a_place_that_cools_down_is_not_asked_but_another_is() -> None:
    place = RentalPlace("cloud", "here", "", "small", Market.ON_DEMAND)
    cool = {place: LaunchBackoff(NOW + timedelta(seconds=30), "none left")}
    snapshot = snapshot_of(jobs=[waiting()])
    only = decided(snapshot, [offer_of()], cooling=cool)
    assert only.rent == ()
    assert "none left" in only.held_back
    (other,) = decided(snapshot, [offer_of(), offer_of("next")], cooling=cool).rent
    assert other.offer.instance_type == "next"


def idle_since(seconds: float) -> dict[str, datetime]:
    return {"m1": NOW - timedelta(seconds=seconds)}


def test_an_idle_machine_is_given_back_after_a_while() -> None:
    machine = machine_of("m1")
    first = decided(snapshot_of(), [offer_of()], [machine])
    assert (first.release, dict(first.low_since)) == ((), {"m1": NOW})
    assert decided(snapshot_of(), [], [machine], low_since=idle_since(119)).release == ()
    (release,) = decided(snapshot_of(), [], [machine], low_since=idle_since(120)).release
    assert (release.machine_id, release.reason) == ("m1", MachineReason.IDLE)
    assert "no job has needed it" in release.message


def test_what_is_paid_for_anyway_is_kept() -> None:
    fresh = machine_of("m1", billed_from=NOW - timedelta(seconds=200), min_billed_s=3600.0)
    assert decided(snapshot_of(), [], [fresh], low_since=idle_since(150)).release == ()


def test_a_machine_that_is_wanted_is_kept_however_long() -> None:
    machine = machine_of("m1")
    wants = decided(snapshot_of(jobs=[waiting()]), [], [machine], low_since=idle_since(9999))
    assert wants.release == ()
    assert wants.low_since == {}


def test_of_two_machines_for_a_job_that_needs_one_the_dear_one_goes() -> None:
    machines = [machine_of("m1"), machine_of("m2", usd_per_h=0.4)]
    long_low = dict.fromkeys(("m1", "m2"), LONG_AGO)
    wants = decided(
        snapshot_of(jobs=[waiting(elastic={"min": 1, "max": 1})]), [], machines, low_since=long_low
    )
    assert [one.machine_id for one in wants.release] == ["m2"]


def test_of_equal_machines_the_idle_one_goes() -> None:
    machines = [machine_of("m1"), machine_of("m2")]
    snapshot = snapshot_of(
        [node_for(one) for one in machines],
        [runs(elastic={"min": 2, "max": 2})],
        {"gpt": [("n-m1", 0), ("n-m1", 1)]},
    )
    low = dict.fromkeys(("m1", "m2"), LONG_AGO)
    (release,) = decided(snapshot, [], machines, low_since=low).release
    assert (release.machine_id, release.reason) == ("m2", MachineReason.IDLE)


def test_a_machine_whose_job_gains_little_by_it_is_given_back() -> None:
    machines = [machine_of("m1"), machine_of("m2")]
    snapshot = snapshot_of(
        [node_for(one) for one in machines],
        [runs(goal={"objective": "cost"})],
        {"gpt": [("n-m1", 0), ("n-m1", 1), ("n-m2", 0), ("n-m2", 1)]},
        {"gpt": measured({1: 100.0, 2: 180.0, 4: 190.0})},
    )
    low = dict.fromkeys(("m1", "m2"), LONG_AGO)
    (release,) = decided(snapshot, [offer_of()], machines, low_since=low).release
    assert release.reason == MachineReason.NOT_WORTH_IT


def test_hosts_of_ones_own_and_machines_that_end_are_left_alone() -> None:
    own = Node(id="own", name="own", state=NodeState.READY, slots={0: "cpu"})
    ending = machine_of("m1", MachineState.ENDING)
    wants = decided(snapshot_of([own]), [], [ending], low_since=idle_since(9999))
    assert wants == RentalTargets()


@pytest.mark.parametrize(
    ("state", "is_held", "goes"),
    [
        (NodeState.CORDONED, False, True),
        (NodeState.DRAINED, False, True),
        (NodeState.DRAINING, False, True),
        (NodeState.CORDONED, True, False),
        (NodeState.DRAINING, True, False),
        (NodeState.LOST, False, False),
    ],
)
def test_one_that_takes_no_new_jobs_is_given_back_once_it_is_empty(
    state: NodeState, is_held: bool, goes: bool
) -> None:
    machine = machine_of("m1")
    held = {"gpt": [("n-m1", 0), ("n-m1", 1)]} if is_held else {}
    jobs = [runs(elastic={"min": 2, "max": 2})] if is_held else []
    node = replace(node_for(machine), state=state)
    snapshot = snapshot_of([node], jobs, held, {"gpt": GOOD_SCALING})
    wants = decide_rental_targets(
        SnapshotCluster(snapshot, frozenset({node.id})),
        Fleet(machines=[machine], nodes={"m1": node.id}),
        [offer_of()],
        RentalTerms(
            rules=RentalRules(),
            policy=policy("goodput"),
            solve=partial(solve, gap=0.0),
            low_since={"m1": LONG_AGO},
        ),
    )
    assert [one.machine_id for one in wants.release] == (["m1"] if goes else [])


def test_free_hosts_come_first() -> None:
    own = Node(id="own", name="own", state=NodeState.READY, slots=dict.fromkeys(range(4), "cpu"))
    assert decided(snapshot_of([own], [waiting(elastic={"min": 1, "max": 2})]), [offer_of()]).rent == ()


@st.composite
def offers_of(draw: st.DrawFn) -> Offer:
    prices = st.one_of(st.none(), st.floats(0.01, 5.0))
    return offer_of(
        draw(st.sampled_from(["a", "b", "c"])),
        draw(st.integers(1, 4)),
        on_demand_usd_per_h=draw(prices),
        spot_usd_per_h=draw(prices),
    )


@settings(max_examples=12)
@given(
    st.lists(offers_of(), max_size=3),
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["spot", "mixed", "on-demand"])), max_size=3),
    st.floats(0.0, 3.0),
    st.integers(0, 4),
)
def test_no_bound_is_ever_broken_and_the_same_question_has_the_same_answer(
    offers: list[Offer], jobs: list[tuple[int, str]], cap: float, most: int
) -> None:
    waits = [
        waiting(f"j{number}", elastic={"min": low, "max": low + 2}, market=market)
        for number, (low, market) in enumerate(jobs)
    ]
    rules = RentalRules(max_machines=most, max_usd_per_h=cap)
    wants = decided(snapshot_of(jobs=waits), offers, rules=rules)
    assert len(wants.rent) <= most
    assert sum(one.usd_per_h for one in wants.rent) <= cap + 1e-6
    assert wants == decided(snapshot_of(jobs=waits), offers, rules=rules)
