"""Tests of the cost of losses, and of the Uniform Progress rule on any market."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.perf.spot_rate import best_interval_s, spot_share
from service.domain.rental.catalogue import BUILT_IN
from service.domain.rental.plans import Architecture, MachineGroup, MachinePlan, Role
from service.domain.rental.spot import (
    Costs,
    JobPace,
    Sizing,
    exposure,
    hold,
    sizing,
)

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
    interval_s = best_interval_s(losses_per_h=0.2, checkpoint_s=4.0)
    assert found.interval_s == pytest.approx(math.sqrt(2 * 4.0 / (0.2 / 3600)))
    assert found.left == pytest.approx(
        spot_share(losses_per_h=0.2, checkpoint_s=4.0, interval_s=interval_s, restart_s=40.0)
    )


def test_a_job_that_cannot_go_on_without_a_member_restarts_at_every_loss() -> None:
    live = exposure(plan(Architecture.ALL_SPOT, 8, 0), COSTS)
    gang = exposure(plan(Architecture.ALL_SPOT, 8, 0), replace(COSTS, live=False))
    anchored = exposure(plan(Architecture.SINGLE_ANCHOR, 7, 1, Role.ANCHOR), replace(COSTS, live=False))
    assert gang.losses_per_h == live.losses_per_h
    assert gang.loss_s > 40.0
    assert gang.left < live.left
    assert anchored.loss_s > 40.0


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


def pace(*, done: float = 0, elapsed: float = 0, deadline: float = 2000, target: float = 1500) -> JobPace:
    return JobPace(
        work_s=1000.0,
        done_s=done,
        elapsed_s=elapsed,
        deadline_s=deadline,
        target_s=target,
        change_s=100.0,
    )


FOUR = Sizing(full=4, most=6, anchors=1)


@pytest.mark.parametrize(
    ("at", "ready", "available", "filled", "wanted", "why"),
    [
        (pace(done=1000), 3, 9, False, (0, 0), "done"),
        (pace(elapsed=800), 3, 9, False, (4, 0), "on demand to the end"),
        (pace(done=200, elapsed=300), 5, 9, False, (1, 5), "are present"),
        (pace(done=200, elapsed=300), 0, 9, False, (1, 5), "are starting"),
        (pace(done=100, elapsed=300), 0, 9, True, (4, 5), "in place of"),
        (pace(done=100, elapsed=300), 1, 1, False, (3, 1), "behind"),
        (pace(done=300, elapsed=300), 1, 1, False, (1, 1), "waits"),
        (pace(done=320, elapsed=300), 1, 1, True, (3, 1), "behind"),
        (pace(done=340, elapsed=300), 1, 1, True, (1, 1), "waits"),
    ],
)
def test_what_to_hold(
    at: JobPace, ready: int, available: int, filled: bool, wanted: tuple[int, int], why: str
) -> None:
    found = hold(at, FOUR, spot_ready=ready, spot_available=available, filled=filled)
    assert (found.on_demand, found.spot) == wanted
    assert why in found.reason


@given(
    market=st.lists(st.integers(0, 5), min_size=1, max_size=80),
    slack=st.floats(1.0, 3.0),
    work=st.integers(20, 400),
    change=st.integers(1, 20),
    anchors=st.integers(0, 1),
)
def test_no_market_makes_it_miss_a_deadline_that_on_demand_meets(
    market: list[int], slack: float, work: int, change: int, anchors: int
) -> None:
    """Simulate steps of one second. Every machine trains `change` seconds after its launch.

    On any market, the rule ends in time if a start on demand with one spare change would.
    """
    full = 4
    size = Sizing(full=full, most=5, anchors=anchors)
    deadline = slack * (work + 2 * change)
    done = 0.0
    spot: list[int] = []
    on_demand: list[int] = []
    for second in range(int(deadline) + 1):
        there = market[(second // 5) % len(market)]
        del spot[there:]
        ready = sum(one <= second for one in spot)
        stands = JobPace(
            work_s=work,
            done_s=done,
            elapsed_s=second,
            deadline_s=deadline,
            target_s=min(deadline, 1.1 * work),
            change_s=change,
        )
        held = hold(stands, size, spot_ready=ready, spot_available=there, filled=len(on_demand) > anchors)
        del spot[held.spot :], on_demand[held.on_demand :]
        spot += [second + change] * (held.spot - len(spot))
        on_demand += [second + change] * (held.on_demand - len(on_demand))
        training = sum(one <= second for one in [*spot, *on_demand])
        done += min(training, full) / full
        if done >= work:
            break
    assert done >= work


def test_a_job_grows_as_far_as_a_dollar_goes_as_far_as_on_demand() -> None:
    speed = [1, 2, 3, 4, 4.4, 4.7, 4.8, 4.85]
    assert sizing(speed, full=4, spot_price=0.3).most == 6
    assert sizing(speed, full=4, spot_price=1.0).most == 4
    assert sizing(speed, full=4, spot_price=0.01).most == 8


def test_an_anchor_is_kept_where_it_is_a_small_part_of_the_price() -> None:
    speed = [float(n) for n in range(1, 17)]
    assert [sizing(speed, full=full, spot_price=0.3).anchors for full in (1, 2, 6, 7, 16)] == [0, 0, 0, 1, 1]
