"""Tests of the cost of losses, and of the Uniform Progress rule on any market."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.perf.spot_rate import spot_share
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
    interval_s = math.sqrt(2 * 4.0 / (0.2 / 3600))
    assert found.interval_s == pytest.approx(interval_s)
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
        (pace(done=300, elapsed=1200), 3, 9, False, (4, 0), "800 s to the deadline, 700 s of work"),
        (pace(done=300, elapsed=2100), 3, 9, False, (4, 0), ": 0 s to the deadline"),
        (pace(done=200, elapsed=300), 5, 9, False, (1, 5), "are present"),
        (pace(done=200, elapsed=300), 3, 9, False, (1, 5), "are present"),
        (pace(done=200, elapsed=300), 0, 9, False, (1, 5), "are starting"),
        (pace(done=100, elapsed=300), 0, 3, False, (1, 3), "are starting"),
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


@settings(max_examples=60)
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
    assert sizing(speed, full=1, spot_price=0.95).anchors == 0, "it would be the whole job"
    assert [sizing(speed, full=full, spot_price=0.3).anchors for full in (1, 2, 6, 7, 16)] == [0, 0, 0, 1, 1]


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


@pytest.mark.parametrize(
    ("done", "elapsed", "pressed"),
    [
        (0, 0, False),
        (0, 799, False),
        (0, 800, True),
        (300, 1099, False),
        (300, 1100, True),
        (999, 1800, True),
        (1000, 1799, False),
    ],
)
def test_a_job_is_pressed_once_its_work_and_two_changes_fill_the_time_left(
    done: float, elapsed: float, *, pressed: bool
) -> None:
    """1,000 s of work, a deadline at 2,000 s, and 100 s for a change."""
    assert pace(done=done, elapsed=elapsed).pressed is pressed


def test_without_a_deadline_no_job_is_pressed() -> None:
    assert not pace(elapsed=1e9, deadline=math.inf).pressed


@pytest.mark.parametrize(
    ("done", "elapsed", "behind", "ahead"),
    [
        (0, 0, False, False),
        (199, 300, True, False),
        (200, 300, False, False),
        (333, 300, False, False),
        (334, 300, False, True),
        (999, 1400, False, False),
        (1000, 1400, False, True),
        (1000, 9000, True, True),
    ],
)
def test_uniform_progress_is_a_line_to_the_target(
    done: float, elapsed: float, *, behind: bool, ahead: bool
) -> None:
    """1,000 s of work in 1,500 s: 2/3 s a second. A job is ahead if it stays on the line for two changes of 100 s."""
    at = pace(done=done, elapsed=elapsed)
    assert (at.behind, at.ahead) == (behind, ahead)


def test_a_target_that_has_passed_leaves_no_time() -> None:
    at = pace(done=999, elapsed=1, target=0)
    assert at.behind
    assert not at.ahead
    assert not pace(target=0).behind, "nothing is due at the beginning"


@settings(max_examples=60)
@given(
    done=st.floats(0, 1100),
    elapsed=st.floats(0, 3000),
    full=st.integers(1, 8),
    more=st.integers(0, 4),
    anchors=st.integers(0, 1),
    ready=st.integers(0, 12),
    available=st.integers(0, 12),
    filled=st.booleans(),
)
def test_a_job_holds_no_more_than_its_sizes_and_no_less_than_it_has_to(
    done: float, elapsed: float, full: int, more: int, anchors: int, ready: int, available: int, filled: bool
) -> None:
    anchors = min(anchors, full - 1)
    size = Sizing(full=full, most=full + more, anchors=anchors)
    at = pace(done=done, elapsed=elapsed)
    held = hold(at, size, spot_ready=ready, spot_available=available, filled=filled)
    assert held.on_demand >= 0
    assert 0 <= held.spot <= available
    if done >= 1000:
        assert (held.on_demand, held.spot) == (0, 0)
        return
    if at.pressed:
        assert (held.on_demand, held.spot) == (full, 0)
        return
    assert held.on_demand >= anchors
    assert held.spot + anchors <= size.most
    assert held.on_demand <= full
    if held.on_demand > anchors:
        assert held.on_demand + min(ready, held.spot) == full, "as many stand in as are missing"
        assert at.behind or filled


def test_spot_machines_beyond_the_full_size_are_held_without_anchors_in_place_of_them() -> None:
    size = Sizing(full=4, most=10, anchors=1)
    at = pace(done=200, elapsed=300)
    assert hold(at, size, spot_ready=9, spot_available=20, filled=False).spot == 9
    few = hold(at, size, spot_ready=3, spot_available=4, filled=True)
    assert (few.on_demand, few.spot) == (1, 4), "all of the full size is present"


@pytest.mark.parametrize(
    ("speed", "full", "spot_price", "most"),
    [
        ([1], 1, 0.3, 1),
        ([1, 2], 2, 0.3, 2),
        ([1, 1.3], 1, 0.3, 2),
        ([1, 1.29], 1, 0.3, 1),
        ([1, 1.1, 1.9], 1, 0.4, 3),
        ([1, 2, 2.5, 2.2], 2, 0.1, 4),
        ([1, 2, 1.9, 1.8], 2, 0.1, 2),
    ],
)
def test_the_largest_size_is_the_last_that_pays(
    speed: list[float], full: int, spot_price: float, most: int
) -> None:
    assert sizing(speed, full=full, spot_price=spot_price).most == most


@settings(max_examples=40)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12),
    st.integers(1, 12),
    st.floats(0.01, 1.0),
    st.floats(0.01, 1.0),
)
def test_cheaper_spot_machines_never_make_a_job_smaller(
    steps: list[float], full: int, one: float, other: float
) -> None:
    speed = [1.0 + sum(steps[:n]) for n in range(len(steps))]
    full = min(full, len(speed))
    cheap, dear = (sizing(speed, full=full, spot_price=price) for price in sorted((one, other)))
    assert full <= dear.most <= cheap.most <= len(speed)
    assert cheap.anchors <= dear.anchors, (
        "an anchor costs more, the cheaper the spot machine that it replaces"
    )
