"""A live job's processes, played by the test: they start, get ready, switch, leave and die when it says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy import text

from headway.contract.agents import AnyCommand, Member, OrderCommand, RunCommand, StopCommand
from headway.contract.views.jobs import JobState, JobView
from tests.integration.service.conftest import Agent, Harness

Born = tuple[int, int]


class Cast:
    """Agents by the names of their nodes, and what the service has told them. Every report is followed by a
    check that nothing is granted twice, and that whoever trains holds its slot.
    """

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.agents: dict[str, Agent] = {}
        self.told: dict[str, list[AnyCommand]] = {}
        self.homes: dict[Born, tuple[str, int]] = {}
        """Node and slot of each process, by who it is."""

    async def join(
        self,
        *,
        kind: str = "cpu",
        labels: Mapping[str, str] = MappingProxyType({}),
        host: Mapping[str, Any] | None = None,
        **slots: int,
    ) -> None:
        for name, count in slots.items():
            self.agents[name] = await self.harness.join(
                name, slots=count, kind=kind, labels=labels, host=host
            )
            self.told[name] = []

    async def begin(
        self, size: int = 1, name: str = "job", pids: Mapping[int, int] = MappingProxyType({}), **spec: Any
    ) -> RunCommand:
        """Start a job on `size` slots that says after its first step that it follows orders.

        Agents report the `pids` of its ranks.
        """
        elastic = {"min": 1, "max": 4, **spec.pop("elastic", {})}
        await self.harness.submit(name, elastic=elastic, **spec)
        await self.harness.post(f"jobs/{name}/resize", {"slots": size})
        await self.turn()
        runs = self.started(1, name)
        for node, run in runs.items():
            here = {one.rank: pids[one.rank] for one in run.ranks if one.rank in pids}
            await self.news(node, self.entry(run.generation, "ranks_started", how="zygote", pids=here))
        await self.say((1, 0), "first_step", 1, samples=32, live=True)
        await self.harness.post(f"jobs/{name}/resize", {"slots": None})
        assert (await self.harness.job(name)).state is JobState.RUNNING
        return next(iter(runs.values()))

    async def resize(self, size: int) -> None:
        """Have the job's size changed, up to the commands for it."""
        response = await self.harness.post("jobs/job/resize", {"slots": size})
        assert response.status_code == 202, response.text
        await self.turn()

    async def api_was_up(self, for_s: float) -> None:
        """An API has been up for so long now, and has just heard of every node."""
        now, gap_s = self.harness.clock.now(), 3600.0
        async with self.harness.service.database.begin() as tx:
            for node in (await tx.nodes.many([one.joined.node_id for one in self.agents.values()])).values():
                await tx.nodes.save(replace(node, seen_at=now))
            await tx.nodes.beat(f"up for {for_s:g} s", now - timedelta(seconds=for_s), gap_s)
            await tx.nodes.beat(f"up for {for_s:g} s", now, gap_s)

    async def turn(self) -> None:
        await self.harness.scheduler.round()
        await self.deliver()
        await self.check()

    async def deliver(self) -> None:
        await self.harness.scheduler.deliver()
        for name, agent in self.agents.items():
            fresh = await agent.commands()
            self.told[name] += fresh
            for run in (one for one in fresh if isinstance(one, RunCommand)):
                self.job_id = run.job_id
                for one in run.ranks:
                    self.homes[run.generation, one.rank] = (name, one.slot)

    def started(self, generation: int, name: str = "job") -> dict[str, RunCommand]:
        """The commands to start processes of this generation, by node."""
        return {
            node: one
            for node, told in self.told.items()
            for one in told
            if isinstance(one, RunCommand) and (one.generation, one.job_name) == (generation, name)
        }

    def orders(self, generation: int) -> dict[str, OrderCommand]:
        """The orders of this generation, by node."""
        return {
            node: one
            for node, told in self.told.items()
            for one in told
            if isinstance(one, OrderCommand) and one.generation == generation
        }

    def members(self, generation: int) -> dict[Born, int]:
        """The ranks of an ordered generation, by who has them."""
        orders = list(self.orders(generation).values())
        assert orders, f"generation {generation} was not ordered"
        assert all(one.members == orders[0].members for one in orders)
        return {(one.born_generation, one.born_rank): one.rank for one in orders[0].members}

    def stops(self) -> set[tuple[str, int, int, str]]:
        """(node, generation, oldest, mode) of every stop so far."""
        return {
            (node, one.generation, one.oldest, one.mode)
            for node, told in self.told.items()
            for one in told
            if isinstance(one, StopCommand)
        }

    def entry(self, generation: int, kind: str, **fields: Any) -> dict[str, Any]:
        return {"kind": kind, "job_id": self.job_id, "generation": generation, **fields}

    def message(self, who: Born, kind: str, generation: int, rank: int | None = None, **fields: Any) -> Any:
        """Return the message of a process as a member of `generation`. `rank`: default, the rank of its start."""
        said = {"type": kind, "rank": who[1] if rank is None else rank, "generation": generation, "at_s": 1e9}
        return self.entry(who[0], "rank_message", rank=who[1], message={**said, **fields})

    async def news(self, node: str, *entries: dict[str, Any]) -> None:
        await self.agents[node].report(*entries)
        await self.deliver()
        await self.check()

    async def say(
        self, who: Born, kind: str, generation: int, rank: int | None = None, **fields: Any
    ) -> None:
        await self.news(self.homes[who][0], self.message(who, kind, generation, rank, **fields))

    async def trained(self, who: Born, generation: int, batch: int, speed: float, **fields: Any) -> None:
        """Let rank 0 report 100 steps at so many samples per second, with much gradient noise."""
        step_s = batch / speed
        said = {
            "epoch": 0,
            "samples": 64_000,
            "total_samples": 10**6,
            "steps": 100,
            "step_s_sum": 100 * step_s,
            "step_s_squares": 100 * step_s**2,
            "global_batch": batch,
            "local_batch": 32,
            "accumulation": 2,
            "gradient_sqr": 1.0,
            "gradient_var": 1e6,
            "max_global_batch": 512,
        }
        await self.say(who, "progress", generation, 0, **{**said, **fields})

    async def ready(self, *who: Born) -> None:
        for one in who:
            await self.say(one, "hello", one[0])
            await self.say(one, "ready", one[0], ready_s=0.5)

    async def switch(
        self, generation: int, samples: int = 640, pause_s: float = 0.04, lost_steps: int = 0
    ) -> None:
        """Every member of the ordered generation says that it trains."""
        members = self.members(generation)
        for who, rank in members.items():
            said = {"samples": samples, "world_size": len(members), "pause_s": pause_s}
            await self.say(
                who, "switched", generation, rank, **said, lost_steps=lost_steps, sync_bytes=100 * rank
            )

    def exit(self, who: Born, **how: Any) -> dict[str, Any]:
        return self.entry(who[0], "rank_exited", rank=who[1], **how)

    def release(self, who: Born) -> dict[str, Any]:
        """The slot of one process is free."""
        return self.entry(who[0], "released", slots=[self.homes[who][1]])

    async def leave(self, who: Born, generation: int, samples: int = 640, rank: int | None = None) -> None:
        """A process does what an order that leaves it out tells it."""
        left = self.message(who, "left", generation - 1, rank, samples=samples, joined=generation)
        await self.news(self.homes[who][0], left, self.exit(who, exit_code=0), self.release(who))

    async def die(self, *who: Born, **how: Any) -> None:
        """Processes of one node end at once: of SIGKILL, or `how`."""
        node = self.homes[who[0]][0]
        exits = [self.exit(one, **(how or {"signal": 9})) for one in who]
        await self.news(node, *exits, *(self.release(one) for one in who))

    async def stopped(self, *generations: int, **how: Any) -> None:
        """Everything that was started for these generations ends as asked, and is released whole."""
        for node in self.agents:
            for generation in generations:
                here = [who for who, home in self.homes.items() if who[0] == generation and home[0] == node]
                if here:
                    exits = [
                        self.exit(who, **(how or {"exit_code": 143}), stopped_by_agent=True) for who in here
                    ]
                    await self.news(node, *exits, self.entry(generation, "released"))

    async def job(self, name: str = "job") -> JobView:
        return await self.harness.job(name)

    async def events(self, kind: str) -> list[dict[str, Any]]:
        found = (await self.harness.client.get("/api/v1/jobs/job/events")).json()["items"]
        return [one for one in found if one["kind"] == kind]

    async def held(self) -> int:
        """Slots that jobs hold."""
        return sum((await self._holders()).values())

    async def _holders(self) -> Counter[tuple[str, int]]:
        async with self.harness.service.database.engine.connect() as connection:
            rows = await connection.execute(
                text("SELECT node_id, slot FROM slot_grants WHERE released_at IS NULL")
            )
            return Counter((row.node_id, row.slot) for row in rows)

    async def check(self) -> None:
        """No slot is held twice, and every member that has not ended holds its own."""
        assert max((await self._holders()).values(), default=0) <= 1
        query = (
            "SELECT jobs.id, jobs.state, jobs.switch, allocations.members, allocations.size FROM jobs"
            " JOIN allocations ON allocations.job_id = jobs.id AND allocations.generation = jobs.generation"
        )
        async with self.harness.service.database.engine.connect() as connection:
            running = (await connection.execute(text(query))).all()
        for row in running:
            if row.state == JobState.RUNNING:
                assert row.switch is None
                assert len(row.members) == row.size
                assert [one["rank"] for one in row.members] == list(range(row.size))
                for one in row.members:
                    await self._check_member(row.id, Member.model_validate(one))
            if row.state in {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.PAUSED}:
                async with self.harness.service.database.begin() as tx:
                    assert await tx.grants.held(row.id) == {}

    async def _check_member(self, job_id: str, member: Member) -> None:
        async with self.harness.service.database.begin() as tx:
            held = await tx.grants.held(job_id)
            exits = await tx.jobs.exits(job_id, 0)
        holds = member.slot in held.get(member.born_generation, {}).get(member.node_id, ())
        assert holds or (member.born_generation, member.born_rank) in exits, member
