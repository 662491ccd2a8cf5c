"""Tests of the search for plans against an enumeration of all plans, and of the guarantees of each architecture."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.rental.architectures import best, saturation, within
from service.domain.rental.offers import Offer
from service.domain.rental.plans import (
    Architecture,
    MachineGroup,
    MachinePlan,
    PlanLimits,
    Role,
    WorkerChoice,
    family,
)
from tests.unit.service.domain.rental.examples import (
    GIB,
    ON_DEMAND,
    SPOT,
    group,
    host_offer,
    offer_of,
    plan_of,
)

prices = st.integers(1, 400).map(lambda cents: cents / 100)


def offer(name: str, kind: str, devices: int, on_demand: float | None, spot: float | None) -> Offer:
    return offer_of(
        name,
        device_kind=kind,
        devices=devices,
        vcpus=4 * devices,
        on_demand_usd_per_h=on_demand,
        spot_usd_per_h=spot,
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Offer], list[WorkerChoice], PlanLimits]:
    offers = [
        offer("g1.small", "t4", 1, draw(st.none() | prices), draw(st.none() | prices)),
        offer("g1.large", "t4", 2, draw(st.none() | prices), draw(st.none() | prices)),
        offer("p1.small", "v100", 1, draw(prices), draw(prices)),
        offer("c1.small", "cpu", 1, draw(prices), None),
        offer("c1.large", "cpu", 2, draw(prices), None),
    ]
    rows = [
        WorkerChoice(index, machines, float(draw(st.integers(0, 20))))
        for index in range(3)
        for machines in draw(st.sets(st.integers(1, 5), max_size=3))
    ]
    limits = PlanLimits(
        max_usd_per_h=draw(st.none() | st.integers(1, 1500).map(lambda cents: cents / 100)),
        vcpus=draw(
            st.dictionaries(
                st.sampled_from(["g/spot", "g/on-demand", "c/on-demand", "p/spot"]), st.integers(0, 24)
            )
        ),
        checkpoint_bytes=draw(st.sampled_from([0, 4, 40])) * GIB,
    )
    return offers, rows, limits


def every(
    architecture: Architecture, offers: list[Offer], rows: list[WorkerChoice], limits: PlanLimits
) -> Iterator[tuple[float, MachinePlan]]:
    """Yield every plan within the limits with the value of its row, by enumeration."""
    for row in rows:
        worker = offers[row.offer]
        on_spot = MachineGroup(Role.WORKER, worker, Market.SPOT, row.machines)
        found: list[tuple[MachineGroup, ...]] = []
        match architecture:
            case Architecture.ALL_SPOT:
                found = [(on_spot,)]
            case Architecture.ALL_ON_DEMAND:
                found = [(MachineGroup(Role.WORKER, worker, Market.ON_DEMAND, row.machines),)]
            case Architecture.SINGLE_ANCHOR:
                workers = MachineGroup(Role.WORKER, worker, Market.SPOT, row.machines - 1)
                found = [(workers, MachineGroup(Role.ANCHOR, worker, Market.ON_DEMAND, 1))]
            case Architecture.TIERING:
                found = [
                    (on_spot, MachineGroup(Role.REMOTE, other, Market.ON_DEMAND, count))
                    for other, count in itertools.product(offers, range(1, 8))
                    if other.device_kind == "cpu"
                    and row.machines < 16 * count
                    and count * other.memory_bytes >= limits.checkpoint_bytes / 2
                ]
            case Architecture.ANCHORED:
                found = [
                    (
                        MachineGroup(Role.WORKER, worker, Market.SPOT, spot),
                        MachineGroup(Role.ANCHOR, other, Market.ON_DEMAND, count),
                    )
                    for other in offers
                    for spot, count in itertools.product(range(1, 6), range(1, 11))
                    if other.device_kind == worker.device_kind
                    and spot * worker.devices + count * other.devices == row.machines * worker.devices
                ]
        for groups in found:
            plan = MachinePlan(architecture, groups)
            if _within(plan, limits):
                yield row.value, plan


def _within(plan: MachinePlan, limits: PlanLimits) -> bool:
    vcpus: dict[str, int] = {}
    for one in plan.groups:
        if one.machines < 1 or one.offer.usd_per_h(one.market) is None:
            return False
        key = f"{family(one.offer.instance_type)}/{one.market}"
        vcpus[key] = vcpus.get(key, 0) + one.machines * one.offer.vcpus
    cheap = limits.max_usd_per_h is None or plan.usd_per_h <= limits.max_usd_per_h + 1e-9
    return cheap and all(limits.vcpus.get(key, used) >= used for key, used in vcpus.items())


@settings(max_examples=40, deadline=None)
@given(world=worlds(), architecture=st.sampled_from(Architecture))
def test_nothing_within_the_limits_is_better(
    world: tuple[list[Offer], list[WorkerChoice], PlanLimits], architecture: Architecture
) -> None:
    offers, rows, limits = world
    all_plans = list(every(architecture, offers, rows, limits))
    found = best(architecture, offers, rows, limits)
    if not all_plans:
        assert found is None
        return
    assert found is not None
    most = max(value for value, _ in all_plans)
    cheapest = min(plan.usd_per_h for value, plan in all_plans if value == most)
    assert found.usd_per_h == pytest.approx(cheapest)
    assert any(value == most and {*plan.groups} == {*found.groups} for value, plan in all_plans), (
        "it is one of the plans within the limits"
    )


def test_an_excluded_plan_is_not_found_again() -> None:
    offers = [offer("g1.small", "t4", 1, 1.0, 0.3), offer("c1.small", "cpu", 1, 0.2, None)]
    rows = [WorkerChoice(0, 2, 2.0), WorkerChoice(0, 3, 3.0)]
    for architecture in (Architecture.ALL_SPOT, Architecture.TIERING, Architecture.SINGLE_ANCHOR):
        first = best(architecture, offers, rows, PlanLimits())
        assert first is not None
        second = best(architecture, offers, rows, PlanLimits(), exclude=[first])
        assert second is not None
        assert (first.slots, second.slots) == (3, 2)
        assert best(architecture, offers, rows, PlanLimits(), exclude=[first, second]) is None


def test_an_anchor_may_be_a_smaller_machine() -> None:
    offers = [offer("g1.large", "t4", 4, 4.0, 1.2), offer("g1.small", "t4", 1, 0.5, None)]
    plan = best(Architecture.ANCHORED, offers, [WorkerChoice(0, 3)], PlanLimits())
    assert plan is not None
    assert [(one.role, one.machines) for one in plan.groups] == [(Role.WORKER, 2), (Role.ANCHOR, 4)]
    assert (plan.slots, plan.anchored_slots) == (12, 4)


def test_an_anchor_in_another_region_is_none() -> None:
    far = [offer("g1.small", "t4", 1, None, 0.3)]
    elsewhere = replace(offer("g1.small", "t4", 1, 1.0, None), region="other")
    assert best(Architecture.ANCHORED, [*far, elsewhere], [WorkerChoice(0, 2)], PlanLimits()) is None


def test_a_device_that_is_too_small_is_in_no_plan() -> None:
    offers = [offer("g1.small", "t4", 1, 1.0, 0.3)]
    assert (
        best(Architecture.ALL_SPOT, offers, [WorkerChoice(0, 2)], PlanLimits(device_bytes=17 * GIB)) is None
    )
    assert (
        best(Architecture.ALL_SPOT, offers, [WorkerChoice(0, 2)], PlanLimits(device_bytes=16 * GIB))
        is not None
    )


def test_a_faster_network_takes_more_workers() -> None:
    assert [saturation(gbps) for gbps in (0.1, 0.3, 4.9, 5, 10, 400)] == [1, 2, 12, 16, 20, 32]


def plan_for(
    architecture: Architecture, offers: list[Offer], machines: int, **limits: Any
) -> list[tuple[int, str, Market]] | None:
    """The best plan with this many machines of the first offer."""
    plan = best(architecture, offers, [WorkerChoice(0, machines)], PlanLimits(**limits))
    if plan is None:
        return None
    return [(one.machines, one.offer.instance_type, one.market) for one in plan.groups]


BOTH, SPOT_ONLY, SOLD = (
    offer_of(),
    offer_of(on_demand_usd_per_h=None),
    offer_of(spot_usd_per_h=None),
)
NOTHING = offer_of(on_demand_usd_per_h=None, spot_usd_per_h=None)


@pytest.mark.parametrize(
    ("architecture", "possible"),
    [
        (Architecture.ALL_SPOT, [BOTH, SPOT_ONLY]),
        (Architecture.ALL_ON_DEMAND, [BOTH, SOLD]),
        (Architecture.SINGLE_ANCHOR, [BOTH]),
        (Architecture.ANCHORED, [BOTH]),
        (Architecture.TIERING, [BOTH, SPOT_ONLY]),
    ],
)
def test_machines_have_to_be_sold_on_the_markets_of_the_architecture(
    architecture: Architecture, possible: list[Offer]
) -> None:
    found = [
        one
        for one in (BOTH, SPOT_ONLY, SOLD, NOTHING)
        if plan_for(architecture, [one, host_offer()], 3) is not None
    ]
    assert found == possible


@pytest.mark.parametrize(
    ("architecture", "plan"),
    [
        (Architecture.ALL_SPOT, [(3, "g1.small", SPOT)]),
        (Architecture.ALL_ON_DEMAND, [(3, "g1.small", ON_DEMAND)]),
        (Architecture.SINGLE_ANCHOR, [(2, "g1.small", SPOT), (1, "g1.small", ON_DEMAND)]),
        (Architecture.ANCHORED, [(2, "g1.small", SPOT), (1, "g1.small", ON_DEMAND)]),
        (Architecture.TIERING, [(3, "g1.small", SPOT), (1, "c1.small", ON_DEMAND)]),
    ],
)
def test_three_machines_of_each_architecture(
    architecture: Architecture, plan: list[tuple[int, str, Market]]
) -> None:
    assert plan_for(architecture, [offer_of(), host_offer()], 3) == plan


@pytest.mark.parametrize("architecture", [Architecture.SINGLE_ANCHOR, Architecture.ANCHORED])
def test_one_machine_cannot_be_worker_and_anchor(architecture: Architecture) -> None:
    assert plan_for(architecture, [offer_of()], 1) is None
    assert plan_for(architecture, [offer_of()], 2) is not None


def test_no_rows_have_no_plan() -> None:
    for architecture in Architecture:
        assert best(architecture, [offer_of(), host_offer()], [], PlanLimits()) is None


@pytest.mark.parametrize(
    ("machines", "gbps", "nodes"),
    [(1, 0.1, 2), (15, 5.0, 1), (16, 5.0, 2), (31, 5.0, 2), (32, 5.0, 3), (11, 4.9, 1), (12, 4.9, 2)],
)
def test_remote_nodes_are_not_saturated(machines: int, gbps: float, nodes: int) -> None:
    """A node at 5 Gbit/s is saturated by 16 workers; the slower side counts."""
    for worker_gbps, node_gbps in ((gbps, 100.0), (100.0, gbps)):
        offers = [offer_of(network_gbps=worker_gbps), host_offer(network_gbps=node_gbps)]
        assert plan_for(Architecture.TIERING, offers, machines) == [
            (machines, "g1.small", SPOT),
            (nodes, "c1.small", ON_DEMAND),
        ]


@pytest.mark.parametrize(
    ("checkpoint_gib", "buffer", "nodes"),
    [(0, 0.5, 1), (16, 0.5, 1), (16.1, 0.5, 2), (16.1, 0.25, 1), (40, 0.5, 3), (40, 1.0, 5)],
)
def test_remote_nodes_hold_the_buffered_checkpoint_together(
    checkpoint_gib: float, buffer: float, nodes: int
) -> None:
    """Each has 8 GiB."""
    plan = plan_for(
        Architecture.TIERING,
        [offer_of(), host_offer()],
        2,
        checkpoint_bytes=checkpoint_gib * GIB,
        buffer=buffer,
    )
    assert plan is not None
    assert plan[1] == (nodes, "c1.small", ON_DEMAND)


@pytest.mark.parametrize(
    "node",
    [
        host_offer(device_kind="t4"),
        host_offer(memory_bytes=0),
        host_offer(on_demand_usd_per_h=None, spot_usd_per_h=0.1),
        host_offer(region="s"),
        host_offer(provider="q"),
    ],
    ids=["with a GPU", "no memory", "not on demand", "region", "provider"],
)
def test_a_remote_node_is_a_host_without_gpus_beside_the_workers(node: Offer) -> None:
    assert plan_for(Architecture.TIERING, [offer_of(), node], 2) is None


def test_the_cheapest_remote_nodes_are_rented_one_large_or_two_small() -> None:
    offers = [
        offer_of(),
        host_offer(),
        host_offer("m1.large", memory_bytes=16 * GIB, on_demand_usd_per_h=0.39),
    ]
    large = plan_for(Architecture.TIERING, offers, 2, checkpoint_bytes=32 * GIB)
    assert large is not None
    assert large[1] == (1, "m1.large", ON_DEMAND)
    offers[2] = replace(offers[2], on_demand_usd_per_h=0.41)
    small = plan_for(Architecture.TIERING, offers, 2, checkpoint_bytes=32 * GIB)
    assert small is not None
    assert small[1] == (2, "c1.small", ON_DEMAND)


@pytest.mark.parametrize(
    ("worker", "anchor", "machines", "plan"),
    [
        ({"devices": 4}, {"devices": 1}, 2, [(1, SPOT), (4, ON_DEMAND)]),
        ({"devices": 4}, {"devices": 2}, 2, [(1, SPOT), (2, ON_DEMAND)]),
        ({"devices": 2}, {"devices": 4}, 3, [(1, SPOT), (1, ON_DEMAND)]),
        ({"devices": 2}, {"devices": 4}, 2, None),
        ({"devices": 6}, {"devices": 4}, 3, [(1, SPOT), (3, ON_DEMAND)]),
        ({"devices": 1}, {"devices": 1, "device_kind": "h100"}, 3, None),
        ({"devices": 1}, {"devices": 1, "on_demand_usd_per_h": None}, 3, None),
        ({"devices": 1}, {"devices": 1, "region": "s"}, 3, None),
        ({"devices": 1, "spot_usd_per_h": 3.0}, {"devices": 1}, 5, [(1, SPOT), (4, ON_DEMAND)]),
    ],
    ids=["small", "half", "large", "too large", "odd", "kind", "market", "region", "cheap"],
)
def test_workers_and_anchors_have_the_devices_of_the_row(
    worker: dict[str, Any], anchor: dict[str, Any], machines: int, plan: list[tuple[int, Market]] | None
) -> None:
    offers = [
        offer_of(**{"on_demand_usd_per_h": None, **worker}),
        offer_of("g1.anchor", **{"spot_usd_per_h": None, **anchor}),
    ]
    found = plan_for(Architecture.ANCHORED, offers, machines)
    assert (None if found is None else [(count, market) for count, _, market in found]) == plan


def test_a_quota_on_spot_takes_more_anchors_than_price_alone() -> None:
    limits = {"vcpus": {"g/spot": 8}}
    assert plan_for(Architecture.ANCHORED, [offer_of()], 5, **limits) == [
        (2, "g1.small", SPOT),
        (3, "g1.small", ON_DEMAND),
    ]
    assert plan_for(Architecture.ANCHORED, [offer_of()], 5, **limits, max_usd_per_h=3.49) is None
    assert plan_for(Architecture.ANCHORED, [offer_of()], 5, **limits, max_usd_per_h=3.5) is not None


def test_the_value_of_a_row_precedes_its_price() -> None:
    offers = [offer_of("g1.cheap", spot_usd_per_h=0.1), offer_of("g1.dear", spot_usd_per_h=0.9)]
    rows = [WorkerChoice(0, 1, 5.0), WorkerChoice(1, 1, 5.1), WorkerChoice(0, 3, 5.0)]
    plan = best(Architecture.ALL_SPOT, offers, rows, PlanLimits())
    assert plan is not None
    assert plan.groups[0].offer.instance_type == "g1.dear"
    plan = best(Architecture.ALL_SPOT, offers, rows, PlanLimits(max_usd_per_h=0.5))
    assert plan is not None
    assert plan.usd_per_h == 0.1, "of equal values the cheaper row"
    worse = [WorkerChoice(0, 1, -2.0), WorkerChoice(1, 1, -1.0)]
    plan = best(Architecture.ALL_SPOT, offers, worse, PlanLimits())
    assert plan is not None
    assert plan.groups[0].offer.instance_type == "g1.dear"


def test_a_plan_of_another_architecture_excludes_nothing() -> None:
    offers, rows = [offer_of()], [WorkerChoice(0, 2)]
    spot = best(Architecture.ALL_SPOT, offers, rows, PlanLimits())
    assert spot is not None
    assert best(Architecture.ALL_ON_DEMAND, offers, rows, PlanLimits(), exclude=[spot]) is not None
    assert best(Architecture.ALL_SPOT, offers, rows, PlanLimits(), exclude=[spot]) is None


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        ({}, True),
        ({"max_usd_per_h": 1.75}, True),
        ({"max_usd_per_h": 1.749999}, False),
        ({"vcpus": {"g/spot": 12, "g/on-demand": 4}}, True),
        ({"vcpus": {"g/spot": 11}}, False),
        ({"vcpus": {"g/on-demand": 3}}, False),
        ({"vcpus": {"p/spot": 0}}, True),
    ],
)
def test_limits_on_dollars_and_vcpus_of_all_groups(limits: dict[str, Any], *, allowed: bool) -> None:
    """Three machines on spot and one on demand, of four vCPUs each, cost $1.75 an hour."""
    plan = plan_of(group(3, SPOT), group(1, ON_DEMAND, Role.ANCHOR))
    assert within(plan, PlanLimits(**limits)) is allowed


def test_prices_that_add_up_to_the_limit_are_within_it_despite_rounding() -> None:
    assert 3 * 0.1 > 0.3
    plan = plan_of(group(3, SPOT, spot_usd_per_h=0.1))
    assert within(plan, PlanLimits(max_usd_per_h=0.3))
