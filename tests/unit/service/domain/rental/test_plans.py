"""Tests of the figures of a plan, and of quotas by family of types."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.rental.plans import MachineGroup, MachinePlan, PlanLimits, Role, family, quota_of
from tests.unit.service.domain.rental.examples import ON_DEMAND, SPOT, group, offer_of, plan_of

MIXED = plan_of(
    group(3, SPOT, name="g1.large", devices=4, spot_usd_per_h=1.5, hazard_per_h=0.2),
    group(2, ON_DEMAND, Role.ANCHOR, name="g1.small", on_demand_usd_per_h=0.8),
    group(1, ON_DEMAND, Role.REMOTE, name="c1.small", device_kind="cpu", on_demand_usd_per_h=0.1),
)
"""Three spot workers of four devices, two anchors of one device, and a remote node."""


@pytest.mark.parametrize(
    ("market", "usd_per_h"),
    [(SPOT, 0.75), (ON_DEMAND, 3.0)],
)
def test_a_group_costs_its_machines_on_its_market(market: Market, usd_per_h: float) -> None:
    assert group(3, market).usd_per_h == pytest.approx(usd_per_h)


def test_a_group_on_a_market_without_a_price_costs_nothing() -> None:
    assert group(3, SPOT, spot_usd_per_h=None).usd_per_h == 0.0


def test_a_plan_costs_all_of_its_groups() -> None:
    assert MIXED.usd_per_h == pytest.approx(3 * 1.5 + 2 * 0.8 + 0.1)


def test_remote_nodes_do_not_train() -> None:
    assert [one.role for one in MIXED.training] == [Role.WORKER, Role.ANCHOR]
    assert (MIXED.workers, MIXED.slots) == (5, 14)


def test_anchored_slots_are_the_training_devices_on_demand() -> None:
    assert MIXED.anchored_slots == 2
    assert plan_of(group(4, ON_DEMAND, devices=8)).anchored_slots == 32
    assert plan_of(group(4, SPOT, devices=8)).anchored_slots == 0


def test_the_kind_of_a_plan_is_that_of_its_workers() -> None:
    assert MIXED.device_kind == "t4"
    assert plan_of(group(1, device_kind="h100"), group(1, device_kind="cpu")).device_kind == "h100"


def test_interruptions_are_those_of_the_spot_machines() -> None:
    assert MIXED.spot_machines == 3
    assert MIXED.hazard_per_h == pytest.approx(3 * 0.2)
    on_demand = plan_of(group(3, ON_DEMAND, hazard_per_h=0.2))
    assert (on_demand.spot_machines, on_demand.hazard_per_h) == (0, 0)


groups = st.builds(
    MachineGroup,
    role=st.sampled_from(Role),
    offer=st.builds(
        offer_of,
        devices=st.integers(1, 8),
        on_demand_usd_per_h=st.none() | st.floats(0, 50),
        spot_usd_per_h=st.none() | st.floats(0, 50),
        hazard_per_h=st.floats(0, 2),
    ),
    market=st.sampled_from(Market),
    machines=st.integers(0, 9),
)
plans = st.lists(groups, min_size=1, max_size=4).map(lambda found: plan_of(*found))


@settings(max_examples=50)
@given(plans)
def test_the_figures_of_any_plan_agree(plan: MachinePlan) -> None:
    assert plan.usd_per_h == pytest.approx(sum(one.usd_per_h for one in plan.groups))
    assert 0 <= plan.anchored_slots <= plan.slots
    assert plan.workers <= plan.slots
    assert plan.spot_machines <= sum(one.machines for one in plan.groups)
    highest = max(one.offer.hazard_per_h for one in plan.groups)
    assert 0 <= plan.hazard_per_h <= plan.spot_machines * highest + 1e-9


@settings(max_examples=50)
@given(plans, groups)
def test_a_further_group_adds_its_own_figures(plan: MachinePlan, more: MachineGroup) -> None:
    wider = plan_of(*plan.groups, more)
    assert wider.usd_per_h == pytest.approx(plan.usd_per_h + more.usd_per_h)
    assert wider.device_kind == plan.device_kind
    trains = 0 if more.role is Role.REMOTE else more.machines
    assert wider.workers == plan.workers + trains
    assert wider.slots == plan.slots + trains * more.offer.devices
    assert wider.spot_machines == plan.spot_machines + (more.machines if more.market is SPOT else 0)


@pytest.mark.parametrize(
    ("instance_type", "letters"),
    [
        ("g4dn.xlarge", "g"),
        ("p4d.24xlarge", "p"),
        ("inf2.xlarge", "inf"),
        ("small", "small"),
        ("a2-highgpu-1g", "a"),
        ("4xlarge", ""),
        ("", ""),
    ],
)
def test_the_family_is_the_letters_that_a_type_begins_with(instance_type: str, letters: str) -> None:
    assert family(instance_type) == letters


@pytest.mark.parametrize(
    ("name", "market", "vcpus"),
    [
        ("g4dn.xlarge", SPOT, 128),
        ("g5.xlarge", SPOT, 128),
        ("g5.xlarge", ON_DEMAND, 0),
        ("p3.2xlarge", SPOT, None),
        ("p3.2xlarge", ON_DEMAND, 64),
    ],
)
def test_a_quota_is_by_family_and_market(name: str, market: Market, vcpus: int | None) -> None:
    limits = PlanLimits(vcpus={"g/spot": 128, "g/on-demand": 0, "p/on-demand": 64})
    assert quota_of(offer_of(name), market, limits) == vcpus


def test_limits_that_name_nothing_limit_nothing() -> None:
    limits = PlanLimits()
    assert limits.max_usd_per_h is None
    assert quota_of(offer_of(), SPOT, limits) is None
    assert limits.device_bytes == limits.checkpoint_bytes == 0
