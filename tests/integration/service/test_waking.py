"""The scheduler acts when something happens, not when its interval is over."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from headway.contract.views.jobs import JobState
from service.loops.scheduler import Intervals
from service.usecases.ports.facts import WakeUp
from tests.integration.service.conftest import Harness
from tests.waiting import until


async def test_a_submit_wakes_a_round_and_its_command_is_delivered(harness: Harness) -> None:
    agent = await harness.join()
    slow = replace(harness.scheduler, intervals=Intervals(round_max_interval_s=3600.0))
    async with harness.service.wake_ups.heard((WakeUp.ROUND, ""), (WakeUp.COMMANDS, "")) as rung:
        working = asyncio.create_task(slow.work())
        try:
            job = await harness.submit()
            async with asyncio.timeout(60):
                while (await harness.job()).state is not JobState.STARTING:
                    await rung.wait()
                    rung.clear()

                async def delivered() -> bool:
                    return await agent.redis.xlen(agent.joined.stream) > 0

                await until(delivered)
                commands = await agent.commands()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    assert [one.job_id for one in commands] == [job.id]
