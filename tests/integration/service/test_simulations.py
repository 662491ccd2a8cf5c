"""What-if questions: asked over HTTP, kept in Postgres, answered by a process of the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from headway.contract.views.jobs import Page
from headway.contract.views.simulations import (
    SimulationRequest,
    SimulationResult,
    SimulationStatus,
    SimulationView,
)
from service.adapters.simulator import ProcessSimulator
from service.domain.cluster.snapshot import Snapshot
from service.domain.shared.errors import SimulationEnded
from service.usecases.ports.simulations import OnProgress
from service.usecases.simulations.simulations import MOST_ATTEMPTS
from tests.integration.service.conftest import Harness
from tests.waiting import until

MORE_NODES = {"change": "add_nodes", "device_kind": "cpu", "nodes": 2}
KEY = {"Idempotency-Key": "k1"}


async def ask(
    harness: Harness, *changes: dict[str, Any], headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    body = {"changes": list(changes), **fields}
    return await harness.client.post("/api/v1/simulations", json=body, headers=headers or {})


async def asked(harness: Harness, *changes: dict[str, Any], **fields: Any) -> SimulationView:
    response = await ask(harness, *changes, **fields)
    assert response.status_code == 202, response.text
    return SimulationView.model_validate_json(response.content)


async def found(harness: Harness, simulation_id: str) -> SimulationView:
    response = await harness.client.get(f"/api/v1/simulations/{simulation_id}")
    assert response.status_code == 200, response.text
    return SimulationView.model_validate_json(response.content)


class Endless:
    """A simulator that goes on until nobody wants the answer, or until it is cancelled itself."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def simulate(
        self,
        snapshot: Snapshot,
        request: SimulationRequest,
        ended_samples: Mapping[str, Sequence[float]],
        wanted: OnProgress,
    ) -> SimulationResult:
        self.begun.set()
        while True:
            if not await wanted(0.25):
                raise SimulationEnded("nobody waits for it any more")
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_more_nodes_are_played_through_from_the_live_cluster(harness: Harness) -> None:
    """A class that was measured: its next jobs end sooner on a larger cluster."""
    await harness.join(slots=2)
    await measured_job(harness)
    for number in (2, 3, 4):
        await harness.submit(f"train-{number}", elastic={"min": 1, "max": 1}, batch={"global": 32})
    view = await asked(harness, MORE_NODES, seeds=2)
    assert (view.status, view.progress, view.result) == (SimulationStatus.QUEUED, 0.0, None)
    await harness.scheduler.simulate()
    done = await found(harness, view.id)
    assert (done.status, done.progress, done.message) == (SimulationStatus.DONE, 1.0, "is done")
    assert done.result is not None
    before, after = done.result.outcomes
    assert (before.jobs, after.jobs) == (4, 4)
    assert after.avg_s < before.avg_s
    assert "sooner on average" in after.differences[0]
    assert [job.name for job in done.result.jobs] == ["train-1", "train-2", "train-3", "train-4"]
    assert done.result.warnings == []


async def measured_job(harness: Harness) -> None:
    """`train-1` has run for a while, and says how much it has to do."""
    job = await harness.submit("train-1", elastic={"min": 1, "max": 1}, batch={"global": 32})
    async with harness.service.database.begin() as tx:
        stored = await tx.jobs.lock(job.id)
        progress = stored.progress.model_copy(update={"samples": 3200, "total_samples": 32_000})
        await tx.jobs.save(replace(stored, progress=progress, started_at=stored.submitted_at))
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO measurements (job_id, generation, global_batch, device_kind, slots, nodes, steps, step_s_sum,"
                " step_s_squares, local_batch, updated_at) VALUES (:id, 1, 32, 'cpu', 1, 1, 100, 100, 100, 32, now())"
            ),
            {"id": job.id},
        )


async def test_an_empty_cluster_has_an_answer(harness: Harness) -> None:
    view = await asked(harness, {"change": "policy", "policy": "fifo"})
    await harness.scheduler.simulate()
    done = await found(harness, view.id)
    assert done.result is not None
    assert [(one.label, one.jobs) for one in done.result.outcomes] == [("as it is", 0), ("fifo", 0)]


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"change": "kill_node", "node": "beta"}, "changes.0.node", "nodes are: alpha"),
        ({**MORE_NODES, "device_kind": "h100"}, "changes.0.slots", "number of slots"),
        (
            {"change": "remove_nodes", "device_kind": "cpu", "nodes": 2},
            "changes.0.nodes",
            "there are 1 nodes",
        ),
        ({"change": "drop_job", "job": "nobody"}, "changes.0.job", "no active job"),
        ({"change": "policy", "policy": "magic"}, "changes.0.policy", "no policy is called 'magic'"),
        (
            {"change": "policy", "policy": "fifo", "parameters": {"x": 1}},
            "changes.0.parameters.x",
            "no parameter",
        ),
        (
            {"change": "price", "device_kind": "h100", "usd_per_slot_h": 1},
            "changes.0.device_kind",
            "no node has",
        ),
        ({"change": "budget", "usd_per_h": -1}, "changes.0.budget.usd_per_h", "greater than or equal to 0"),
        ({"change": "magic"}, "changes.0", "does not match any of the expected tags"),
        ({**MORE_NODES, "slot": 1}, "changes.0.add_nodes.slot", "not permitted"),
    ],
)
async def test_what_cannot_be_asked_is_refused_at_once(
    harness: Harness, change: dict[str, Any], field: str, says: str
) -> None:
    await harness.join()
    response = await ask(harness, change)
    assert response.status_code == 422, response.text
    (error,) = response.json()["errors"]
    assert error["field"] == field
    assert says in error["message"]


