"""Tests of the limits on markets in a round: which configurations they leave, and that prices count no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobState, Reason
from service.domain.allocation.decision.plan import Action, decide
from service.domain.allocation.inputs.notes import Note
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.market_limits import MarketLimit
from service.domain.cluster.snapshot import Node, Snapshot
from service.domain.policies.registry import policy
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of
from tests.unit.service.domain.rental.decisions.test_autoscale import measured

SPEED = measured({1: 100.0, 2: 195.0, 3: 285.0, 4: 370.0, 5: 450.0, 6: 530.0, 8: 680.0})


def limit(on_demand: int, spot: int, **fields: object) -> MarketLimit:
    return MarketLimit(
        **{
            "slots": {"cpu": on_demand, "cpu (spot)": spot},
            "on_demand": on_demand,
            "spot": spot,
            "phase": "behind",
            "reason": "behind uniform progress",
            **fields,
        }  # type: ignore[arg-type]
    )


def nodes(on_demand: int, spot: int) -> list[Node]:
    firm = [node_of(f"f{number}", 1, usd_per_slot_h=1.0) for number in range(on_demand)]
    return firm + [node_of(f"s{number}", 1, market=Market.SPOT, usd_per_slot_h=0.3) for number in range(spot)]


def cluster(
    on_demand: int, spot: int, held: list[tuple[str, int]] | None = None, *, objective: str = "cost"
) -> Snapshot:
    spec = spec_of("gpt", market="mixed", goal={"objective": objective}, elastic={"min": 1, "max": 8})
    job = job_of("gpt", JobState.RUNNING if held else JobState.PENDING, spec=spec, age_s=900, live=bool(held))
    found = snapshot_of(
        nodes(on_demand, spot),
        [replace(job, generation=1, newest_generation=1) if held else job],
        {"gpt": held} if held else None,
        {"gpt": SPEED},
    )
    return replace(found, class_measurements={"default/gpt": SPEED})


def sizes(snapshot: Snapshot) -> dict[tuple[int, int], Note]:
    """The notes by the slots on demand and on spot."""
    round_ = build_round(snapshot)
    markets = [pool.market for pool in round_.columns.pools]
    at = [markets.index(market) if market in markets else None for market in Market]
    return {
        tuple(0 if one is None else int(parts[one]) for one in at): Note(int(code))  # type: ignore[misc]
        for parts, code in zip(round_.columns.parts, round_.notes.codes[0], strict=True)
    }


def chosen(snapshot: Snapshot) -> tuple[int, int]:
    """The slots on demand and on spot that a round gives the job."""
    plan = decide(build_round(snapshot), policy("goodput"), solve)
    (one,) = plan.decisions
    keys = one.allocation if one.action in {Action.START, Action.CHANGE} else snapshot.jobs["gpt"].allocation
    return (
        sum(len(slots) for node, slots in keys.items() if node.startswith("f")),
        sum(len(slots) for node, slots in keys.items() if node.startswith("s")),
    )


def test_without_a_limit_no_configuration_is_of_another_market() -> None:
    assert Note.OTHER_MARKET not in sizes(cluster(4, 4)).values()


@pytest.mark.parametrize(("on_demand", "spot"), [(0, 4), (1, 2), (4, 0), (0, 0), (3, 3)])
def test_a_limit_leaves_the_configurations_within_it(on_demand: int, spot: int) -> None:
    limited = replace(cluster(4, 4), market_limits={"gpt": limit(on_demand, spot)})
    found = sizes(limited)
    beyond = {at for at in found if at[0] > on_demand or at[1] > spot}
    assert {at for at, note in found.items() if note is Note.OTHER_MARKET} <= beyond
    assert not {at for at in beyond if found[at] in {Note.OFFERED, Note.CURRENT}}


def test_a_pool_that_the_limit_does_not_name_is_free() -> None:
    limited = replace(cluster(2, 2), market_limits={"gpt": limit(0, 0, slots={"cpu (spot)": 0})})
    assert sizes(limited)[1, 0] is not Note.OTHER_MARKET
    assert sizes(limited)[0, 1] is Note.OTHER_MARKET


def test_machines_on_demand_stand_in_for_missing_spot_machines() -> None:
    """By its price weight alone, a job with the objective `cost` would leave them idle."""
    held = [("s0", 0), ("s1", 0)]
    alone = cluster(4, 2, held)
    assert chosen(alone)[0] <= 1
    limited = replace(alone, market_limits={"gpt": limit(4, 2)})
    assert (4, 2) in sizes(limited), "four on-demand nodes are mixed with spot"
    assert chosen(limited) == (4, 2)


def test_a_job_leaves_the_on_demand_machines_that_its_limit_no_longer_has() -> None:
    held = [(f"f{number}", 0) for number in range(4)]
    limited = replace(cluster(4, 4, held), market_limits={"gpt": limit(0, 4, phase="present")})
    assert chosen(limited) == (0, 4)
    (one,) = decide(build_round(limited), policy("goodput"), solve).decisions
    assert one.reason is Reason.BETTER_ALLOCATION
    assert one.message


def test_a_job_that_waits_for_spot_machines_is_told_so() -> None:
    limited = replace(
        cluster(4, 0), market_limits={"gpt": limit(0, 4, phase="ahead", reason="waits for spot machines")}
    )
    (one,) = decide(build_round(limited), policy("goodput"), solve).decisions
    assert not one.allocation
    notes = {option.note for option in one.options if option.note}
    assert any("waits for spot machines" in note for note in notes)


def test_a_running_job_stays_where_it_is_until_it_has_somewhere_to_go() -> None:
    held = [("f0", 0), ("f1", 0)]
    limited = replace(cluster(2, 0, held), market_limits={"gpt": limit(0, 4, phase="ahead")})
    assert chosen(limited) == (2, 0)
