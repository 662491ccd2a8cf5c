"""A backup is one moment of the database; what comes back of it is cut loose from a field that went on."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import text

from headway.contract.agents import NodeState, RunCommand
from headway.contract.views.jobs import JobState
from headway.local.postgres import EmbeddedPostgres
from service.adapters.postgres.engine.dump import MANIFEST, NUMBERS_LEFT_OUT
from service.adapters.postgres.engine.schema import schema_problem
from service.backup import main, run_backup, run_restore, run_restored
from service.domain.shared.errors import InvalidField
from service.main import Service
from service.settings import Settings
from service.usecases.upkeep.restore import GENERATIONS_LEFT_OUT
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, make_settings, run_of

_numbers = itertools.count()


@dataclass
class Other:
    """A second database, which a backup is brought back to, beside the same Redis and storage."""

    service: Service
    folder: Path

    @property
    def settings(self) -> Settings:
        return self.service.settings


@pytest_asyncio.fixture
async def other(harness: Harness, postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Other]:
    ours = harness.service.settings
    url = postgres.create_database(f"restored_{next(_numbers)}")
    service = Service(make_settings(url, ours.redis_url, ours.storage_url))
    yield Other(service, tmp_path / "backup")
    await service.close()


async def start(harness: Harness, agent: Agent, name: str) -> RunCommand:
    await harness.submit(name, elastic={"min": 1, "max": 1}, retry={"infrastructure": 0})
    await harness.turn()
    run = run_of(await agent.commands())
    await agent.report(entry("ranks_started", run, how="zygote"), holding=[held(run)])
    return run


def held(run: RunCommand) -> dict[str, object]:
    return {"job_id": run.job_id, "generation": run.generation}


async def test_what_ran_starts_again_under_a_number_that_nobody_has_seen(
    harness: Harness, other: Other
) -> None:
    agent = await harness.join()
    run = await start(harness, agent, "kept")
    await run_backup(harness.service, other.folder)
    said = await run_restore(other.service, other.folder)
    assert any("1 jobs that were running start again" in line for line in said)
    async with harness_of(other.settings) as again:
        agent.client = again.client
        job = await again.job("kept")
        assert (job.state, job.infrastructure_failures) == (JobState.RECOVERING, 0), "no retry is spent on it"
        (node,) = (await again.client.get("/api/v1/nodes")).json()["items"]
        assert node["state"] == NodeState.LOST
        assert "restored" in node["message"]
        await again.turn()
        assert (await again.job("kept")).state is JobState.RECOVERING, (
            "nothing starts where something may run"
        )
        reply = await agent.report(holding=[held(run)])
        assert [one.generation for one in reply.stop] == [run.generation], "what runs on must end"
        await agent.report(entry("rank_exited", run, rank=0, signal=9), entry("released", run))
        await again.turn()
        restarted = run_of(await agent.commands())
        assert restarted.generation > GENERATIONS_LEFT_OUT
        assert (await again.job("kept")).state is JobState.STARTING


async def test_news_of_the_time_since_are_not_listened_to(harness: Harness, other: Other) -> None:
    agent = await harness.join()
    run = await start(harness, agent, "kept")
    await run_backup(harness.service, other.folder)
    await agent.report(entry("rank_exited", run, rank=0, exit_code=1), entry("released", run))
    assert (await harness.job("kept")).state is JobState.FAILED
    await run_restore(other.service, other.folder)
    async with harness_of(other.settings) as again:
        agent.client = again.client
        before = await again.job("kept")
        later = run.generation + 3
        done = entry("rank_exited", run, later, rank=0, exit_code=0, completed=True)
        reply = await agent.report(done, holding=[{"job_id": run.job_id, "generation": later}])
        assert [one.generation for one in reply.stop] == [later]
        after = await again.job("kept")
        assert (after.state, after.generation) == (before.state, before.generation)


async def test_commands_of_before_are_not_sent(harness: Harness, other: Other) -> None:
    agent = await harness.join()
    await harness.submit("kept")
    await harness.turn()
    await run_backup(harness.service, other.folder)
    assert await harness.service.redis.xlen(agent.joined.stream) == 1
    await run_restore(other.service, other.folder)
    assert await harness.service.redis.xlen(agent.joined.stream) == 0, "what waited in Redis is gone"
    async with harness_of(other.settings) as again:
        agent.client = again.client
        await agent.report()
        await again.scheduler.deliver()
        assert await agent.commands() == []


async def test_an_agent_that_joined_since_joins_again(harness: Harness, other: Other) -> None:
    await run_backup(harness.service, other.folder)
    agent = await harness.join("newcomer")
    await run_restore(other.service, other.folder)
    async with harness_of(other.settings) as again:
        path = f"/api/v1/agents/{agent.joined.node_id}/reports"
        headers = {"Authorization": f"Bearer {agent.joined.node_token}"}
        refused = await again.client.post(path, json={"instance": "instance-newcomer"}, headers=headers)
        assert refused.status_code == 401, "which an agent answers by joining"
        assert (await again.join("newcomer")).joined.node_id


async def test_rows_and_numbers_come_back(harness: Harness, other: Other) -> None:
    for number in range(3):
        await harness.submit(f"job-{number}", env={"ODD": "a\tb\\N\n\u00fc"})
    await run_backup(harness.service, other.folder)
    await run_restore(other.service, other.folder)
    async with harness_of(other.settings) as again:
        for number in range(3):
            ours, theirs = await harness.job(f"job-{number}"), await again.job(f"job-{number}")
            assert theirs == ours
        new = await again.submit("new")
        events = (await again.client.get(f"/api/v1/jobs/{new.id}/events")).json()["items"]
        assert events[0]["sequence"] > NUMBERS_LEFT_OUT


async def test_bundles_that_are_missing_are_said(harness: Harness, other: Other) -> None:
    digest = "sha256:" + "0" * 64
    async with harness.service.database.engine.begin() as connection:
        await harness.submit("needs")
        await connection.execute(
            text("UPDATE jobs SET spec = jsonb_set(spec, '{bundle}', to_jsonb(CAST(:digest AS text)))"),
            {"digest": digest},
        )
    await run_backup(harness.service, other.folder)
    said = await run_restore(other.service, other.folder)
    assert any("MISSING" in line and digest in line for line in said)


async def test_a_database_that_was_brought_back_by_others(harness: Harness) -> None:
    """A snapshot of the provider's, say: the second half of a restore is done alone. Twice does no harm."""
    agent = await harness.join()
    run = await start(harness, agent, "kept")
    for times in (1, 2):
        await run_restored(harness.service)
        assert (await harness.job("kept")).state is JobState.RECOVERING
        await agent.report(entry("released", run))
        await harness.turn()
        run = run_of(await agent.commands())
        assert run.generation > times * GENERATIONS_LEFT_OUT
        await agent.report(entry("ranks_started", run, how="zygote"), holding=[held(run)])