async def test_a_question_is_stored_once(harness: Harness) -> None:
    first = await ask(harness, {"change": "policy", "policy": "fifo"}, headers=KEY)
    again = await ask(harness, {"change": "policy", "policy": "fifo"}, headers=KEY)
    other = await ask(harness, {"change": "policy", "policy": "srtf"}, headers=KEY)
    assert (first.status_code, again.status_code, other.status_code) == (202, 200, 422)
    assert first.headers["Location"] == again.headers["Location"]
    assert first.headers["Location"] == f"/api/v1/simulations/{first.json()['id']}"
    assert other.json()["code"] == "idempotency_conflict"


async def test_listing_pages_through_all_newest_first(harness: Harness) -> None:
    ids = [(await asked(harness, {"change": "policy", "policy": "fifo"})).id for _ in range(5)]
    listed: list[str] = []
    path: str | None = "/api/v1/simulations?limit=2"
    while path is not None:
        response = await harness.client.get(path)
        page = Page[SimulationView].model_validate_json(response.content)
        listed += [one.id for one in page.items]
        path = response.links.get("next", {}).get("url")
    assert listed == ids[::-1]


async def test_one_that_waits_and_one_that_runs_are_cancelled(harness: Harness) -> None:
    simulator = Endless()
    scheduler = replace(harness.scheduler, simulator=simulator)
    running, waiting = [await asked(harness, {"change": "policy", "policy": "fifo"}) for _ in range(2)]
    working = asyncio.create_task(scheduler.simulate())
    await simulator.begun.wait()
    assert (await harness.post(f"simulations/{waiting.id}/cancel")).status_code == 202

    async def is_seen() -> bool:
        return (await found(harness, running.id)).progress == 0.25

    await until(is_seen)
    assert (await found(harness, running.id)).status is SimulationStatus.RUNNING
    answer = await harness.post(f"simulations/{running.id}/cancel")
    assert answer.json()["status"] == "cancelled"
    await asyncio.wait_for(working, 60)
    for one in (running, waiting):
        view = await found(harness, one.id)
        assert (view.status, view.message) == (SimulationStatus.CANCELLED, "was cancelled")
        assert view.finished_at is not None
    assert (await harness.post("simulations/s0/cancel")).status_code == 404
    assert (await harness.client.get("/api/v1/simulations/s0")).status_code == 404


async def test_one_whose_scheduler_died_is_taken_up_again_but_not_for_ever(harness: Harness) -> None:
    view = await asked(harness, {"change": "policy", "policy": "fifo"})
    for _ in range(MOST_ATTEMPTS):
        simulator = Endless()
        working = asyncio.create_task(replace(harness.scheduler, simulator=simulator).simulate())
        await simulator.begun.wait()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        assert (await found(harness, view.id)).status is SimulationStatus.RUNNING
    await harness.scheduler.simulate()
    last = await found(harness, view.id)
    assert last.status is SimulationStatus.FAILED
    assert "interrupted" in last.message


async def test_who_lost_it_to_another_says_nothing_more(harness: Harness) -> None:
    view = await asked(harness, {"change": "policy", "policy": "fifo"})
    async with harness.service.database.begin() as tx:
        first = await tx.simulations.take(harness.clock.now())
    async with harness.service.database.begin() as tx:
        second = await tx.simulations.take(harness.clock.now())
    assert first is not None
    assert second is not None
    async with harness.service.database.begin() as tx:
        assert not await tx.simulations.report(first, 0.5)
        assert await tx.simulations.report(second, 0.75)
        await tx.simulations.end(first, SimulationStatus.FAILED, "late", harness.clock.now())
    assert (await found(harness, view.id)).progress == 0.75


async def test_one_that_takes_too_long_is_ended(harness: Harness) -> None:
    view = await asked(harness, {"change": "policy", "policy": "fifo"})
    await replace(harness.scheduler, simulator=ProcessSimulator(0.01)).simulate()
    ended = await found(harness, view.id)
    assert (ended.status, ended.result) == (SimulationStatus.FAILED, None)
    assert "took longer than 0.01 s" in ended.message


async def test_what_is_not_there_any_more_when_its_turn_comes_is_said(harness: Harness) -> None:
    await harness.join()
    job = await harness.submit()
    view = await asked(harness, {"change": "drop_job", "job": "job"})
    await harness.post(f"jobs/{job.id}/cancel")
    await harness.scheduler.simulate()
    ended = await found(harness, view.id)
    assert (ended.status, ended.message) == (
        SimulationStatus.FAILED,
        "changes.0.job: no active job has the id or name 'job'",
    )


async def test_old_ones_are_deleted(harness: Harness) -> None:
    old, waits = [await asked(harness, {"change": "policy", "policy": "fifo"}) for _ in range(2)]
    await harness.post(f"simulations/{old.id}/cancel")
    later = replace(harness.scheduler, now=lambda: harness.clock.now() + timedelta(days=8))
    await later.retain()
    assert (await harness.client.get(f"/api/v1/simulations/{old.id}")).status_code == 404
    assert (await found(harness, waits.id)).status is SimulationStatus.QUEUED


async def test_the_token_is_asked_for(harness: Harness) -> None:
    response = await harness.client.get("/api/v1/simulations", headers={"Authorization": "Bearer no"})
    assert response.status_code == 401
