"""Commands that do not arrive: the jobs that they are about say so, instead of seeming to be about to change."""

from __future__ import annotations

from sqlalchemy import text

from tests.integration.service.conftest import Harness

_OLDER = text("UPDATE commands SET created_at = created_at - interval '42 s'")


async def presents(harness: Harness) -> list[str]:
    """The reasons of the job's present state in the list of jobs and on its own."""
    listed = (await harness.client.get("/api/v1/jobs")).json()["items"]
    alone = (await harness.client.get("/api/v1/jobs/job")).json()
    return [one["present"] for one in (*listed, alone)]


async def test_job_whose_start_reaches_no_agent_says_so_and_forgets_it_once_it_does(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    await harness.scheduler.round()
    assert all("no command" not in said for said in await presents(harness)), "it was sent a moment ago"
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(_OLDER)
    for said in await presents(harness):
        assert said.startswith(f"no command about it has reached {agent.name} for 4"), said
        assert "Redis" in said
    await harness.scheduler.deliver()
    await agent.commands()
    await agent.report()  # acknowledges them
    assert all("no command" not in said for said in await presents(harness))
