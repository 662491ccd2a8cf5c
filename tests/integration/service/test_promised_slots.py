"""Slots that jobs release for another one are its own until it starts, over the real API, Postgres and Redis."""

from __future__ import annotations

from headway.contract.agents import RunCommand
from headway.contract.views.jobs import JobState, JobView
from tests.integration.service.conftest import Agent, Harness, entry
from tests.integration.service.test_life_of_a_job import message, start, stop


async def begin(harness: Harness, agent: Agent, name: str) -> RunCommand:
    await harness.submit(name, priority=10)
    run: RunCommand = await start(harness, agent, name)
    await agent.report(entry("rank_message", run, **message("first_step", 1, samples=32)))
    return run


def promised(job: JobView) -> list[int]:
    promise = job.progress.promise
    return [] if promise is None else sorted(slot for slots in promise.slots.values() for slot in slots)


async def test_a_job_starts_on_the_slots_that_others_release_for_it_although_a_third_one_wants_them(
    harness: Harness,
) -> None:
    agent = await harness.join(slots=2)
    first = await begin(harness, agent, "first")
    second = await begin(harness, agent, "second")
    await harness.submit("high", priority=90, elastic={"min": 2, "max": 2})
    await harness.turn()
    assert promised(await harness.job("high")) == [0, 1]
    await agent.commands()
    await harness.submit("third", priority=90)
    await stop(agent, first)
    await harness.turn()
    assert await agent.commands() == [], "a slot is free, and it is promised"
    assert promised(await harness.job("high")) == [0, 1]
    await stop(agent, second)
    await harness.turn()
    (run,) = [one for one in await agent.commands() if isinstance(one, RunCommand)]
    assert (run.job_name, [one.slot for one in run.ranks]) == ("high", [0, 1])
    high, third = await harness.job("high"), await harness.job("third")
    assert (high.state, promised(high)) == (JobState.STARTING, [])
    assert "for which first and second (priority 10 against 90) were stopped" in high.message
    assert third.state is JobState.PENDING
