"""Projects in a round's snapshot: quotas, use that fades, and dollars a month as a budget."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from headway.contract.spec import JobSpec
from headway.contract.views.identity import ProjectQuota
from service.adapters.postgres.database import Database
from service.domain.cluster.snapshot import Tenant
from service.usecases.ports.identity import ProjectRecord
from tests.conformance.conftest import NOW, job_of, node_of, store

WEEK = timedelta(days=7)


async def set_quota(database: Database, project: str, **quota: float) -> None:
    async with database.begin() as tx:
        await tx.projects.save(
            ProjectRecord(
                name=project, description="", quota=ProjectQuota.model_validate(quota), created_at=NOW
            )
        )


async def charge(database: Database, project: str, slot_s: float, ago: timedelta) -> None:
    """Slot-seconds that a project has had in an hour of the past."""
    values = {"at": NOW - ago, "project": project, "us": int(slot_s * 1e6), "id": f"{project}{ago}"}
    async with database.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO leases VALUES (:id, NULL, NULL, '[0]', 'cpu', 'on-demand', 2.0, :at, :at, false)"
            ),
            values,
        )
        await connection.execute(
            text("INSERT INTO charges VALUES (:id, :at, 'j', 'useful', '', :project, :us)"), values
        )


async def projects(database: Database) -> dict[str, Tenant]:
    async with database.begin() as tx:
        return dict((await tx.rounds.snapshot(NOW)).projects)


async def test_without_a_quota_projects_do_not_count(database: Database) -> None:
    await charge(database, "vision", 3600, timedelta(0))
    await set_quota(database, "vision")
    assert await projects(database) == {}


async def test_use_counts_half_after_a_week_and_nothing_after_many(database: Database) -> None:
    await set_quota(database, "vision", slots=8, weight=2)
    await set_quota(database, "speech")
    await charge(database, "vision", 100, timedelta(0))
    await charge(database, "vision", 100, WEEK)
    await charge(database, "speech", 1e6, 10 * WEEK)
    await charge(database, "", 1e6, WEEK)
    seen = await projects(database)
    assert {name: one.quota for name, one in seen.items() if name in {"vision", "speech"}} == {
        "vision": ProjectQuota(slots=8, weight=2),
        "speech": ProjectQuota(),
    }
    assert seen["vision"].used_slot_s == pytest.approx(150)
    assert seen["speech"].used_slot_s == 0
    assert "" not in seen


async def test_dollars_a_month_are_a_hard_budget_of_the_project(database: Database) -> None:
    await set_quota(database, "vision", usd_per_month=1.0)
    async with database.begin() as tx:
        assert (await tx.rounds.snapshot(NOW)).caps == ()
    await charge(database, "vision", 3600, timedelta(0))
    async with database.begin() as tx:
        (cap,) = (await tx.rounds.snapshot(NOW)).caps
    assert (cap.project, cap.usd_per_h) == ("vision", 0.0)
    assert cap.row == "budget/quota/vision"


async def test_a_project_shows_what_it_holds_borrows_lends_and_has_used(database: Database) -> None:
    await set_quota(database, "vision", slots=4, weight=3)
    await set_quota(database, "speech")
    for project, held in (("vision", (0,)), ("speech", (1, 2, 3))):
        async with database.begin() as tx:
            if project == "vision":
                await tx.nodes.save(node_of("n1", 4))
            spec = JobSpec(name=project, run="x", project=project)
            await store(tx, job_of(project, spec=spec))
            assert await tx.grants.grant(project, 1, {"n1": held}, NOW)
    await charge(database, "vision", 3600, timedelta(0))
    await charge(database, "speech", 3 * 3600, timedelta(0))
    async with database.begin() as tx:
        page = await tx.projects.page(None, NOW, limit=9, cursor=None)
    seen = {one.name: one for one in page.items}
    vision, speech = seen["vision"], seen["speech"]
    assert (vision.slots_held, vision.slots_borrowed, vision.slots_lent) == (1, 0, 3)
    assert (speech.slots_held, speech.slots_borrowed, speech.slots_lent) == (3, 3, 0)
    assert (vision.used_slot_h, vision.share_used, vision.share_due) == pytest.approx((1.0, 0.25, 0.75))
    assert (speech.used_slot_h, speech.share_used, speech.share_due) == pytest.approx((3.0, 0.75, 0.25))
