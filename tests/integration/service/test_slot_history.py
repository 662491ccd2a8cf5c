"""Slots over time, over a real database: what is read, in which bounds, and for whose eyes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from sqlalchemy import text

from headway.contract.health import FaultCause, FaultGrade
from headway.contract.views.identity import Role
from service.console.pictures.slot_geometry import strip_at
from service.console.pictures.slot_reader import MOST_GRANTS, MOST_LANES, read_history
from service.domain.nodes.health import Quarantine
from service.usecases.ports.transactions import Transaction
from tests.integration.service.conftest import Harness, entry, like_the_first_node, run_of
from tests.integration.service.test_console import browser, two_projects


@asynccontextmanager
async def reading(harness: Harness) -> AsyncIterator[Transaction]:
    async with harness.service.database.begin() as tx:
        yield tx


async def history_of(
    harness: Harness, seen: frozenset[str] | None = None
) -> dict[str, list[tuple[str, str]]]:
    """Job and phase of every period, by slot."""
    async with reading(harness) as tx:
        views = await read_history(tx, strip_at(harness.clock.now(), 900), seen=seen)
    return {
        f"{slot}": [(one.job_name, one.phase) for one in periods]
        for (_, slot), periods in views.periods.items()
    }


async def test_a_slot_shows_who_starts_trains_and_leaves_it_and_why(harness: Harness) -> None:
    agent = await harness.join("alpha", slots=1)
    await harness.submit("first", elastic={"min": 1, "max": 1, "resize": "never"})
    await harness.turn()
    assert await history_of(harness) == {"0": [("first", "starting")]}
    run = run_of(await agent.commands())
    await agent.report(entry("ranks_started", run, run.generation, how="spawn"))
    assert await history_of(harness) == {"0": [("first", "starting"), ("first", "running")]}
    (await harness.post("jobs/first/cancel")).raise_for_status()
    assert (await history_of(harness))["0"][-1] == ("first", "stopping")
    page = (await harness.client.get("/rounds")).text
    assert '<svg class="held job-' in page
    assert "1 of the 1 slot shown is held now." in page
    assert (await harness.client.get("/nodes/alpha?window=24h")).text.count("slot shown is held now") == 1


async def test_jobs_of_other_projects_have_no_names_there(harness: Harness) -> None:
    await two_projects(harness)
    own = await history_of(harness, frozenset({"vision"}))
    assert {one[0] for periods in own.values() for one in periods} == {"job-of-vision", "another project"}
    async with await browser(harness, Role.VIEWER, "vision") as viewer:
        for path in ("/rounds", "/nodes/alpha"):
            page = (await viewer.get(path)).text
            assert "job-of-vision" in page
            assert "another project" in page
            assert "job-of-speech" not in page
            assert (await harness.job("job-of-speech")).id not in page


async def test_a_quarantine_is_drawn_while_it_lasts_and_afterwards(harness: Harness) -> None:
    await harness.join("alpha", slots=2)
    now = harness.clock.now()
    async with harness.service.database.begin() as tx:
        (node,) = await tx.node_queries.slots()
        ill = Quarantine(
            node_id=node.id,
            slot=1,
            device="",
            grade=FaultGrade.FATAL,
            cause=FaultCause.OPERATOR,
            message="its fan is loud",
            since=now - timedelta(minutes=5),
            released_at=now - timedelta(minutes=1),
        )
        await tx.nodes.save_quarantine(ill)
    page = (await harness.client.get("/nodes/alpha")).text
    assert page.count("its fan is loud") == 1
    assert '<svg class="held quarantine"' in page


async def test_many_nodes_and_many_changes_stay_within_bounds(harness: Harness) -> None:
    """The busiest nodes are shown, the rest is counted, and no more grants are read than a page can draw."""
    await harness.join("alpha", slots=4)
    await like_the_first_node(harness, 400)
    await harness.submit("one", elastic={"min": 1, "max": 1, "resize": "never"})
    job = await harness.job("one")
    grants = """
        INSERT INTO slot_grants (node_id, slot, job_id, generation, granted_at, released_at)
        SELECT nodes.id, 0, :job, 1, now() - n * interval '100 ms', now() - n * interval '100 ms' + interval '50 ms'
        FROM nodes, generate_series(1, :count) AS n WHERE nodes.name IN ('alpha7', 'alpha400')
    """
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text(grants), {"job": job.id, "count": MOST_GRANTS})
    async with reading(harness) as tx:
        views = await read_history(tx, strip_at(harness.clock.now(), 900), seen=None)
    assert {"alpha7", "alpha400"} <= {one.name for one in views.nodes}
    assert sum(len(one.slots) for one in views.nodes) == MOST_LANES
    assert (views.hidden_nodes, views.hidden_slots) == (401 - MOST_LANES // 4, 4 * 401 - MOST_LANES)
    assert sum(len(one) for one in views.periods.values()) == MOST_GRANTS
    assert views.complete_from is not None
    page = await harness.client.get("/rounds")
    assert page.status_code == 200
    assert "385 nodes with 1,540 slots are not shown" in page.text
    assert len(page.text) < 2_000_000


async def test_the_present_reason_is_the_last_decision_since_the_job_changed(harness: Harness) -> None:
    await harness.join("alpha", slots=1)
    await harness.submit("waits", elastic={"min": 64})
    async with reading(harness) as tx:
        assert await tx.job_queries.holding(10) == []
    await harness.submit("holds", elastic={"min": 1, "max": 1, "resize": "never"})
    await harness.turn()
    async with reading(harness) as tx:
        assert await tx.job_queries.holding(10) == [(await harness.job("holds")).id]
    present = (await harness.job("waits")).message
    assert "64 slots" in present
    for path in ("/", "/jobs", "/jobs/waits"):
        assert present.rstrip(".") in (await harness.client.get(path)).text


@pytest.mark.parametrize("path", ["/rounds", "/nodes/alpha"])
async def test_only_known_lengths_of_time_are_accepted(harness: Harness, path: str) -> None:
    await harness.join("alpha")
    assert (await harness.client.get(f"{path}?window=6h")).status_code == 200
    assert (await harness.client.get(f"{path}?window=7d")).status_code == 422