async def test_a_backup_goes_into_an_empty_database_alone(harness: Harness, other: Other) -> None:
    await run_backup(harness.service, other.folder)
    with pytest.raises(InvalidField, match="in use"):
        await run_restore(harness.service, other.folder)
    with pytest.raises(InvalidField, match="not empty"):
        await run_backup(harness.service, other.folder)


async def test_a_database_that_is_half_restored_does_not_serve(harness: Harness, other: Other) -> None:
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text("UPDATE database_state SET backed_up_at = now()"))
    assert "service restored" in str(await schema_problem(harness.service.database.engine))


@pytest.mark.parametrize("damage", ["manifest", "no manifest", "cut", "missing", "newer", "format"])
async def test_what_is_damaged_is_refused_before_anything_is_written(
    harness: Harness, other: Other, damage: str
) -> None:
    await harness.submit()
    await run_backup(harness.service, other.folder)
    manifest, jobs = other.folder / MANIFEST, other.folder / "jobs.copy.gz"
    fields = json.loads(manifest.read_text())
    match damage:
        case "manifest":
            manifest.write_text("{")
        case "no manifest":
            manifest.unlink()
        case "cut":
            jobs.write_bytes(gzip.compress(gzip.decompress(jobs.read_bytes())[:-9]))
        case "missing":
            jobs.unlink()
        case "newer":
            manifest.write_text(json.dumps({**fields, "revision": "9999"}))
        case "format":
            manifest.write_text(json.dumps({**fields, "format": 99}))
    with pytest.raises(InvalidField):
        await run_restore(other.service, other.folder)
    assert "missing" in str(await schema_problem(other.service.database.engine)), (
        "the database is as empty as it was"
    )


def test_bad_arguments(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_DATABASE_URL", raising=False)
    assert main(["restored"]) == 1
    assert "HEADWAY_" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["backup"])


async def test_nobody_is_charged_for_the_time_that_is_not_known(harness: Harness, other: Other) -> None:
    """The job held its slot until the backup as far as anybody knows, and this long is in its bill."""
    agent = await harness.join()
    await start(harness, agent, "kept")
    await run_backup(harness.service, other.folder)
    await run_restore(other.service, other.folder)
    async with harness_of(make_settings_with_prices(other)) as again:
        again.clock.skipped = timedelta(hours=5)
        await again.scheduler.accrue()
        async with other.service.database.engine.connect() as connection:
            query = "SELECT coalesce(sum(slot_us), 0) FROM charges WHERE job_id <> ''"
            charged_us = int((await connection.execute(text(query))).scalar_one())
    assert charged_us < 600 * 10**6, "seconds of the test, and not the five hours"


def make_settings_with_prices(other: Other) -> Settings:
    ours = other.settings
    return make_settings(ours.database_url, ours.redis_url, ours.storage_url, usd_per_slot_h={"cpu": 1.0})
