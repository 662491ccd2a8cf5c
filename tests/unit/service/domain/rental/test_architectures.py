"""Tests of the search for plans against an enumeration of all plans, and of the guarantees of each architecture."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.rental.architectures import best, saturation
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

GIB = 1 << 30
prices = st.integers(1, 400).map(lambda cents: cents / 100)


def offer(name: str, kind: str, devices: int, on_demand: float | None, spot: float | None) -> Offer:
    return Offer(
        provider="p",
        region="r",
        instance_type=name,
        device_kind=kind,
        devices=devices,
        vcpus=4 * devices,
        memory_bytes=8 * GIB,
        device_memory_bytes=16 * GIB,
        network_gbps=5.0,
        on_demand_usd_per_h=on_demand,
        spot_usd_per_h=spot,
        seen_at=datetime(2026, 1, 1, tzinfo=UTC),
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


@settings(max_examples=60, deadline=None)
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
