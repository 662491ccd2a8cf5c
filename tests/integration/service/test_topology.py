"""Jobs on nodes with topology labels, over the real API, Postgres and Redis, with scripted agents."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import pytest_asyncio
from sqlalchemy import text

from headway.contract.views.decisions import ExplanationView
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import JOIN_TOKEN, Harness, join_body

STEPS = {"local_batch": 80, "accumulation": 1, "max_global_batch": None}


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    """Two racks of two nodes with two slots each. By name and by number, nodes of both racks alternate."""
    made = Cast(harness)
    for number in (1, 2):
        for rack in ("east", "west"):
            await made.join(labels={"rack": rack}, **{f"n{number}-{rack}": 2})
    return made


async def explained(cast: Cast, name: str) -> ExplanationView:
    response = await cast.harness.client.get(f"/api/v1/jobs/{name}/explain")
    return ExplanationView.model_validate_json(response.content)


async def started(cast: Cast, name: str, slots: int) -> set[str]:
    """Let a job of this size start, and return its nodes."""
    await cast.harness.submit(name, elastic={"min": slots, "max": slots})
    await cast.turn()
    runs = cast.started(1, name)
    for node, run in runs.items():
        await cast.news(node, cast.entry(run.generation, "ranks_started", how="zygote"))
    return set(runs)


async def test_a_job_of_two_nodes_lies_within_one_rack(cast: Cast) -> None:
    assert len(await started(cast, "small", 1)) == 1
    nodes = await started(cast, "large", 4)
    assert len({name.partition("-")[2] for name in nodes}) == 1
    assert len(nodes) == 2
    message = (await explained(cast, "large")).message
    assert "within rack " in message


async def test_what_crossing_costs_is_measured_told_and_predicted(harness: Harness) -> None:
    """Racks of one node with two slots each: a job of four slots has to cross them."""
    cast = Cast(harness)
    for rack in ("east", "west"):
        await cast.join(labels={"rack": rack}, **{f"n-{rack}": 2})
    await harness.submit("job", elastic={"min": 4, "max": 4}, batch={"global": 320})
    await cast.turn()
    runs = cast.started(1)
    for node, run in runs.items():
        await cast.news(node, cast.entry(run.generation, "ranks_started", how="zygote"))
    await cast.say((1, 0), "first_step", 1, samples=320, live=True)
    assert "across racks east and west" in (await explained(cast, "job")).message
    for _ in range(3):
        harness.clock.skipped += timedelta(seconds=30)
        await cast.trained((1, 0), 1, 320, 800.0, **STEPS, sync_s_sum=20.0)
    async with harness.service.database.engine.connect() as connection:
        measured = (await connection.execute(text("SELECT slots, crossed FROM measurements"))).all()
    assert {tuple(row) for row in measured} == {(4, "rack")}
    await cast.turn()
    found = await explained(cast, "job")
    assert [(one.slots, one.crosses) for one in found.options] == [(4, "rack")]
    (share,) = re.findall(
        r"across racks east and west: (\d\.\d\d) times as fast as within one", found.message
    )
    assert 0.0 < float(share) <= 1.0


async def test_labels_follow_the_agent_and_a_wrong_level_is_refused(harness: Harness) -> None:
    await harness.join("alpha", labels={"rack": "r1", "zone": "a"})
    nodes = (await harness.client.get("/api/v1/nodes")).json()["items"]
    assert nodes[0]["labels"] == {"rack": "r1", "zone": "a"}
    await harness.join("alpha", labels={"rack": "r2"})
    nodes = (await harness.client.get("/api/v1/nodes")).json()["items"]
    assert nodes[0]["labels"] == {"rack": "r2"}
    wrong = await harness.client.post(
        "/api/v1/agents",
        json={**join_body("beta"), "labels": {"row": "r1"}},
        headers={"Authorization": f"Bearer {JOIN_TOKEN}"},
    )
    assert wrong.status_code == 422


@pytest.mark.parametrize("labels", [{}, {"rack": "r1"}], ids=["no labels", "one rack for all"])
async def test_without_another_rack_nothing_is_said_of_crossing(
    harness: Harness, labels: dict[str, str]
) -> None:
    made = Cast(harness)
    await made.join(labels=labels, one=2, two=2)
    await started(made, "job", 4)
    assert "across" not in (await explained(made, "job")).message
