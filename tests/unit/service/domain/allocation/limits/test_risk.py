"""Markets: which columns may be lost, what remains of their speed, and what a price discount counts for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.views.jobs import JobProgress
from service.domain.allocation.configurations.capacity import PoolCapacity
from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.limits.risk import anchored, kept_share, on_spot, saves, thrift
from service.domain.jobs.job import Job
from service.domain.shared.arrays import FloatArray
from tests.unit.service.domain.allocation.limits.scenes import (
    FIRM,
    OTHER,
    SPOT,
    column_of,
    columns_in,
    job,
    marked,
    pool_of,
    rooms_of,
)

BOTH = rooms_of(pool_of(FIRM, 4, usd=4.0), pool_of(SPOT, 2, 2, usd=1.0))
TWO_PER_H = {"a100 (spot)": 2.0}


def share_of(columns: Columns, jobs: list[Job], hazard: dict[str, float] = TWO_PER_H) -> FloatArray:
    found = kept_share(jobs, columns, hazard, restart_s=60.0, pause_s=lambda _: 6.0)
    assert found is not None
    return found


def at(columns: Columns, values: FloatArray, row: int = 0, **parts: int) -> float:
    return float(values[row, column_of(columns, **parts)])


def test_a_column_is_on_spot_if_any_of_its_slots_is() -> None:
    columns = columns_in(BOTH, job(most=3))
    assert marked(columns, on_spot(columns)) == {(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)}
    assert marked(columns, ~on_spot(columns)) == {(1, 0), (2, 0), (3, 0)}
    assert marked(columns, anchored(columns)) == {(1, 1), (1, 2)}


def test_a_cluster_of_one_market_has_no_anchors() -> None:
    firm, spot = (columns_in(rooms_of(pool_of(pool, 4)), job()) for pool in (FIRM, SPOT))
    assert not on_spot(firm).any()
    assert on_spot(spot).all()
    assert not anchored(firm).any()
    assert not anchored(spot).any()


@pytest.mark.parametrize("hazard", [{}, {"a100 (spot)": 0.0}, {"a100 (spot)": -1.0}, {"h100 (spot)": 3.0}])
def test_without_a_hazard_no_speed_is_lost(hazard: dict[str, float]) -> None:
    jobs = [job()]
    columns = columns_in(BOTH, *jobs)
    assert kept_share(jobs, columns, hazard, restart_s=60.0, pause_s=lambda _: 6.0) is None


def test_a_job_keeps_the_share_of_young() -> None:
    """By hand (Young, 1974): 2 losses an hour, a checkpoint of 1 s and a restart of 60 s.

    The best interval is sqrt(2 * 1 s * 3600 s / 2) = 60 s. Of every interval 1 s is the checkpoint; every
    loss costs half an interval and the restart. With two machines there are 4 losses an hour.
    """
    jobs = [job()]
    columns = columns_in(BOTH, *jobs)
    share = share_of(columns, jobs)
    assert at(columns, share, firm=1) == 1.0
    assert at(columns, share, firm=4) == 1.0
    one = (1 - 1 / 60) / (1 + 2 / 3600 * (30 + 60))
    assert at(columns, share, spot=1) == pytest.approx(one)
    assert at(columns, share, spot=2) == pytest.approx(one), "two slots of one machine are lost together"
    interval_s = (2 * 3600 / 4) ** 0.5
    two = (1 - 1 / interval_s) / (1 + 4 / 3600 * (interval_s / 2 + 60))
    assert at(columns, share, spot=3) == pytest.approx(two)
    assert at(columns, share, spot=4) == pytest.approx(two)
    assert at(columns, share, firm=1, spot=3) == pytest.approx(two), "an anchor helps only in place"


def test_a_fixed_checkpoint_interval_counts_as_it_is() -> None:
    jobs = [job(spec={"checkpoint": {"every": 600.0}})]
    columns = columns_in(BOTH, *jobs)
    expected = (1 - 1 / 600) / (1 + 2 / 3600 * (300 + 60))
    assert at(columns, share_of(columns, jobs), spot=1) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("fields", "in_place"),
    [
        ({"spec": {"elastic": {"min": 1, "max": 4, "resize": "live"}}}, True),
        ({"live": True}, True),
        ({"live": True, "spec": {"elastic": {"min": 1, "max": 4, "resize": "restart"}}}, True),
        ({"live": True, "sharded": True}, False),
        (
            {
                "live": True,
                "sharded": True,
                "spec": {"elastic": {"min": 1, "max": 4, "redundancy": "neighbour"}},
            },
            True,
        ),
        ({"spec": {"elastic": {"min": 1, "max": 4, "resize": "restart"}}}, False),
        ({"spec": {"elastic": {"min": 1, "max": 4, "resize": "never"}}}, False),
    ],
)
def test_a_job_with_an_anchor_that_changes_in_place_only_pauses(
    fields: dict[str, Any], in_place: bool
) -> None:
    jobs = [job(**fields)]
    columns = columns_in(BOTH, *jobs)
    share = share_of(columns, jobs)
    pause = 1 / (1 + 2 / 3600 * 6.0)
    assert (at(columns, share, firm=1, spot=2) == pytest.approx(pause)) is in_place
    assert at(columns, share, spot=2) == at(columns, share_of(columns, [job()]), spot=2)


def test_a_job_with_replicas_only_pauses_at_the_sizes_that_have_them() -> None:
    progress = JobProgress(replicates=True)
    spec = {"elastic": {"min": 2, "max": 4}, "parallel": {"fsdp": 2}}
    jobs = [job(live=True, sharded=True, progress=progress, spec=spec)]
    columns = columns_in(BOTH, *jobs)
    share = share_of(columns, jobs)
    pause = 1 / (1 + 4 / 3600 * 6.0)  # three slots are on two machines
    assert at(columns, share, firm=1, spot=3) == pytest.approx(pause)
    assert at(columns, share, firm=1, spot=1) == at(columns, share, spot=2), (
        "each rank has the only copy of its part"
    )


def test_every_job_has_its_own_share() -> None:
    live = {"elastic": {"min": 1, "max": 4, "resize": "live"}}
    jobs = [
        job("a"),
        job("b", spec={"checkpoint": {"every": 60.0}}),
        job("c", spec={"checkpoint": {"every": 3600.0}}),
        job("d", spec=live),
        job("e", spec=live),
    ]
    columns = columns_in(BOTH, *jobs)
    pauses = {"d": 6.0, "e": 60.0}
    share = kept_share(jobs, columns, TWO_PER_H, restart_s=60.0, pause_s=lambda one: pauses.get(one.id, 0.0))
    assert share is not None
    alone = [at(columns, share, row, spot=1) for row in range(5)]
    assert alone[0] == pytest.approx(alone[1]), "60 s is the best interval"
    assert alone[2] < alone[0]
    assert alone[3] == alone[4] == alone[0]
    anchors = [at(columns, share, row, firm=1, spot=1) for row in range(5)]
    assert anchors[3] == pytest.approx(1 / (1 + 2 / 3600 * 6.0))
    assert anchors[4] == pytest.approx(1 / (1 + 2 / 3600 * 60.0))


@given(
    st.floats(0.0, 50.0), st.floats(0.0, 50.0), st.floats(0.0, 600.0), st.sampled_from(["auto", 10.0, 600.0])
)
@settings(max_examples=30)
def test_more_hazard_and_more_machines_never_keep_more_speed(
    hazard: float, more: float, restart_s: float, every: str | float
) -> None:
    jobs = [job(spec={"checkpoint": {"every": every}})]
    columns = columns_in(BOTH, *jobs)
    shares = [
        kept_share(jobs, columns, {"a100 (spot)": rate}, restart_s=restart_s, pause_s=lambda _: 1.0)
        for rate in (hazard, hazard + more)
    ]
    fewer, worse = (np.ones((1, len(columns.parts))) if one is None else one for one in shares)
    assert ((worse > 0.0) & (worse <= fewer + 1e-12) & (fewer <= 1.0)).all()
    assert at(columns, worse, spot=4) <= at(columns, worse, spot=2) + 1e-12


def discounts(objective: str = "cost", market: str = "mixed", rooms: dict[str, PoolCapacity] = BOTH) -> Any:
    jobs = [job(spec={"market": market, "goal": {"objective": objective}}), job("other")]
    columns = columns_in(rooms, *jobs)
    return columns, thrift(jobs, columns, rooms)


@pytest.mark.parametrize(("objective", "power"), [("cost", 1.0), ("balanced", 0.25), ("time", 0.0)])
def test_the_price_of_a_market_counts_by_the_objective(objective: str, power: float) -> None:
    columns, factors = discounts(objective)
    assert at(columns, factors, spot=3) == 1.0
    assert at(columns, factors, firm=2) == pytest.approx(0.25**power)
    assert at(columns, factors, firm=1, spot=3) == pytest.approx((4 / 7) ** power), "$7 for four slots"


@pytest.mark.parametrize("market", ["spot", "on-demand"])
def test_the_price_does_not_count_for_a_job_of_one_market(market: str) -> None:
    _, factors = discounts(market=market)
    assert (factors[0] == 1.0).all()
    assert (factors[1] < 1.0).any(), "the other job accepts both"


@pytest.mark.parametrize(
    "rooms",
    [
        rooms_of(pool_of(FIRM, 4, usd=4.0)),
        rooms_of(pool_of(FIRM, 4, usd=0.0), pool_of(SPOT, 4, usd=1.0)),
        rooms_of(pool_of(FIRM, 4, usd=4.0), pool_of(SPOT, 4, usd=0.0)),
        rooms_of(pool_of(FIRM, 4, usd=2.0), pool_of(SPOT, 4, usd=2.0)),
        rooms_of(pool_of(OTHER, 4, usd=4.0), pool_of(SPOT, 4, usd=1.0)),
    ],
    ids=["one market", "free on-demand", "free spot", "equal prices", "different kinds"],
)
def test_no_price_counts_without_a_choice_of_prices(rooms: dict[str, PoolCapacity]) -> None:
    assert discounts(rooms=rooms)[1] is None


def test_no_price_counts_if_every_job_wants_speed_or_one_market() -> None:
    jobs = [job(spec={"goal": {"objective": "time"}}), job("b", spec={"market": "spot"})]
    assert thrift(jobs, columns_in(BOTH, *jobs), BOTH) is None
    assert thrift([], columns_in(BOTH, *jobs), BOTH) is None


def test_prices_are_compared_within_a_kind_only() -> None:
    rooms = rooms_of(pool_of(FIRM, 4, usd=4.0), pool_of(SPOT, 4, usd=1.0), pool_of(OTHER, 4, usd=100.0))
    columns, factors = discounts(rooms=rooms)
    assert at(columns, factors, other=2) == 1.0
    assert at(columns, factors, firm=2) == pytest.approx(0.25)


def test_spot_that_is_dearer_counts_for_less() -> None:
    columns, factors = discounts(rooms=rooms_of(pool_of(FIRM, 4, usd=1.0), pool_of(SPOT, 4, usd=2.0)))
    assert at(columns, factors, firm=2) == 1.0
    assert at(columns, factors, spot=2) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("current", "factor", "cheaper"),
    [
        ({"firm": 2}, 1.0, {(0, 2), (1, 1)}),
        ({"firm": 2}, 1.6, {(0, 2), (1, 1)}),  # exactly $8 against $5
        ({"firm": 2}, 1.7, {(0, 2)}),
        ({"firm": 2}, 4.0, {(0, 2)}),
        ({"firm": 2}, 4.1, set()),
        ({"spot": 2}, 1.0, set()),
        ({"firm": 1, "spot": 1}, 2.0, {(0, 2)}),
    ],
)
def test_a_column_saves_if_the_same_size_is_cheaper_elsewhere(
    current: dict[str, int], factor: float, cheaper: set[tuple[int, int]]
) -> None:
    columns = columns_in(BOTH, job())
    assert marked(columns, saves(columns, column_of(columns, **current), factor)) == cheaper


def test_another_kind_is_no_saving() -> None:
    rooms = rooms_of(pool_of(FIRM, 4, usd=4.0), pool_of(OTHER, 4, usd=0.5))
    columns = columns_in(rooms, job())
    assert not saves(columns, column_of(columns, firm=2), 1.0).any()


def test_columns_of_private_slots_are_no_saving() -> None:
    """Equal slots in the same pools are the same place, even if they cost the same."""
    columns = columns_in(rooms_of(pool_of(FIRM, 4, usd=0.0)), job())
    assert not saves(columns, column_of(columns, firm=2), 1.0).any()
