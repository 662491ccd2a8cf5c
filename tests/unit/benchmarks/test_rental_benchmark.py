"""One job on a market that is known step by step: who is paid for what, and what a loss costs each rule."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rental import (
    AllSpot,
    CheapestFirst,
    Mixed,
    OnDemand,
    Row,
    beaten_by,
    markets_of,
    result_of,
    row_of,
)
from benchmarks.rental_market import (
    LAUNCH_S,
    STEP_S,
    OptionalChange,
    Outcome,
    Prices,
    Rule,
    Scene,
    Work,
    Zones,
    play,
)
from service.simulation.model.profiles import data_folder
from service.simulation.model.world import BadInput

PRICES = Prices(on_demand=36.0, spot=3.6)
"""A cent a second, and a tenth of it."""
WORK = Work(
    name="job",
    speed=[1 / 14_400, 1 / 7_200, 1 / 4_800, 1 / 3_600],
    full=4,
    restart_s=60.0,
    submit_s=0.0,
    deadline_s=6_000.0,
)


def market(*counts: int, gap_s: float = 600.0) -> Zones:
    return Zones("market", gap_s, np.array([counts], dtype=np.int64))


def played(rule: Rule, zones: Zones) -> Outcome:
    return play(WORK, rule, zones, PRICES, 0.0)


def test_on_demand_takes_its_time_and_is_paid_for_from_the_launch() -> None:
    found = played(OnDemand(), market(0))
    assert found.time_s == pytest.approx(LAUNCH_S + 60 + 3600)
    assert found.usd == pytest.approx(4 * 0.01 * found.time_s)
    assert found.time_s == pytest.approx(WORK.on_demand_s)
    assert not found.missed


def test_on_spot_it_waits_while_there_is_none() -> None:
    found = played(AllSpot(), market(0, 4, 4, 4, 4, 4, 4, 4, 4, 4))
    assert found.time_s == pytest.approx(600 + LAUNCH_S + 60 + 3600)
    assert found.usd == pytest.approx(4 * 0.001 * (found.time_s - 600))
    assert played(AllSpot(), market(0)).missed


def test_a_loss_is_a_restart_for_a_gang_and_a_pause_for_the_mixed_rule() -> None:
    there = market(*[4] * 3, 3, *[4] * 20)
    gang = played(CheapestFirst(), there)
    assert gang.time_s > WORK.on_demand_s + 60
    mixed = played(Mixed(), there)
    assert mixed.time_s < gang.time_s
    assert mixed.usd < gang.usd


def test_without_spot_the_mixed_rule_ends_in_time() -> None:
    found = played(Mixed(), market(0))
    assert not found.missed
    assert found.usd <= 4 * 0.01 * found.time_s


def test_with_spot_all_the_time_the_mixed_rule_pays_spot() -> None:
    found = played(Mixed(), market(4))
    assert found.time_s == pytest.approx(WORK.on_demand_s, rel=0.01)
    assert found.usd < 0.15 * played(OnDemand(), market(4)).usd


class Asks(OnDemand):
    """Four spot machines all the time. It notes how many it could request."""

    def __init__(self, *, knows_market: bool) -> None:
        self.knows_market = knows_market
        self.requestable: list[int] = []

    def wish(self, scene: Scene) -> OptionalChange:
        self.requestable.append(scene.spot_requestable)
        return OptionalChange(on_demand=0, spot=4)


def test_a_service_does_not_ask_again_before_the_backoff_of_its_launches_is_over() -> None:
    """It asks at 0, 30, 90 and 210 s: the backoff is 30 s, then 60, then 120."""
    rule = Asks(knows_market=False)
    played(rule, market(0))
    assert STEP_S == 30
    assert rule.requestable[:8] == [4, 4, 0, 4, 0, 0, 0, 4]
    rival = Asks(knows_market=True)
    played(rival, market(0))
    assert set(rival.requestable) == {4}


def test_a_success_ends_the_backoff_and_a_part_of_the_machines_is_taken() -> None:
    rule = Asks(knows_market=False)
    played(rule, market(0, 2, 4, gap_s=30.0))
    assert rule.requestable[:4] == [4, 4, 2, 4], "two machines at 30 s, and 60 s until the next attempt"


def test_a_trace_of_one_instance_is_one_of_a_smaller_request() -> None:
    zones = Zones("two", 10.0, np.array([[1, 0], [0, 0]], dtype=np.int64))
    assert zones.available(0.0, 8) == [8, 0]
    assert zones.available(10.0, 8) == [0, 0]
    assert zones.available(20.0, 8) == [8, 0]


def test_on_a_recorded_market_the_goals_are_met() -> None:
    """Spot was there for four fifths of the time."""
    try:
        folder = data_folder() / "spot"
    except BadInput as error:
        pytest.skip(f"no recorded markets here: {error}")
    name = "preemption/4-node/aws-08-03-2023/us-west-2/v100_1"
    (zones,) = [one for one in markets_of(folder) if one.name == name]
    result = result_of([row_of(zones, entries=1)])
    assert result["saving"] >= 0.4
    assert result["longer"] <= 0.1
    assert result["missed_deadlines"] == 0
    assert result["front"]


def row(**others: tuple[float, float]) -> Row:
    found = {"mixed": (50.0, 1.0), "on_demand": (100.0, 1.0), **others}
    for name in ("all_spot", "cheapest_first", "deepvm"):
        found.setdefault(name, (30.0, 9.0))
    return Row(
        market="m",
        usd={name: usd for name, (usd, _) in found.items()},
        time_s={name: 100 * time for name, (_, time) in found.items()},
        longer={name: time for name, (_, time) in found.items()},
        missed=dict.fromkeys(found, 0),
    )


@pytest.mark.parametrize(
    ("deepvm", "beaten"),
    [
        ((40.0, 0.9), ["deepvm"]),
        ((50.0, 0.9), ["deepvm"]),
        ((40.0, 1.0), ["deepvm"]),
        ((50.0, 1.0), []),
        ((40.0, 1.1), []),
        ((60.0, 0.9), []),
    ],
)
def test_the_front_is_lost_to_a_rule_that_is_nowhere_worse(
    deepvm: tuple[float, float], beaten: list[str]
) -> None:
    found = row(deepvm=deepvm)
    assert beaten_by(found) == beaten
    result = result_of([found, row()])
    assert result["front"] == (not beaten)
    assert result["saving"] == pytest.approx(0.5)
