"""Lives of jobs and nodes, as scripts: told once undisturbed and once to a service that dies meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from headway.contract.agents import JoinReply, RunCommand, StopCommand
from headway.contract.views.jobs import JobState
from service.usecases.rounds.apply import PIECE
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import JOIN_TOKEN, Agent, entry, join_body
from tests.integration.service.crashing import World
from tests.integration.service.test_life_of_a_job import message, progress


@dataclass
class Hand:
    """An agent that obeys, whose processes do nothing by themselves."""

    world: World
    agent: Agent
    runs: dict[str, RunCommand] = field(default_factory=dict)
    """Present run of each job, by its id."""
    begun: list[tuple[str, int]] = field(default_factory=list)
    """Every generation that was ever begun here, by job."""

    async def obey(self) -> None:
        for command in await self.agent.commands():
            match command:
                case RunCommand():
                    assert command.job_id not in self.runs, (
                        "a generation starts before the one before it has ended"
                    )
                    self.runs[command.job_id] = command
                    self.begun.append((command.job_name, command.generation))
                    await self.agent.report(entry("ranks_started", command, how="spawn"))
                case StopCommand():
                    run = self.runs.get(command.job_id)
                    if run is not None and command.oldest <= run.generation <= command.generation:
                        await self.end(run.job_name, exit_code=143, stopped_by_agent=True)
        if self.agent.unacknowledged:
            await self.agent.report()

    def run(self, name: str = "job") -> RunCommand:
        return next(one for one in self.runs.values() if one.job_name == name)

    async def end(self, name: str = "job", **how: Any) -> None:
        """Every process of the job on this node ends, all in the same way."""
        run = self.run(name)
        del self.runs[run.job_id]
        exits = [entry("rank_exited", run, rank=one.rank, **how) for one in run.ranks]
        await self.agent.report(*exits, entry("released", run))

    async def say(self, kind: str, name: str = "job", **fields: Any) -> None:
        run = self.run(name)
        await self.agent.report(entry("rank_message", run, **message(kind, run.generation, **fields)))

    async def train(self, samples: int, name: str = "job") -> None:
        run = self.run(name)
        await self.agent.report(entry("rank_message", run, **progress(run.generation, samples)))


async def join(world: World, name: str, slots: int = 2) -> Hand:
    return Hand(world, await world.join(name, slots=slots))


async def turn(world: World, *hands: Hand) -> None:
    """A round, and all that the agents do after it."""
    await world.scheduler.round()
    for _ in range(3):
        await world.scheduler.deliver()
        for hand in hands:
            await hand.obey()


async def state(world: World, name: str = "job") -> JobState:
    return (await world.job(name)).state


async def ask(world: World, path: str, body: Any = None, expected: Sequence[int] = (202,)) -> None:
    response = await world.post(path, body)
    assert response.status_code in expected, f"{path}: {response.status_code} {response.text}"


async def life_and_end(world: World) -> None:
    """Submitted, started, resized by a restart, paused, resumed, done."""
    alpha = await join(world, "alpha")
    await world.submit(elastic={"min": 1, "max": 2})
    await ask(world, "jobs/job/resize", {"slots": 1})
    await turn(world, alpha)
    assert await state(world) is JobState.RUNNING
    await alpha.say("first_step", samples=32)
    await alpha.train(640)
    await alpha.say("metrics", epoch=0, samples=640, values={"loss": 0.5})
    await ask(world, "jobs/job/resize", {"slots": 2})
    await turn(world, alpha)
    assert (await world.job()).size == 2
    await ask(world, "jobs/job/pause")
    await turn(world, alpha)
    assert await state(world) is JobState.PAUSED
    await ask(world, "jobs/job/resume")
    await turn(world, alpha)
    assert await state(world) is JobState.RUNNING
    await alpha.train(1280)
    await alpha.end(exit_code=0)
    assert await state(world) is JobState.SUCCEEDED
    assert alpha.begun == [("job", 1), ("job", 2), ("job", 3)]


async def cancelled_in_every_state(world: World) -> None:
    """One job waits, one starts, one runs, one is paused: all are cancelled, and the last one by force."""
    alpha = await join(world, "alpha", slots=3)
    for name in ("runs", "paused", "starts"):
        await world.submit(name)
    await ask(world, "jobs/paused/pause")
    await ask(world, "jobs/starts/pause")
    await turn(world, alpha)
    await ask(world, "jobs/starts/resume")
    await world.scheduler.round()
    await world.submit("waits", elastic={"min": 3, "max": 3})
    await world.scheduler.round()
    for name in ("waits", "paused", "starts", "runs"):
        await ask(world, f"jobs/{name}/cancel")
    await ask(world, "jobs/runs/cancel", {"force": True})
    await turn(world, alpha)
    assert {await state(world, name) for name in ("waits", "paused", "runs")} == {JobState.CANCELLED}
    await turn(world, alpha)


async def failures(world: World) -> None:
    """A rank is killed, then the script fails once too often."""
    alpha = await join(world, "alpha")
    await world.submit(elastic={"min": 2, "max": 2}, retry={"infrastructure": 1, "user_errors": 1})
    await turn(world, alpha)
    run = alpha.run()
    await alpha.agent.report(entry("rank_exited", run, rank=1, signal=9))
    assert await state(world) is JobState.RECOVERING
    await turn(world, alpha)
    world.skip(120)
    await turn(world, alpha)
    assert await state(world) is JobState.RUNNING
    await alpha.end(exit_code=1)
    world.skip(600)
    await turn(world, alpha)
    assert await state(world) is JobState.RUNNING
    await alpha.end(exit_code=1)
    job = await world.job()
    assert (job.state, job.infrastructure_failures, job.user_errors) == (JobState.FAILED, 1, 2)


async def a_node_is_lost(world: World) -> None:
    """It comes back, still with what ran there, when its job runs elsewhere."""
    alpha, beta = await join(world, "alpha", 1), await join(world, "beta", 1)
    await world.submit("first")
    await world.submit("second")
    await turn(world, alpha, beta)
    world.skip(60)
    await beta.agent.report()
    await world.beat()
    await world.scheduler.expire()
    (lost,) = alpha.runs.values()
    assert await state(world, lost.job_name) is JobState.RECOVERING
    await beta.end(beta.run("second" if lost.job_name == "first" else "first").job_name, exit_code=0)
    world.skip(120)
    await beta.agent.report()
    await turn(world, beta)
    assert beta.run(lost.job_name).generation == 2
    holding = [{"job_id": lost.job_id, "generation": 1}]
    reply = await alpha.agent.report(holding=holding)
    assert [(one.job_id, one.generation) for one in reply.stop] == [(lost.job_id, 1)]
    await alpha.end(lost.job_name, exit_code=137, stopped_by_agent=True)
    await turn(world, alpha, beta)
    await beta.end(lost.job_name, exit_code=0)
    assert await state(world, lost.job_name) is JobState.SUCCEEDED


async def an_agent_starts_anew(world: World) -> None:
    """It joins again, with its journal; and another host takes the name of a lost node."""
    alpha = await join(world, "alpha", 1)
    await world.submit()
    await turn(world, alpha)
    again = await world.join("alpha", slots=1)
    assert again.joined.node_id == alpha.agent.joined.node_id
    alpha.agent.joined = again.joined
    await alpha.train(320)
    world.skip(60)
    await world.beat()
    await world.scheduler.expire()
    response = await world.client.post(
        "/api/v1/agents",
        json=join_body("alpha", 1, instance="instance-of-another"),
        headers={"Authorization": f"Bearer {JOIN_TOKEN}"},
    )
    assert response.status_code == 201
    joined = JoinReply.model_validate_json(response.content)
    other = Hand(world, Agent(world.client, world.service.redis, "of-another", joined, seen=alpha.agent.seen))
    await other.agent.report()
    world.skip(120)
    await other.agent.report()
    await turn(world, other)
    assert other.run().generation == 2
    await other.end(exit_code=0)
    assert await state(world) is JobState.SUCCEEDED


async def in_place(world: World) -> None:
    """A live job grows, loses a rank, grows back, shrinks, and moves."""
    cast = Cast(world)
    await cast.join(alpha=2)
    await cast.begin(1, elastic={"min": 1, "max": 2})
    await cast.resize(2)
    await cast.ready((2, 1))
    await cast.switch(2)
    await cast.say(
        (1, 0), "checkpointed", 2, uri="file:///c", samples=700, size_bytes=1, save_s=0.1, total_s=0.1
    )
    await cast.die((2, 1))
    await cast.switch(3, samples=800, lost_steps=1)
    await cast.turn()
    await cast.ready((4, 1))
    await cast.switch(4, samples=900)
    assert (await cast.job()).size == 2
    await cast.resize(1)
    await cast.switch(5, samples=1000)
    await cast.leave((4, 1), 5, samples=1000)
    job = await cast.job()
    assert (job.state, job.size, job.attempt) == (JobState.RUNNING, 1, 1)
    await ask(world, "jobs/job/cancel")
    await cast.deliver()
    await cast.stopped(1)
    assert (await cast.job()).state is JobState.CANCELLED


async def changes_given_up(world: World) -> None:
    """Newcomers fail, or are too slow; an ordered switch never comes about."""
    cast = Cast(world)
    await cast.join(alpha=2)
    await cast.begin(1, elastic={"min": 1, "max": 2})
    await cast.resize(2)
    await cast.die((2, 1), exit_code=1)
    assert (await cast.job()).state is JobState.RUNNING
    world.skip(30)
    await cast.turn()
    await too_long(cast, 600)
    assert (await cast.job()).state is JobState.RUNNING
    await cast.deliver()
    await cast.news(
        "alpha", cast.exit((3, 1), signal=9, stopped_by_agent=True), cast.entry(3, "released", slots=[1])
    )
    world.skip(60)
    await cast.turn()
    await cast.ready((4, 1))
    await too_long(cast, 7200)
    assert (await cast.job()).state is JobState.RECOVERING
    await cast.deliver()
    await cast.stopped(1, 4, signal=9)
    assert await cast.held() == 0


async def too_long(cast: Cast, seconds: float) -> None:
    """Time goes by, and everybody is heard of but the ranks that are waited for."""
    cast.harness.clock.skipped += timedelta(seconds=seconds)
    for agent in cast.agents.values():
        await agent.report()
    assert isinstance(cast.harness, World)
    await cast.harness.beat()
    await cast.harness.scheduler.expire()


async def operators(world: World) -> None:
    """A node is cordoned, emptied and used again; another one is to be taken away."""
    alpha, beta = await join(world, "alpha", 1), await join(world, "beta", 1)
    await ask(world, "nodes/beta/cordon")
    await world.submit()
    await turn(world, alpha, beta)
    await ask(world, "nodes/beta/uncordon")
    await ask(world, "nodes/alpha/drain")
    await turn(world, alpha, beta)
    await turn(world, alpha, beta)
    assert beta.run().generation == 2
    await ask(world, "nodes/alpha/uncordon")
    at = (world.clock.now() + timedelta(seconds=900)).isoformat()
    notice = {"kind": "interruption_notice", "what": "terminate", "action": "stop", "reclaim_at": at}
    await beta.agent.report(notice)
    await turn(world, alpha, beta)
    await turn(world, alpha, beta)
    assert alpha.run().generation == 3
    await alpha.end(exit_code=0)
    assert await state(world) is JobState.SUCCEEDED


async def more_than_one_transaction_starts(world: World) -> None:
    """A round that is applied in two pieces, with a death between them."""
    count = PIECE + 2
    alpha = await join(world, "alpha", count)
    for number in range(count):
        await world.submit(f"job-{number:02d}")
    await turn(world, alpha)
    assert len(alpha.begun) == count
    assert {number for _, number in alpha.begun} == {1}


Script = Callable[[World], Awaitable[None]]
JOBS: tuple[Script, ...] = (
    life_and_end,
    cancelled_in_every_state,
    failures,
    a_node_is_lost,
    an_agent_starts_anew,
    in_place,
    changes_given_up,
    operators,
    more_than_one_transaction_starts,
)
