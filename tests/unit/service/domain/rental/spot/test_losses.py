"""Tests of the cost of spot interruptions for a plan."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.cluster.spot_rate import spot_share
from service.domain.rental.catalogue import BUILT_IN
from service.domain.rental.plans import Architecture, MachineGroup, MachinePlan, Role
from service.domain.rental.spot.losses import Costs, exposure

OFFER = replace(next(one for one in BUILT_IN if one.instance_type == "g5.xlarge"), hazard_per_h=0.2)
COSTS = Costs(checkpoint_s=4.0, restart_s=40.0, resize_s=1.0)


def plan(architecture: Architecture, spot: int, on_demand: int, role: Role = Role.WORKER) -> MachinePlan:
    groups = [MachineGroup(Role.WORKER, OFFER, Market.SPOT, spot)] if spot else []
    if on_demand:
        groups.append(MachineGroup(role, OFFER, Market.ON_DEMAND, on_demand))
    return MachinePlan(architecture, tuple(groups))


def test_what_is_on_demand_loses_nothing() -> None:
    found = exposure(plan(Architecture.ALL_ON_DEMAND, 0, 4), COSTS)
    assert (found.losses_per_h, found.left, found.present) == (0.0, 1.0, 1.0)
    assert math.isinf(found.interval_s)


def test_beside_an_anchor_a_loss_is_a_pause() -> None:
    found = exposure(plan(Architecture.SINGLE_ANCHOR, 7, 1, Role.ANCHOR), COSTS)
    assert found.losses_per_h == pytest.approx(7 * 0.2)
    assert found.loss_s == COSTS.resize_s
    assert found.share == 1.0
    assert "live replica" in found.reason


def test_one_machine_alone_has_the_published_rate() -> None:
    """The share is (1 - delta / tau) / (1 + h (tau / 2 + R)) at the best tau."""
    found = exposure(plan(Architecture.ALL_SPOT, 1, 0), COSTS)
    interval_s = math.sqrt(2 * 4.0 / (0.2 / 3600))
    assert found.interval_s == pytest.approx(interval_s)
    assert found.left == pytest.approx(
        spot_share(losses_per_h=0.2, checkpoint_s=4.0, interval_s=interval_s, restart_s=40.0)
    )


def test_a_job_survives_losses_only_at_sizes_whose_parts_have_copies() -> None:
    costs = replace(COSTS, single_copy=frozenset({4}))
    anchors = {size: plan(Architecture.SINGLE_ANCHOR, size - 1, 1, Role.ANCHOR) for size in (4, 8)}
    assert exposure(anchors[8], costs).loss_s == COSTS.resize_s
    assert exposure(anchors[4], costs) == exposure(anchors[4], replace(COSTS, live=False))


def test_a_job_that_cannot_go_on_without_a_member_restarts_at_every_loss() -> None:
    live = exposure(plan(Architecture.ALL_SPOT, 8, 0), COSTS)
    gang = exposure(plan(Architecture.ALL_SPOT, 8, 0), replace(COSTS, live=False))
    anchored = exposure(plan(Architecture.SINGLE_ANCHOR, 7, 1, Role.ANCHOR), replace(COSTS, live=False))
    assert gang.losses_per_h == live.losses_per_h
    assert gang.loss_s > 40.0
    assert gang.left < live.left
    assert anchored.loss_s > 40.0


@settings(max_examples=40)
@given(
    architecture=st.sampled_from([Architecture.ALL_SPOT, Architecture.ANCHORED]),
    spot=st.integers(1, 64),
    live=st.booleans(),
    hazard=st.floats(0, 20),
    checkpoint_s=st.floats(0, 600),
    restart_s=st.floats(0, 3600),
)
def test_what_is_left_is_a_share(
    architecture: Architecture, spot: int, live: bool, hazard: float, checkpoint_s: float, restart_s: float
) -> None:
    risky = replace(OFFER, hazard_per_h=hazard)
    groups = [MachineGroup(Role.WORKER, risky, Market.SPOT, spot)]
    if architecture is Architecture.ANCHORED:
        groups.append(MachineGroup(Role.ANCHOR, risky, Market.ON_DEMAND, 1))
    costs = Costs(checkpoint_s=checkpoint_s, restart_s=restart_s, live=live)
    found = exposure(MachinePlan(architecture, tuple(groups)), costs)
    assert 0 <= found.left <= 1
    assert 0 < found.present <= 1


def risky(machines: int, per_h: float = 0.2) -> MachinePlan:
    offer = replace(OFFER, hazard_per_h=per_h)
    return MachinePlan(Architecture.ALL_SPOT, (MachineGroup(Role.WORKER, offer, Market.SPOT, machines),))


def test_eight_machines_by_hand() -> None:
    """Eight machines at 0.2 losses an hour each; 45 % of a machine's losses take all of them.

    The fatal rate is 0.45 * 0.2 an hour, so Young's interval is sqrt(2 * 4 / (0.09 / 3600)) = 565.7 s. Of all
    1.6 losses an hour, 0.09 / 1.6 cost half of the interval and the restart, and the others a resize.
    """
    found = exposure(risky(8), replace(COSTS, resize_s=3.0))
    interval_s = math.sqrt(2 * 4 / (0.09 / 3600))
    fatal = 0.09 / 1.6
    loss_s = fatal * (interval_s / 2 + 40) + (1 - fatal) * 3
    assert found.losses_per_h == pytest.approx(1.6)
    assert found.interval_s == pytest.approx(interval_s)
    assert found.loss_s == pytest.approx(loss_s)
    assert found.share == pytest.approx(1 - 4 / interval_s)
    assert found.left == pytest.approx((1 - 4 / interval_s) / (1 + 1.6 / 3600 * loss_s))


@pytest.mark.parametrize("machines", [1, 8])
@pytest.mark.parametrize(("per_h", "present"), [(0.2, 1 / 1.1), (2.0, 0.5), (20.0, 1 / 11)])
def test_a_lost_machine_is_away_for_half_an_hour(machines: int, per_h: float, present: float) -> None:
    assert exposure(risky(machines, per_h), COSTS).present == pytest.approx(present)


@pytest.mark.parametrize("machines", [1, 2, 16])
def test_a_job_that_is_not_live_restarts_whatever_else_stays(machines: int) -> None:
    gang = exposure(risky(machines), replace(COSTS, live=False))
    interval_s = math.sqrt(2 * 4.0 / (0.2 * machines / 3600))
    assert gang.interval_s == pytest.approx(interval_s)
    assert gang.loss_s == pytest.approx(interval_s / 2 + 40)
    assert ", each costs" in gang.reason


@settings(max_examples=50)
@given(
    machines=st.integers(1, 32),
    hazard=st.floats(1e-4, 5),
    more=st.floats(1.01, 3),
    live=st.booleans(),
)
def test_more_interruptions_leave_less(machines: int, hazard: float, more: float, live: bool) -> None:
    costs = replace(COSTS, live=live)
    calm, rough = (exposure(risky(machines, one), costs) for one in (hazard, hazard * more))
    assert rough.losses_per_h > calm.losses_per_h
    assert rough.left <= calm.left + 1e-12
    assert rough.present <= calm.present
    assert rough.interval_s <= calm.interval_s


@settings(max_examples=30)
@given(
    machines=st.integers(1, 32),
    hazard=st.floats(0.01, 5),
    restart_s=st.floats(0, 600),
    slower=st.floats(1, 600),
)
def test_a_dearer_restart_leaves_less(machines: int, hazard: float, restart_s: float, slower: float) -> None:
    cheap, dear = (
        exposure(risky(machines, hazard), replace(COSTS, restart_s=one))
        for one in (restart_s, restart_s + slower)
    )
    assert dear.left < cheap.left


@settings(max_examples=30)
@given(spot=st.integers(1, 16), hazard=st.floats(0.01, 5))
def test_an_anchor_leaves_at_least_as_much_as_no_anchor(spot: int, hazard: float) -> None:
    offer = replace(OFFER, hazard_per_h=hazard)
    anchored = MachinePlan(
        Architecture.SINGLE_ANCHOR,
        (
            MachineGroup(Role.WORKER, offer, Market.SPOT, spot),
            MachineGroup(Role.ANCHOR, offer, Market.ON_DEMAND, 1),
        ),
    )
    assert exposure(anchored, COSTS).left >= exposure(risky(spot, hazard), COSTS).left
