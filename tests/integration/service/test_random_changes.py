"""Whatever happens to a live job, in any order: no slot is held twice, nothing hangs, and in the end it is gone."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from headway.contract.agents import OrderCommand, RunCommand, StopCommand
from headway.contract.views.jobs import JobState
from service.usecases.nodes.expire import end_overdue_switches
from tests.integration.service.cast import Born, Cast
from tests.integration.service.conftest import Harness


class Play:
    """Processes that do what they are told, unless the dice kill them first."""

    def __init__(self, cast: Cast, dice: random.Random) -> None:
        self.cast = cast
        self.dice = dice
        self.alive: dict[Born, tuple[int, int] | None] = {}
        """Each process with the generation that it trains in, and its rank there; None for a newcomer."""
        self.ready: set[Born] = set()
        self.order: OrderCommand | None = None
        self.samples = 100
        self.switches = 0

    async def obey(self) -> None:
        """Take up every command that has come, in the order of each node."""
        while any(self.cast.told.values()):
            for node, told in self.cast.told.items():
                self.cast.told[node] = []
                for one in told:
                    await self.take_up(node, one)

    async def take_up(self, node: str, command: RunCommand | OrderCommand | StopCommand) -> None:
        cast = self.cast
        match command:
            case RunCommand():
                first = not command.joins
                for one in command.ranks:
                    assert first <= (not self.alive) or command.generation in {who[0] for who in self.alive}
                    self.alive[command.generation, one.rank] = (
                        (command.generation, one.rank) if first else None
                    )
                await cast.news(node, cast.entry(command.generation, "ranks_started", how="zygote"))
                if first and (command.generation, 0) in self.alive:
                    self.samples += 1
                    await self.say((command.generation, 0), "first_step", samples=self.samples, live=True)
            case OrderCommand():
                if self.order is None or command.generation > self.order.generation:
                    self.order = command
            case StopCommand():
                for generation in range(max(1, command.oldest), command.generation + 1):
                    await self.end(node, generation)

    async def end(self, node: str, generation: int) -> None:
        """Everything of one start on one node is stopped."""
        cast = self.cast
        here = [who for who in self.alive if who[0] == generation and cast.homes[who][0] == node]
        for who in here:
            del self.alive[who]
        exits = [cast.exit(who, exit_code=143, stopped_by_agent=True) for who in here]
        await cast.news(node, *exits, cast.entry(generation, "released"))

    async def say(self, who: Born, kind: str, **fields: object) -> None:
        generation, rank = self.alive[who] or who
        await self.cast.say(who, kind, generation, rank, **fields)

    async def kill(self) -> None:
        if self.alive:
            who = self.dice.choice(sorted(self.alive))
            del self.alive[who]
            await self.cast.die(who)

    async def get_ready(self) -> None:
        waiting = sorted(who for who, role in self.alive.items() if role is None and who not in self.ready)
        if waiting:
            who = self.dice.choice(waiting)
            self.ready.add(who)
            await self.say(who, "ready", ready_s=0.1)

    async def train(self) -> None:
        first = [who for who, role in self.alive.items() if role is not None and role[1] == 0]
        if first:
            self.samples += 10
            await self.say(first[0], "stopped", samples=self.samples)

    async def switch(self) -> None:
        """If all members of the newest order are there, they switch, and the others leave."""
        order = self.order
        if order is None:
            return
        ranks = {(one.born_generation, one.born_rank): one.rank for one in order.members}
        if not set(ranks) <= set(self.alive) or any(
            role is not None and role[0] >= order.generation for role in self.alive.values()
        ):
            return
        self.order = None
        self.switches += 1
        leavers = [who for who, role in self.alive.items() if role is not None and who not in ranks]
        steps = [self.join(who, order, rank) for who, rank in ranks.items()]
        steps += [self.leave(who, order.generation) for who in leavers]
        self.dice.shuffle(steps)
        for step in steps:
            await step

    async def join(self, who: Born, order: OrderCommand, rank: int) -> None:
        self.alive[who] = (order.generation, rank)
        said = {"world_size": len(order.members), "pause_s": 0.1, "lost_steps": 0, "sync_bytes": 0}
        await self.say(who, "switched", samples=self.samples, **said)

    async def leave(self, who: Born, generation: int) -> None:
        if who not in self.alive:
            return
        await self.say(who, "left", samples=self.samples, joined=generation)
        del self.alive[who]
        await self.cast.news(
            self.cast.homes[who][0], self.cast.exit(who, exit_code=0), self.cast.release(who)
        )

    async def user(self) -> None:
        verb = self.dice.choice(["resize"] * 8 + ["pause"] + ["resume"] * 3)
        body = {"slots": self.dice.randint(1, 4)} if verb == "resize" else None
        await self.cast.harness.post(f"jobs/job/{verb}", body)
        await self.cast.deliver()

    async def time(self) -> None:
        harness = self.cast.harness
        harness.clock.skipped += timedelta(seconds=self.dice.choice([1, 10, 30]))
        async with harness.service.database.begin() as tx:
            await end_overdue_switches(tx, harness.service.launch, harness.clock.now())
        await self.cast.deliver()


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 5))]
)
async def test_anything_in_any_order(harness: Harness, seed: int) -> None:
    cast = Cast(harness)
    await cast.join(alpha=2, beta=2, gamma=1)
    await harness.submit(elastic={"min": 1, "max": 4}, retry={"infrastructure": 100})
    play = Play(cast, random.Random(seed))
    often = {
        cast.turn: 4,
        play.get_ready: 6,
        play.switch: 4,
        play.train: 2,
        play.user: 2,
        play.kill: 1,
        play.time: 1,
    }
    for _ in range(120):
        (step,) = play.dice.choices([*often], [*often.values()])
        await step()
        await play.obey()
    # Left alone, it comes to rest; and a cancelled job lets go of everything.
    await harness.post("jobs/job/resume")
    for number in range(16):
        await harness.post("jobs/job/resize", {"slots": 4 if number < 8 else 2})
        for step in (cast.turn, play.get_ready, play.switch, play.train, play.time):
            await step()
            await play.obey()
    assert (await cast.job()).state is JobState.RUNNING, (await cast.job()).message
    assert (await cast.job()).size == 2
    assert play.switches
    await harness.post("jobs/job/cancel")
    await cast.deliver()
    await play.obey()
    assert (await cast.job()).state is JobState.CANCELLED
    assert await cast.held() == 0
