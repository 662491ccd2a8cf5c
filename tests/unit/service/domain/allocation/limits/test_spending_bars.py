"""Columns that a spending limit or a deadline excludes, and those that they never exclude."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.limits.spending import (
    SpendingBar,
    bars_of,
)
from service.domain.cluster.snapshot import Limit
from service.domain.shared.arrays import IntArray
from tests.unit.service.builders import NOW, snapshot_of
from tests.unit.service.domain.allocation.limits.scenes import (
    FIRM,
    SPOT,
    all_open,
    column_of,
    columns_in,
    job,
    marked,
    pool_of,
    prospects,
    rooms_of,
    waiting,
)

BOTH = rooms_of(pool_of(FIRM, 4, usd=4.0), pool_of(SPOT, 4, usd=1.0))
CHEAP = rooms_of(pool_of(FIRM, 8, usd=1.0))


def budgeted(
    left_usd: float,
    on_budget: Any = "shrink",
    *,
    current: int | None = None,
    open_to: list[int] | None = None,
    remaining: float = 3.6e6,
) -> set[int]:
    """Sizes that a limit excludes. Slots of $1 train 100 samples/s each, so every size costs $10 for 3.6e6 samples,
    but those above 2 slots train no faster than 2.
    """
    one = job(most=4)
    columns = columns_in(CHEAP, one)
    ahead = prospects(columns, remaining=remaining)
    ahead.goodput[:] = np.minimum(ahead.goodput, 200.0)
    sizes = columns.configurations.slots
    opened = all_open([one], columns) if open_to is None else np.isin(sizes, open_to)[None, :]
    bars = bars_of(
        replace(snapshot_of([], [one]), limits={"j": Limit(left_usd, on_budget)}),
        [one],
        columns,
        CHEAP,
        open_to=opened,
        allowed=opened,
        current=waiting([one]) if current is None else np.array([current - 1]),
        prospects=ahead,
    )
    assert set(np.unique(bars).tolist()) <= {SpendingBar.NONE, SpendingBar.OVER_BUDGET}
    return set(sizes[bars[0] == SpendingBar.OVER_BUDGET].tolist())


@pytest.mark.parametrize(
    ("left_usd", "excluded"),
    [
        (100.0, set()),
        (21.0, set()),  # 4 slots cost $20, and 5 % are kept in reserve
        (20.9, {4}),
        (15.75, {4}),
        (15.7, {3, 4}),
        (10.5, {3, 4}),
        (10.4, {2, 3, 4}),  # nothing is cheap enough: all but the cheapest
        (0.0, {2, 3, 4}),
        (-5.0, {2, 3, 4}),
    ],
)
def test_columns_that_cost_more_than_is_left_are_excluded(left_usd: float, excluded: set[int]) -> None:
    assert budgeted(left_usd) == excluded


def test_the_present_column_needs_no_reserve() -> None:
    assert budgeted(20.0, current=4) == set()
    assert budgeted(19.9, current=4) == {4}
    assert budgeted(15.0, current=3) == {4}
    assert budgeted(15.0, current=2) == {3, 4}
    assert budgeted(10.0, "stop", current=1) == {2, 3, 4}


@pytest.mark.parametrize("on_budget", ["pause", "stop"])
def test_a_job_that_stops_at_its_limit_is_not_shrunk_to_the_cheapest(on_budget: str) -> None:
    assert budgeted(12.0, on_budget) == {3, 4}
    assert budgeted(1.0, on_budget) == set()


def test_only_columns_that_are_open_count() -> None:
    assert budgeted(15.0, open_to=[4]) == {1, 2, 3}, (
        "the only open one is too dear, but the cheapest there is"
    )
    assert budgeted(15.0, open_to=[3, 4]) == {1, 2, 4}
    assert budgeted(15.0, open_to=[2, 4]) == {3, 4}
    assert budgeted(15.0, open_to=[]) == set()


def test_a_cost_that_is_unknown_excludes_nothing() -> None:
    assert budgeted(0.01, remaining=np.nan) == set()


def test_a_job_that_would_never_end_is_left_alone() -> None:
    one = job(most=2)
    columns = columns_in(CHEAP, one)
    ahead = prospects(columns, per_slot=0.0)
    snapshot = replace(snapshot_of([], [one]), limits={"j": Limit(1.0)})
    everything = all_open([one], columns)
    bars = bars_of(
        snapshot,
        [one],
        columns,
        CHEAP,
        open_to=everything,
        allowed=everything,
        current=waiting([one]),
        prospects=ahead,
    )
    assert (bars == SpendingBar.NONE).all()


def test_a_limit_is_for_its_own_job() -> None:
    jobs = [job("rich"), job("poor")]
    columns = columns_in(CHEAP, *jobs)
    everything = all_open(jobs, columns)
    ahead = prospects(columns, jobs=2)
    ahead.goodput[:] = 100.0
    bars = bars_of(
        replace(snapshot_of([], jobs), limits={"poor": Limit(10.5)}),
        jobs,
        columns,
        CHEAP,
        open_to=everything,
        allowed=everything,
        current=waiting(jobs),
        prospects=ahead,
    )
    assert bars.tolist() == [[0] * 4, [0, 1, 1, 1]]


@settings(max_examples=40)
@given(st.floats(-5, 60), st.floats(0, 60), st.sampled_from(["shrink", "pause", "stop"]))
def test_more_dollars_never_exclude_more_as_long_as_something_is_affordable(
    left_usd: float, more: float, on_budget: str
) -> None:
    poor, rich = budgeted(left_usd, on_budget), budgeted(left_usd + more, on_budget)
    assert len(poor) < 4
    if left_usd >= 10.5:
        assert rich <= poor


def hurried(
    left_s: float,
    *,
    at: dict[str, int] | None = None,
    market: str = "mixed",
    room: int = 4,
    remaining: float = 200_000.0,
    limit: Limit | None = None,
    closed: set[tuple[int, int]] = frozenset(),
    deadline: bool = True,
) -> tuple[set[tuple[int, int]], IntArray]:
    """Columns that a deadline excludes. Four slots on-demand surely train 200 samples/s: 1000 s for 200,000."""
    goal = {"deadline": NOW + timedelta(seconds=left_s)} if deadline else {}
    one = job(spec={"goal": goal, "market": market})
    rooms = rooms_of(pool_of(FIRM, 4, usd=4.0, room=[room]), pool_of(SPOT, 4, usd=1.0))
    columns = columns_in(rooms, one)
    everything = all_open([one], columns)
    opened = everything.copy()
    opened[0] = [tuple(parts) not in closed for parts in columns.parts.tolist()]
    bars = bars_of(
        replace(snapshot_of([], [one]), limits={} if limit is None else {"j": limit}),
        [one],
        columns,
        rooms,
        open_to=opened,
        allowed=everything,
        current=waiting([one]) if at is None else np.array([column_of(columns, **at)]),
        prospects=prospects(columns, remaining=remaining, start_s=50.0),
    )
    return marked(columns, bars[0] == SpendingBar.DEADLINE), bars


WITH_SPOT = {(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (1, 3)}


@pytest.mark.parametrize(
    ("left_s", "at", "excluded"),
    [
        (1050.0, None, True),  # 1000 s of work and one change of 50 s
        (1050.1, None, False),
        (1050.0, {"spot": 4}, True),
        (1050.1, {"spot": 4}, False),
        (1050.0, {"firm": 1, "spot": 3}, True),
        (1100.0, {"firm": 4}, True),  # there and back: two changes
        (1100.1, {"firm": 4}, False),
        (1100.0, {"firm": 1}, True),
        (0.0, {"spot": 4}, True),
        (-1e6, {"spot": 4}, True),
    ],
)
def test_spot_is_excluded_once_the_time_left_suffices_only_on_demand(
    left_s: float, at: dict[str, int] | None, excluded: bool
) -> None:
    """The rule of Can't Be Late (NSDI'24): the time left is at most the work there and the changes."""
    assert hurried(left_s, at=at)[0] == (WITH_SPOT if excluded else set())


@pytest.mark.parametrize(
    "fields",
    [
        {"market": "on-demand"},
        {"market": "spot"},
        {"deadline": False},
        {"remaining": np.nan},
        {"closed": {(1, 0), (2, 0), (3, 0), (4, 0)}},
        {"room": 0},
    ],
    ids=[
        "no spot",
        "no on-demand",
        "no deadline",
        "unknown work",
        "nothing open on-demand",
        "no room on-demand",
    ],
)
def test_spot_is_excluded_only_for_something_better(fields: dict[str, Any]) -> None:
    assert hurried(10.0, **fields)[0] == set()
    assert hurried(10.0)[0] == WITH_SPOT


def test_machines_that_others_use_count_as_better_if_their_slots_can_be_granted() -> None:
    assert hurried(10.0, room=1)[0] == WITH_SPOT
    assert hurried(10.0, closed={(1, 0), (2, 0), (3, 0)})[0] == WITH_SPOT
    assert hurried(10.0, closed={(1, 0), (2, 0), (3, 0)}, room=3)[0] == set()


def test_money_comes_before_the_deadline() -> None:
    """Columns that are over budget are no way to meet a deadline."""
    excluded, bars = hurried(10.0, limit=Limit(0.9))
    assert excluded == set()
    assert (bars == SpendingBar.OVER_BUDGET).any()
    assert hurried(10.0, limit=Limit(100.0))[0] == WITH_SPOT


def test_spot_nodes_must_exist() -> None:
    one = job(spec={"goal": {"deadline": NOW}})
    columns = columns_in(CHEAP, one)
    everything = all_open([one], columns)
    bars = bars_of(
        snapshot_of([], [one]),
        [one],
        columns,
        CHEAP,
        open_to=everything,
        allowed=everything,
        current=waiting([one]),
        prospects=prospects(columns, remaining=1e9),
    )
    assert (bars == SpendingBar.NONE).all()
