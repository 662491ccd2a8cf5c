"""One job on slots of two device kinds, over the real API, Postgres and Redis, with scripted agents."""

from __future__ import annotations

from datetime import timedelta

import pytest
import pytest_asyncio
from sqlalchemy import text

from headway.contract.agents import RunCommand
from headway.contract.views.decisions import ExplanationView
from headway.contract.views.jobs import JobState
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness

MIX = {"mix": ["a100", "t4"]}
BATCH = {"global": 320}
STEPS = {"local_batch": 320, "accumulation": 1, "max_global_batch": None}


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    made = Cast(harness)
    await made.join(kind="a100", fast=2)
    await made.join(kind="t4", slow=2)
    return made


async def ran_alone(cast: Cast, name: str, kind: str, speed: float) -> None:
    """A job of the class that was measured on one slot of a kind, and has ended."""
    run = await cast.begin(1, name, resources={"devices": [kind]}, batch=BATCH, elastic={"max": 2})
    (node,) = {home[0] for who, home in cast.homes.items() if who == (run.generation, 0)}
    await cast.trained((1, 0), 1, 320, speed, **STEPS)
    done = cast.message((1, 0), "completed", 1, samples=10**6)
    await cast.news(node, done, cast.exit((1, 0), exit_code=0), cast.entry(1, "released"))
    assert (await cast.job(name)).state is JobState.SUCCEEDED


async def started_on_both(cast: Cast) -> dict[str, RunCommand]:
    await ran_alone(cast, "job-8", "a100", 400.0)
    await ran_alone(cast, "job-9", "t4", 100.0)
    await cast.harness.submit("job", elastic={"min": 1, "max": 4, **MIX}, batch=BATCH)
    await cast.harness.post("jobs/job/resize", {"slots": 4})
    await cast.turn()
    runs = cast.started(1)
    for node, run in runs.items():
        await cast.news(node, cast.entry(run.generation, "ranks_started", how="zygote"))
    await cast.say((1, 0), "first_step", 1, samples=320, live=True)
    return runs


async def test_a_job_starts_on_two_kinds_with_the_speeds_of_both(cast: Cast) -> None:
    runs = await started_on_both(cast)
    assert {node: len(run.ranks) for node, run in runs.items()} == {"fast": 2, "slow": 2}
    by_rank = {one.rank: node for node, run in runs.items() for one in run.ranks}
    for run in runs.values():
        assert run.balance is None
        quick = [speed for rank, speed in enumerate(run.speeds) if by_rank[rank] == "fast"]
        slow = [speed for rank, speed in enumerate(run.speeds) if by_rank[rank] == "slow"]
        assert sum(quick) + sum(slow) == pytest.approx(320)
        assert quick[0] / slow[0] == pytest.approx(4.0, rel=0.02)
    assert set((await cast.job()).progress.kind_speeds) == {"a100", "t4"}
    (start,) = await cast.events("allocate")
    assert start["message"].startswith("4 slots (2 a100 + 2 t4) on ")
    found = ExplanationView.model_validate_json(
        (await cast.harness.client.get("/api/v1/jobs/job/explain")).content
    )
    options = {(one.device_kind, one.slots): one for one in found.options}
    assert options["a100:2+t4:2", 4].nodes == 2


async def test_its_measurements_are_of_the_mix_and_a_slow_kind_is_no_fault(cast: Cast) -> None:
    await started_on_both(cast)
    sample_s = [0.0025, 0.0025, 0.01, 0.01]
    for _ in range(12):
        cast.harness.clock.skipped += timedelta(seconds=30)
        await cast.trained((1, 0), 1, 320, 990.0, **STEPS, rank_sample_s=sample_s)
    async with cast.harness.service.database.engine.connect() as connection:
        rows = (await connection.execute(text("SELECT device_kind, slots, nodes FROM measurements"))).all()
    assert sorted(tuple(row) for row in rows) == [("a100", 1, 1), ("a100:2+t4:2", 4, 2), ("t4", 1, 1)]
    assert (await cast.job()).progress.slow_ranks == []
    nodes = (await cast.harness.client.get("/api/v1/nodes")).json()["items"]
    assert all(one["state"] == "READY" for one in nodes)
    await cast.harness.post("jobs/job/resize", {"slots": None})
    await cast.turn()
    found = ExplanationView.model_validate_json(
        (await cast.harness.client.get("/api/v1/jobs/job/explain")).content
    )
    measured = {one.device_kind: one.goodput_samples_per_s for one in found.options if one.measured}
    assert measured["a100:2+t4:2"] == pytest.approx(990.0, rel=0.1)
    assert (await cast.job()).size == 4, "the measured mix is the fastest"


async def test_survivors_and_a_newcomer_of_a_mix_keep_their_speeds(cast: Cast) -> None:
    runs = await started_on_both(cast)
    slow = [(1, one.rank) for one in runs["slow"].ranks]
    await cast.die(slow[0])
    order = next(iter(cast.orders(2).values()))
    assert sorted(one.device_kind for one in order.members) == ["a100", "a100", "t4"]
    assert len({one.speed for one in order.members}) == 2
    await cast.switch(2)
    async with cast.harness.service.database.engine.connect() as connection:
        query = "SELECT device_kind FROM allocations WHERE job_id = :job AND generation = 2"
        kind = (await connection.execute(text(query), {"job": cast.job_id})).scalar_one()
    assert kind == "a100:2+t4:1"
    await cast.turn()
    (again,) = cast.started(3).values()
    assert len(again.speeds) == 4
    assert max(again.speeds) / min(again.speeds) == pytest.approx(4.0, rel=0.02)
    await cast.ready((3, 3))
    assert {one.rank: one.device_kind for one in cast.orders(3)["slow"].members}[3] == "t4"
    await cast.switch(3)
    assert (await cast.job()).size == 4


async def test_even_batches_are_ordered_from_the_ranks(cast: Cast) -> None:
    await cast.harness.submit("job", elastic={"min": 4, "max": 4, **MIX}, batch={**BATCH, "balance": "off"})
    await cast.turn()
    runs = cast.started(1)
    assert {node: (run.balance, run.speeds) for node, run in runs.items()} == {
        "fast": ("off", []),
        "slow": ("off", []),
    }
