"""Tests of the Uniform Progress rule on any market."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.rental.spot.uniform_progress import (
    JobPace,
    Sizing,
    SpotMarket,
    SpotPhase,
    hold,
    pace_of,
    sizing,
)


def pace(*, done: float = 0, elapsed: float = 0, deadline: float = 2000, target: float = 1500) -> JobPace:
    return JobPace(
        work_s=1000.0,
        done_s=done,
        elapsed_s=elapsed,
        deadline_s=deadline,
        target_s=target,
        change_s=100.0,
    )


def market(ready: int, available: int, *, on_demand_ready: int = 0, filled: bool = False) -> SpotMarket:
    return SpotMarket(
        spot_ready=ready, spot_available=available, on_demand_ready=on_demand_ready, filled=filled
    )


FOUR = Sizing(full=4, most=6, anchors=1)


@pytest.mark.parametrize(
    ("at", "ready", "available", "filled", "wanted", "phase"),
    [
        (pace(done=1000), 3, 9, False, (0, 0), SpotPhase.DONE),
        (pace(elapsed=800), 3, 9, False, (4, 3), SpotPhase.PRESSED),
        (pace(done=300, elapsed=1200), 5, 9, False, (4, 4), SpotPhase.PRESSED),
        (pace(done=300, elapsed=2100), 0, 9, False, (4, 0), SpotPhase.PRESSED),
        (pace(done=200, elapsed=300), 5, 9, False, (1, 5), SpotPhase.PRESENT),
        (pace(done=200, elapsed=300), 3, 9, False, (1, 5), SpotPhase.PRESENT),
        (pace(done=200, elapsed=300), 0, 9, False, (1, 5), SpotPhase.STARTING),
        (pace(done=100, elapsed=300), 0, 3, False, (1, 3), SpotPhase.STARTING),
        (pace(done=100, elapsed=300), 0, 9, True, (4, 5), SpotPhase.BEHIND),
        (pace(done=100, elapsed=300), 1, 1, False, (3, 1), SpotPhase.BEHIND),
        (pace(done=300, elapsed=300), 1, 1, False, (1, 1), SpotPhase.AHEAD),
        (pace(done=320, elapsed=300), 1, 1, True, (3, 1), SpotPhase.BEHIND),
        (pace(done=340, elapsed=300), 1, 1, True, (1, 1), SpotPhase.AHEAD),
    ],
)
def test_what_to_hold(
    at: JobPace, ready: int, available: int, filled: bool, wanted: tuple[int, int], phase: SpotPhase
) -> None:
    found = hold(at, FOUR, market(ready, available, filled=filled))
    assert (found.on_demand, found.spot) == wanted
    assert found.phase is phase
    assert found.reason


@pytest.mark.parametrize(("on_demand_ready", "spot"), [(0, 3), (1, 3), (2, 2), (3, 1), (4, 0), (9, 0)])
def test_a_pressed_job_keeps_spot_machines_until_their_successors_can_train(
    on_demand_ready: int, spot: int
) -> None:
    found = hold(pace(elapsed=800), FOUR, market(3, 9, on_demand_ready=on_demand_ready))
    assert (found.on_demand, found.spot) == (4, spot)


@pytest.mark.parametrize(
    ("deadline_s", "safe_s", "expected"),
    [(math.inf, None, (1000, 500, 1155)), (1100, None, (1000, 500, 1100)), (5000, 1500, (1500, 750, 1155))],
)
def test_the_target_is_a_tenth_beyond_the_time_on_demand(
    deadline_s: float, safe_s: float | None, expected: tuple[float, float, float]
) -> None:
    """1,000 s of work and 50 s for a change: 1.1 * 1,050 s."""
    found = pace_of(work_s=1000, done=0.5, elapsed_s=7, deadline_s=deadline_s, change_s=50, safe_s=safe_s)
    assert (found.work_s, found.done_s, pytest.approx(found.target_s)) == expected
    assert (found.elapsed_s, found.deadline_s, found.change_s) == (7, deadline_s, 50)


@settings(max_examples=60)
@given(
    available=st.lists(st.integers(0, 5), min_size=1, max_size=80),
    slack=st.floats(1.0, 3.0),
    work=st.integers(20, 400),
    change=st.integers(1, 20),
    anchors=st.integers(0, 1),
)
def test_no_market_makes_it_miss_a_deadline_that_on_demand_meets(
    available: list[int], slack: float, work: int, change: int, anchors: int
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
        there = available[(second // 5) % len(available)]
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
        held = hold(
            stands,
            size,
            market(
                ready,
                there,
                on_demand_ready=sum(one <= second for one in on_demand),
                filled=len(on_demand) > anchors,
            ),
        )
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
    held = hold(at, size, market(ready, available, filled=filled))
    assert held.on_demand >= 0
    if done >= 1000:
        assert (held.on_demand, held.spot) == (0, 0)
        return
    if at.pressed:
        assert (held.on_demand, held.spot) == (full, min(ready, full))
        return
    assert 0 <= held.spot <= available
    assert held.on_demand >= anchors
    assert held.spot + anchors <= size.most
    assert held.on_demand <= full
    if held.on_demand > anchors:
        assert held.on_demand + min(ready, held.spot) == full, "as many stand in as are missing"
        assert at.behind or filled


def test_spot_machines_beyond_the_full_size_are_held_without_anchors_in_place_of_them() -> None:
    size = Sizing(full=4, most=10, anchors=1)
    at = pace(done=200, elapsed=300)
    assert hold(at, size, market(9, 20)).spot == 9
    few = hold(at, size, market(3, 4, filled=True))
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
