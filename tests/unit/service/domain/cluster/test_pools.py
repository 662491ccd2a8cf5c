"""On-demand and spot: what may lie where, at which price and risk, and that what lies in both is placed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobState, Reason
from service.domain.allocation.decision.plan import Action, Decision, decide
from service.domain.allocation.inputs.notes import Note
from service.domain.allocation.inputs.round import Round, build_round
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.placement.cluster_layout import places_of
from service.domain.allocation.placement.placement import PlacementStep
from service.domain.cluster.pools import Pool, anchor_in, slots_in, slots_of
from service.domain.cluster.snapshot import Measurement, Node, SlotKey, Snapshot
from service.domain.jobs.job import Job
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import NOW, holding, job_of, node_of, snapshot_of, spec_of

FIRM, SPOT = Pool("a100"), Pool("a100", Market.SPOT)
SPEEDS = tuple(Measurement("a100", size, 100.0 * size**0.9, 500, global_batch=64) for size in range(1, 17))


def firm(name: str, slots: int = 4, usd: float | None = 4.0, **fields: Any) -> Node:
    return node_of(name, slots, "a100", usd_per_slot_h=usd, **fields)


def spot(name: str, slots: int = 4, usd: float | None = 1.0, **fields: Any) -> Node:
    return node_of(name, slots, "a100", market=Market.SPOT, usd_per_slot_h=usd, **fields)


def mixed(job_id: str = "j", low: int = 1, high: int = 8, **fields: Any) -> Job:
    elastic = {"min": low, "max": high, **fields.pop("elastic", {})}
    spec = spec_of(job_id, elastic=elastic, **{"market": "mixed", **fields.pop("spec", {})})
    return job_of(job_id, fields.pop("state", JobState.PENDING), spec=spec, **fields)


def running(job_id: str = "j", low: int = 1, high: int = 8, **fields: Any) -> Job:
    return mixed(job_id, low, high, **{"state": JobState.RUNNING, "live": True, "age_s": 600.0, **fields})


def offered(round_: Round, row: int = 0) -> set[tuple[int, ...]]:
    """Return the configurations that a job may have now, as slots on-demand and on spot."""
    columns = np.flatnonzero(round_.given.allowed[row]).tolist()
    return {
        tuple(round_.columns.parts_of(column).get(pool, 0) for pool in (FIRM, SPOT)) for column in columns
    }


def decided(snapshot: Snapshot) -> dict[str, Decision]:
    return {one.job_id: one for one in decide(build_round(snapshot), Goodput(), solve).decisions}


def parts_in(snapshot: Snapshot, decision: Decision) -> Counter[Pool | None]:
    return Counter(
        snapshot.pool_of(SlotKey(node, slot)) for node, slots in decision.allocation.items() for slot in slots
    )


@pytest.mark.parametrize(
    ("pool", "name", "priced_as"),
    [
        (Pool("a100"), "a100", "a100"),
        (Pool("a100", Market.SPOT), "a100 (spot)", "a100 (spot)"),
        (Pool("a100", containers=False), "a100", "a100"),
        (Pool("a100", apart=True), "a100 (containers)", "a100"),
        (Pool("a100", Market.SPOT, apart=True), "a100 (spot) (containers)", "a100 (spot)"),
    ],
)
def test_prices_and_risks_belong_to_a_kind_on_a_market(pool: Pool, name: str, priced_as: str) -> None:
    assert (pool.name, pool.priced_as) == (name, priced_as)


@pytest.mark.parametrize(
    ("pool", "spec", "serves"),
    [
        (FIRM, {}, True),
        (FIRM, {"market": "spot"}, False),
        (FIRM, {"market": "mixed"}, True),
        (SPOT, {}, False),
        (SPOT, {"market": "spot"}, True),
        (SPOT, {"market": "mixed"}, True),
        (FIRM, {"resources": {"devices": ["a100", "h100"]}}, True),
        (FIRM, {"resources": {"devices": ["h100"]}}, False),
        (FIRM, {"image": "torch:2"}, True),
        (Pool("a100", containers=False), {"image": "torch:2"}, False),
        (Pool("a100", containers=False), {}, True),
    ],
)
def test_a_pool_serves_jobs_of_its_kind_and_market_that_it_can_start(
    pool: Pool, spec: dict[str, Any], serves: bool
) -> None:
    assert pool.serves(spec_of(**spec)) is serves


@pytest.mark.parametrize(
    ("parts", "anchor"),
    [
        ({}, 0),
        ({FIRM: 4}, 0),
        ({SPOT: 4}, 0),
        ({FIRM: 4, SPOT: 0}, 0),
        ({FIRM: 0, SPOT: 4}, 0),
        ({FIRM: 1, SPOT: 3}, 1),
        ({FIRM: 2, SPOT: 3}, 2),
    ],
)
def test_an_anchor_is_the_part_on_demand_of_slots_in_two_pools(parts: dict[Pool, int], anchor: int) -> None:
    assert anchor_in(parts) == anchor


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, "0 slots"),
        ({FIRM: 0}, "0 slots"),
        ({FIRM: 1}, "1 a100 slot"),
        ({SPOT: 2, FIRM: 0}, "2 a100 (spot) slots"),
        ({SPOT: 3, FIRM: 1}, "4 a100 slots (1 on-demand as anchor, 3 spot)"),
        ({FIRM: 1, Pool("h100", Market.SPOT): 1}, "2 slots (1 a100 + 1 h100 (spot))"),
    ],
)
def test_slots_in_pools_as_text(parts: dict[Pool, int], text: str) -> None:
    assert slots_in(parts) == text


@pytest.mark.parametrize(
    ("count", "kind", "text"),
    [
        (1, "a100", "1 a100 slot"),
        (4, "a100", "4 a100 slots"),
        (0, None, "0 slots"),
        (1, None, "1 slot"),
        (2, "", "2 slots"),
    ],
)
def test_a_number_of_slots_as_text(count: int, kind: str | None, text: str) -> None:
    assert slots_of(count, kind) == text


@pytest.mark.parametrize(
    ("market", "pools"),
    [
        ("on-demand", {(1, 0), (2, 0)}),
        ("spot", {(0, 1), (0, 2)}),
        ("mixed", {(1, 0), (2, 0), (0, 1), (0, 2), (1, 1)}),
    ],
)
def test_a_job_is_offered_the_markets_that_it_takes(market: str, pools: set[tuple[int, int]]) -> None:
    job = mixed(high=2, spec={"market": market}, elastic={"resize": "never"})
    assert offered(build_round(snapshot_of([firm("f"), spot("s")], [job]))) == pools


def test_without_spot_nodes_a_mixed_job_is_as_one_on_demand() -> None:
    jobs = [mixed(spec={"market": market}) for market in ("mixed", "on-demand")]
    rounds = [
        build_round(snapshot_of([firm("f"), firm("g")], [job], measurements={"j": SPEEDS})) for job in jobs
    ]
    assert rounds[0].digest == rounds[1].digest
    assert [row.name for row in rounds[0].given.rows] == ["slots/a100"]


def test_a_pool_costs_what_its_nodes_cost() -> None:
    nodes = [
        firm("f", usd=4.0),
        firm("g", usd=2.0),
        spot("s", usd=None),
        spot("old", usd=9.0, state=NodeState.LOST),
    ]
    snapshot = replace(snapshot_of(nodes, [mixed(high=2)]), usd_per_slot_h={"a100": 7.0})
    round_ = build_round(snapshot)
    assert {name: room.usd_per_slot_h for name, room in round_.scope.capacities.items()} == {
        "a100": 3.0,
        "a100 (spot)": 7.0,
    }
    both = next(column for column in range(99) if len(round_.columns.parts_of(column)) == 2)
    assert round_.given.configurations.usd_per_h[both] == 10.0


def test_what_is_learned_of_a_kind_holds_on_every_market() -> None:
    nodes = [firm("f"), spot("s"), spot("t")]
    round_ = build_round(snapshot_of(nodes, [mixed(high=4)], measurements={"j": SPEEDS[:2]}))
    goodput = {
        tuple(round_.columns.parts[column].tolist()): goodput
        for column, goodput in enumerate(round_.estimates.table.goodput[0].tolist())
    }
    assert goodput[(2, 0)] == goodput[(0, 2)]
    assert {(1, 0), (2, 0), (4, 0), (0, 4), (1, 1), (1, 2)} <= offered(round_)


def test_a_gang_on_spot_counts_for_what_is_left_of_its_speed() -> None:
    jobs = [mixed(high=4, live=True, elastic={"resize": "live"})]
    calm = snapshot_of([firm("f"), spot("s", 2), spot("t", 2)], jobs, measurements={"j": SPEEDS[:4]})
    round_ = build_round(replace(calm, hazard_per_h={"a100 (spot)": 2.0}))
    share = {
        tuple(round_.columns.parts[column].tolist()): share
        for column, share in enumerate((round_.given.goodput[0] / round_.estimates.table.goodput[0]).tolist())
    }
    assert share[(4, 0)] == 1.0
    assert share[(0, 4)] < share[(0, 2)] < 0.98, "two machines are lost twice as often as one"
    assert share[(1, 3)] > 0.999, "with an anchor a loss is a pause"
    assert (build_round(calm).given.goodput == build_round(calm).estimates.table.goodput).all()


@pytest.mark.parametrize(("objective", "anchored"), [("cost", True), ("time", False)])
def test_who_minds_money_goes_over_to_spot(objective: str, anchored: bool) -> None:
    job = running(low=4, high=4, spec={"goal": {"objective": objective}})
    held = {"j": [("f", slot) for slot in range(4)]}
    snapshot = snapshot_of([firm("f"), spot("s")], [job], held, {"j": SPEEDS[:4]})
    snapshot = replace(snapshot, hazard_per_h={"a100 (spot)": 1.0})
    one = decided(snapshot)["j"]
    if not anchored:
        assert one.action is Action.KEEP
        return
    assert one.action is Action.CHANGE
    assert parts_in(snapshot, one)[SPOT] >= 3
    assert "the same number of slots for $" in one.message


def test_a_start_names_its_anchor() -> None:
    job = mixed(low=6, high=6, elastic={"resize": "never"})
    snapshot = snapshot_of([firm("f", 2), spot("s", 4)], [job])
    one = decided(snapshot)["j"]
    assert parts_in(snapshot, one) == {FIRM: 2, SPOT: 4}
    assert "6 a100 slots (2 on-demand as anchor, 4 spot)" in one.message
    (option,) = one.options
    assert (option.device_kind, option.pool, option.anchor, option.usd_per_h) == (
        "a100",
        "a100 (spot)",
        2,
        12.0,
    )


@pytest.mark.parametrize(
    ("market", "says"),
    [
        ("on-demand", "4 spot slots exist, but the job accepts on-demand only (market)"),
        ("spot", "2 on-demand slots exist, but the job accepts spot only (market)"),
    ],
)
def test_who_waits_for_a_market_is_told_so(market: str, says: str) -> None:
    job = mixed(low=5, high=5, spec={"market": market})
    one = decided(snapshot_of([firm("f", 2), spot("s", 4)], [job]))["j"]
    assert (one.action, one.reason) == (Action.WAIT, Reason.WAITING_FOR_CAPACITY)
    assert says in one.message


def test_an_anchored_job_that_loses_its_spot_machine_goes_on_with_its_anchor() -> None:
    """Nothing else is free, it was only just started, and the other one would like to have more."""
    jobs = [running("j", high=4, age_s=2.0), running("other", high=8)]
    gone = replace(spot("s", 3), reclaim_at=NOW + timedelta(seconds=120))
    held = {"j": [("f", 0), *(("s", slot) for slot in range(3))], "other": [("f", 1), ("f", 2), ("f", 3)]}
    snapshot = snapshot_of([firm("f"), gone], jobs, held, {"j": SPEEDS[:4], "other": SPEEDS[:8]})
    one = decided(snapshot)["j"]
    assert one.action is Action.CHANGE
    assert one.allocation == {"f": (0,)}
    assert one.reason is Reason.SPOT_RECLAIMED
    assert "is reclaimed by its provider at 12:02:00 UTC" in one.message


def test_survivors_do_not_wait_for_others_to_leave() -> None:
    """Another job still holds its next slots. It leaves the machine that is reclaimed all the same."""
    wide = running("wide", high=6)
    wide = replace(wide, spec=wide.spec.model_copy(update={"priority": 0}))
    job = running("j", low=1, high=4, spec={"priority": 100})
    gone = replace(spot("s", 2), reclaim_at=NOW + timedelta(seconds=120))
    held = {"j": [("f", 0), ("f", 1), ("s", 0), ("s", 1)], "wide": [("g", slot) for slot in range(4)]}
    snapshot = snapshot_of(
        [firm("f", 2), firm("g", 4), gone], [job, wide], held, {"j": SPEEDS[:4], "wide": SPEEDS}
    )
    plan = decided(snapshot)
    assert plan["wide"].action is Action.CHANGE, "it makes room"
    assert (plan["j"].action, plan["j"].allocation) == (Action.CHANGE, {"f": (0, 1)})
    assert "continues on 2 a100 slots, and on 4 a100 slots as soon as they are free" in plan["j"].message


@st.composite
def both_markets(draw: st.DrawFn) -> Snapshot:
    """Nodes of one kind on both markets, cordoned ones among them, and jobs that take both and lie anywhere."""
    rng = draw(st.randoms(use_true_random=False))
    largest = rng.choice([1, 2, 3, 4, 6, 8])
    nodes = []
    for index in range(rng.randint(2, 6)):
        state = NodeState.CORDONED if rng.random() < 0.15 else NodeState.READY
        make = spot if index % 2 else firm
        nodes.append(make(f"n{index}", rng.randint(1, largest), state=state))
    free = [(node.id, slot) for node in nodes for slot in node.slots]
    rng.shuffle(free)
    jobs, held = [], {}
    for index in range(rng.randint(1, 6)):
        sizes = rng.choice(["any", "pow2"])
        job_id = f"j{index}"
        taken = [free.pop() for _ in range(min(len(free), rng.choice([0, 1, 2, 3, 5, 8])))]
        job_state = JobState.RUNNING if taken else JobState.PENDING
        job = mixed(job_id, 1, 12, elastic={"sizes": sizes}, state=job_state, live=bool(taken), age_s=600.0)
        jobs.append(holding(job, taken))
        if taken:
            held[job_id] = taken
    return snapshot_of(nodes, jobs, held, {job.id: SPEEDS for job in jobs})


def feasible(rng: random.Random, round_: Round) -> list[int]:
    """A choice that keeps to the rows, from the present one on: some jobs get something else that they may have."""
    rows = round_.given.rows
    chosen: list[int] = round_.given.current.tolist()
    order = list(range(len(chosen)))
    rng.shuffle(order)
    for row in order:
        before = chosen[row]
        options = np.flatnonzero(
            round_.given.allowed[row] | (round_.notes.codes[row] == Note.NO_GAIN)
        ).tolist()
        chosen[row] = rng.choice([NOTHING, *options]) if rng.random() < 0.7 else before
        for limit in rows:
            counts = [
                one for at, one in enumerate(chosen) if one >= 0 and (limit.jobs is None or limit.jobs[at])
            ]
            if limit.demand[counts].sum() > limit.capacity + 1e-9:
                chosen[row] = before
    return chosen


@given(both_markets(), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_whatever_lies_in_both_pools_is_placed_in_both(snapshot: Snapshot, rng: random.Random) -> None:
    round_ = build_round(snapshot)
    assert [column >= 0 for column in round_.given.current] == [
        job.state is JobState.RUNNING for job in round_.jobs
    ]
    chosen = feasible(rng, round_)
    placements = places_of(round_, chosen)
    given_out: Counter[SlotKey] = Counter()
    for row, column in enumerate(chosen):
        job, held = round_.jobs[row], set(snapshot.slots_held_by(round_.jobs[row].id))
        if column == NOTHING:
            assert job.id not in placements
            continue
        placement = placements[job.id]
        keys = [SlotKey(node, slot) for node, slots in placement.allocation.items() for slot in slots]
        given_out.update(keys)
        assert Counter(snapshot.pool_of(key) for key in keys) == round_.columns.parts_of(column)
        assert all(key in held or snapshot.nodes[key.node_id].takes_jobs for key in keys)
        holders = {snapshot.held.get(key, job.id) for key in keys} - {job.id}
        assert set(placement.waits_for) == holders
        assert (placement.step is PlacementStep.STAY) == (set(keys) == held)
        assert (placement.step in {PlacementStep.WAIT, PlacementStep.YIELD}) == bool(holders)
    assert all(count == 1 for count in given_out.values())
