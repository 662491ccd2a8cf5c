"""A model of jobs and nodes that predicts the API's answers, simple enough to be believed.

The model knows states, counts and refusals. What only a round can know (who gets slots, who is moved) it takes from the
answer, and asks whether that was legal.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx

from headway.contract.agents import RunCommand, StopCommand
from headway.contract.views.jobs import JobView
from tests.integration.service.conftest import entry
from tests.integration.service.crashing import World
from tests.integration.service.lives import Hand, join
from tests.integration.service.model_jobs import (
    ELASTIC,
    ENDED,
    ENDINGS,
    NODES,
    RETRY,
    Job,
    S,
    command_job,
    job_of,
)


class Play:
    """The model beside the service: each method does one thing to both, and compares."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.jobs: list[Job] = []
        """Oldest first."""
        self.keys: dict[str, tuple[str, Any]] = {}
        """The job and the body of each idempotency key."""
        self.hands: dict[str, Hand] = {}
        self.silent: set[str] = set()
        self.last: dict[str, list[dict[str, Any]]] = {}
        self.walk: tuple[str | None, list[str], set[str]] | None = None
        self.codes: Counter[tuple[str, int]] = Counter()

    async def begin(self) -> None:
        for name, slots in NODES.items():
            self.hands[name] = await join(self.world, name, slots)

    # Users.

    async def submit(self, name: str, shape: int, key: str | None) -> None:
        body = {"name": name, "run": "python -V", "elastic": ELASTIC[shape], "retry": RETRY}
        headers = {} if key is None else {"Idempotency-Key": key}
        response = await self.world.client.post("/api/v1/jobs", json=body, headers=headers)
        before = self.keys.get(key or "")
        if before is not None:
            expected = (200, "") if before[1] == body else (422, "idempotency_conflict")
        elif any(one.name == name and one.state not in ENDED for one in self.jobs):
            expected = (409, "name_taken")
        else:
            expected = (201, "")
        self.expect("submit", response, *expected)
        if response.status_code == 200:
            assert before is not None
            assert response.json()["id"] == before[0], "another job under the same key"
        if response.status_code == 201:
            self.jobs.append(Job(response.json()["id"], name, ELASTIC[shape]))
            if key is not None:
                self.keys[key] = (self.jobs[-1].id, body)

    async def ask(self, verb: str, name: str, number: int) -> None:
        """Cancel, pause, resume or resize the job of a name, or one that does not exist."""
        job = self.called(name)
        body = {
            "cancel": {"force": number % 2 == 0},
            "resize": {"slots": number or None},
        }.get(verb)
        response = await self.world.post(f"jobs/{name}/{verb}", body)
        if job is None:
            self.expect(verb, response, 404, "not_found")
            return
        status, code = getattr(self, f"_{verb}")(job, number)
        self.expect(verb, response, status, code)
        if status == 202:
            said = JobView.model_validate_json(response.content)
            assert (said.id, said.state) == (job.id, job.state)

    def called(self, name: str) -> Job | None:
        """The job of a name: the live one, else the newest."""
        named = [one for one in self.jobs if one.name == name]
        return next((one for one in named if one.state not in ENDED), named[-1] if named else None)

    def _cancel(self, job: Job, number: int) -> tuple[int, str]:
        if job.state in {S.SUCCEEDED, S.FAILED}:
            return 409, "illegal_transition"
        if job.state is not S.CANCELLED:
            job.state, job.pausing = (S.CANCELLING if job.parts else S.CANCELLED), False
        return 202, ""

    def _pause(self, job: Job, number: int) -> tuple[int, str]:
        if job.state in ENDED or job.state is S.CANCELLING:
            return 409, "illegal_transition"
        if job.state is not S.PAUSED and not job.parts:
            job.state = S.PAUSED
        elif job.state is not S.PAUSED:
            job.pausing = True
            job.state = S.RECOVERING if job.state is S.RECOVERING else S.RESIZING
        return 202, ""

    def _resume(self, job: Job, number: int) -> tuple[int, str]:
        if job.state in ENDED or job.state is S.CANCELLING:
            return 409, "illegal_transition"
        job.pausing = False
        if job.state is S.PAUSED:
            job.state = S.PENDING
        return 202, ""

    def _resize(self, job: Job, number: int) -> tuple[int, str]:
        if job.state in ENDED or job.state is S.CANCELLING:
            return 409, "illegal_transition"
        if number and not job.allows(number):
            return 422, "invalid_field"
        if job.elastic.get("resize") == "never" and job.generation > 0:
            return 409, "illegal_transition"
        job.pinned = number or None
        return 202, ""

    def expect(self, what: str, response: httpx.Response, status: int, code: str = "") -> None:
        said = response.json().get("code", "") if response.status_code >= 400 else ""
        assert (response.status_code, said) == (status, code), f"{what}: {response.text}"
        self.codes[what, status] += 1

    async def page(self, limit: int) -> None:
        """The next page of a listing that goes on while everything changes."""
        if self.walk is None:
            self.walk = (None, [], {one.id for one in self.jobs})
        cursor, seen, wanted = self.walk
        query = {"limit": limit} | ({} if cursor is None else {"cursor": cursor})
        found = (await self.world.client.get("/api/v1/jobs", params=query)).json()
        seen += [one["id"] for one in found["items"]]
        self.walk = (found["next_cursor"], seen, wanted)
        if found["next_cursor"] is None:
            assert len(set(seen)) == len(seen), "a job on two pages"
            assert wanted <= set(seen), "a job on no page"
            order = [one.id for one in reversed(self.jobs) if one.id in seen]
            assert seen == order, "not newest first"
            self.walk = None

    # The scheduler.

    async def round(self) -> None:
        await self.world.scheduler.round()
        await self.world.scheduler.deliver()
        for view in await self.views():
            job = next(one for one in self.jobs if one.id == view.id)
            if view.state is job.state and view.generation == job.generation:
                continue
            match view.state:
                case S.STARTING:
                    assert job.state in {S.PENDING, S.RECOVERING}
                    assert not job.parts, "started while processes of it are left"
                    self._starts(job, view)
                case S.RESIZING:
                    assert job.state in {S.STARTING, S.RUNNING}
                    assert job.elastic.get("resize") != "never"
                    job.state = S.RESIZING
                case _:
                    raise AssertionError(f"a round made {view.state} of a job that was {job.state}")

    def _starts(self, job: Job, view: JobView) -> None:
        assert view.generation == job.generation + 1
        assert job.allows(view.size)
        assert self.silent.isdisjoint(view.allocation), "started on a node that is lost"
        job.state, job.generation = S.STARTING, view.generation
        job.parts, job.started, job.endings = set(view.allocation), set(), []

    async def views(self) -> list[JobView]:
        found = (await self.world.client.get("/api/v1/jobs", params={"limit": 500})).json()
        return [JobView.model_validate(one) for one in found["items"]]

    # Agents.

    async def obey(self, node: str) -> None:
        """The agent takes up every command that has reached it."""
        hand = self.hands[node]
        if node in self.silent:
            return
        for command in await hand.agent.commands():
            match command:
                case RunCommand():
                    await self._run(hand, command)
                case StopCommand():
                    run = hand.runs.get(command.job_id)
                    if run is not None and run.generation <= command.generation:
                        await self.end(node, run, "stopped")
                    elif run is None:
                        await self.report(node, entry("released", command_job(command), command.generation))
        await self.report(node)

    async def _run(self, hand: Hand, command: RunCommand) -> None:
        await self.report(hand.agent.name)  # what is over goes first
        assert command.job_id not in hand.runs, "two generations of a job on one node"
        busy = {one.slot for run in hand.runs.values() for one in run.ranks}
        assert busy.isdisjoint(one.slot for one in command.ranks), "two jobs on one slot"
        hand.runs[command.job_id] = command
        job = self.by_id(command.job_id)
        await self.report(hand.agent.name, entry("ranks_started", command, how="spawn"))
        if job.state is S.STARTING and job.generation == command.generation:
            job.started.add(hand.agent.name)
            if job.started == set((await self.world.job(job.id)).allocation):
                job.state = S.RUNNING

    async def end(self, node: str, run: RunCommand, ending: str) -> None:
        """Every process of the run ends on this node."""
        how: dict[str, Any] = {
            "done": {"exit_code": 0},
            "failed": {"exit_code": 1},
            "killed": {"signal": 9},
            "stopped": {"exit_code": 143, "stopped_by_agent": True},
        }[ending]
        del self.hands[node].runs[run.job_id]
        exits = [entry("rank_exited", run, rank=one.rank, **how) for one in run.ranks]
        await self.report(node, *exits, entry("released", run))
        job = self.by_id(run.job_id)
        if run.generation == job.generation and node in job.parts:
            await self.lost_part(job, node, ending)

    async def lost_part(self, job: Job, node: str, ending: str) -> None:
        job.parts.discard(node)
        job.endings.append(ending)
        fails = {
            "killed": {S.STARTING, S.RUNNING, S.RESIZING},
            "failed": {S.STARTING, S.RUNNING},
            "stopped": {S.STARTING, S.RUNNING},
        }.get(ending, set())
        if job.state in fails:
            job.state = S.RECOVERING
        if not job.parts:
            await self._all_gone(job)

    async def _all_gone(self, job: Job) -> None:
        worst = min(job.endings, key=ENDINGS.index)
        if job.state is S.CANCELLING:
            job.state = S.CANCELLED
        elif worst == "done":
            job.state, job.pausing = S.SUCCEEDED, False
        elif job.state is S.RESIZING and job.pausing:
            job.state, job.pausing = S.PAUSED, False
        elif job.state is S.RESIZING:
            view = await self.world.job(job.id)
            assert view.state in {S.STARTING, S.PENDING}
            job.state = S.PENDING
            if view.state is S.STARTING:
                self._starts(job, view)
        else:
            self._recovers(job, worst)

    def _recovers(self, job: Job, worst: str) -> None:
        job.killed += worst == "killed"
        job.failed += worst == "failed"
        spent = job.killed if worst == "killed" else job.failed
        most = RETRY["infrastructure"] if worst == "killed" else RETRY["user_errors"]
        if worst in {"killed", "failed"} and spent > most:
            job.state, job.pausing = S.FAILED, False
        elif job.pausing:
            job.state, job.pausing = S.PAUSED, False
        else:
            job.state = S.RECOVERING

    async def report(self, node: str, *entries: dict[str, Any]) -> None:
        agent = self.hands[node].agent
        stamped = [
            {"sequence": next(agent.clock), "at": self.world.clock.now().isoformat(), **one}
            for one in entries
        ]
        if stamped:
            self.last[node] = stamped
        reply = await agent.send(stamped, self._holding(node))
        for one in reply.stop:
            run = self.hands[node].runs[one.job_id]
            assert run.generation == one.generation
            await self.end(node, run, "stopped")

    def _holding(self, node: str) -> list[dict[str, Any]]:
        return [
            {"job_id": one.job_id, "generation": one.generation} for one in self.hands[node].runs.values()
        ]

    async def repeat(self, node: str) -> None:
        """The agent did not hear the answer: the same batch again changes nothing."""
        if node not in self.silent and node in self.last:
            before = await self.picture()
            await self.hands[node].agent.send(self.last[node], self._holding(node))
            assert await self.picture() == before

    async def stale(self, node: str) -> None:
        """News of generations that are over, and of jobs that nobody knows, change nothing."""
        if node in self.silent:
            return
        before = await self.picture()
        news = [entry("released", job_of("jnobody0"), 1)]
        for job in self.jobs:
            for generation in range(1, job.generation + (not job.parts)):
                news.append(entry("rank_exited", job_of(job.id), generation, rank=0, exit_code=1))
                news.append(entry("ranks_started", job_of(job.id), generation, how="spawn"))
                news.append(entry("released", job_of(job.id), generation))
        await self.report(node, *news)
        assert await self.picture() == before

    async def silence(self, node: str) -> None:
        """Nothing is heard of the agent for long: its node is lost; its processes go on, unseen."""
        if node in self.silent:
            return
        self.silent.add(node)
        self.world.skip(60)
        for other in self.hands:
            if other not in self.silent:
                await self.report(other)
        await self.world.beat()
        await self.world.scheduler.expire()
        views = {one.id: one for one in await self.views()}
        for job in self.jobs:
            if node in job.parts:
                await self.lost_part(job, node, "killed")
            elif job.state is S.RESIZING and views[job.id].state is S.RECOVERING:
                job.state = S.RECOVERING  # it was to go there

    async def back(self, node: str) -> None:
        """The agent is heard of again: what it still runs, it is told to end; it has said so before it gets more."""
        if node not in self.silent:
            return
        self.silent.discard(node)
        await self.report(node)
        assert self.hands[node].runs == {}, "what it ran is over"
        await self.report(node)

    # Both.

    def by_id(self, job_id: str) -> Job:
        return next(one for one in self.jobs if one.id == job_id)

    async def picture(self) -> list[dict[str, Any]]:
        return [one.model_dump(mode="json", exclude={"cost"}) for one in await self.views()]

    async def compare(self) -> None:
        """The service says what the model says."""
        views = await self.views()
        assert [
            (
                one.id,
                one.name,
                one.state,
                one.generation,
                one.pinned_size,
                one.infrastructure_failures,
                one.user_errors,
            )
            for one in reversed(views)
        ] == [
            (one.id, one.name, one.state, one.generation, one.pinned, one.killed, one.failed)
            for one in self.jobs
        ]
        for name in {one.name for one in self.jobs}:
            job = self.called(name)
            assert job is not None
            assert (await self.world.job(name)).id == job.id

    async def history(self) -> None:
        """Every job was submitted once, granted slots once for each generation, and ended once."""
        for job in self.jobs:
            page = (
                await self.world.client.get(f"/api/v1/jobs/{job.id}/events", params={"limit": 500})
            ).json()
            kinds = Counter(one["kind"] for one in page["items"])
            assert kinds["submit"] == 1
            assert kinds["allocate"] == job.generation
            ends = kinds["succeed"] + kinds["give_up"] + kinds["vanish"]
            assert ends <= 1
            if job.state in {S.SUCCEEDED, S.FAILED}:
                assert ends == 1
