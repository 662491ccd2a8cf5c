"""The real service over real Postgres and Redis, driven step by step, with scripted agents."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest_asyncio
from redis.asyncio import Redis
from sqlalchemy import text

from headway.contract.agents import COMMAND_FIELD, COMMANDS, AnyCommand, JoinReply, ReportReply, RunCommand
from headway.contract.views.jobs import JobView
from headway.contract.views.sweeps import SweepView
from headway.tracing import Sends
from service.adapters.postgres.engine.clock import DatabaseClock
from service.adapters.redis import RedisCommandQueue, connect
from service.adapters.simulator import ProcessSimulator
from service.domain.policies.registry import POLICIES, Policies
from service.loops.scheduler import Intervals, Scheduler
from service.main import Service
from service.settings import Settings
from service.usecases.ports.rental import Provider
from tests.waiting import until

TOKEN = "api-token"
JOIN_TOKEN = "join-token"
_numbers = itertools.count()


def make_settings(database_url: str, redis_url: str, storage_url: str, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "database_url": database_url,
        "redis_url": redis_url,
        "storage_url": storage_url,
        "api_token": TOKEN,
        "join_token": JOIN_TOKEN,
        "agent_redis_url": redis_url,
        "host": "127.0.0.1",
        "port": 0,
        "lease_s": 60.0,
        "silence_s": 15.0,
        "max_bundle_bytes": 1 << 20,
        "keep_days": 90,
    }
    return Settings(**{**values, **changes})


@dataclass
class Agent:
    """An agent that does what the test says: it reports by HTTP and reads its Redis stream."""

    client: httpx.AsyncClient
    redis: Redis
    name: str
    joined: JoinReply
    clock: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    seen: set[str] = field(default_factory=set)
    unacknowledged: list[str] = field(default_factory=list)

    async def commands(self) -> list[AnyCommand]:
        """Commands that are new since the last call; acknowledged with the next report."""
        entries = await self.redis.xrange(self.joined.stream)
        parsed = [COMMANDS.validate_json(fields[COMMAND_FIELD.encode()]) for _, fields in entries]
        # The same one may be there twice: what was not acknowledged in time is pushed again.
        fresh = list({one.command_id: one for one in parsed if one.command_id not in self.seen}.values())
        self.seen |= {one.command_id for one in fresh}
        self.unacknowledged += [one.command_id for one in fresh]
        return fresh

    async def report(
        self,
        *entries: dict[str, Any],
        holding: list[dict[str, Any]] | None = None,
        slots: list[dict[str, Any]] | None = None,
    ) -> ReportReply:
        stamped = [
            {"sequence": next(self.clock), "at": datetime.now(UTC).isoformat(), **entry} for entry in entries
        ]
        return await self.send(stamped, holding or [], slots or [])

    async def send(
        self,
        entries: list[dict[str, Any]],
        holding: list[dict[str, Any]],
        slots: list[dict[str, Any]] | None = None,
    ) -> ReportReply:
        """Send a report, as often as the service asks to try again: on a busy machine it sheds load."""
        acknowledged, self.unacknowledged = self.unacknowledged, []
        report = {
            "instance": f"instance-{self.name}",
            "acknowledged": acknowledged,
            "entries": entries,
            "holding": holding,
            "slots": slots or [],
        }
        answers: list[httpx.Response] = []

        async def taken_in() -> bool:
            answers.append(
                await self.client.post(
                    f"/api/v1/agents/{self.joined.node_id}/reports",
                    json=report,
                    headers={"Authorization": f"Bearer {self.joined.node_token}"},
                )
            )
            return answers[-1].status_code != HTTPStatus.TOO_MANY_REQUESTS

        await until(taken_in)
        assert answers[-1].status_code == HTTPStatus.OK, answers[-1].text
        return ReportReply.model_validate_json(answers[-1].content)


@dataclass
class Clock:
    """Real time, and what tests skip of it."""

    skipped: timedelta = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.skipped


@dataclass
class Harness:
    """The service's parts, and what tests do with them."""

    service: Service
    scheduler: Scheduler
    client: httpx.AsyncClient
    clock: Clock

    async def turn(self) -> None:
        """One round, then delivery: what the loops do by themselves."""
        await self.scheduler.round()
        await self.scheduler.deliver()

    async def join(
        self,
        name: str = "alpha",
        slots: int = 2,
        kind: str = "cpu",
        labels: Mapping[str, str] = MappingProxyType({}),
        host: Mapping[str, Any] | None = None,
    ) -> Agent:
        response = await self.client.post(
            "/api/v1/agents",
            json={**join_body(name, slots, kind), "labels": dict(labels), "host": host},
            headers={"Authorization": f"Bearer {JOIN_TOKEN}"},
        )
        assert response.status_code == 201, response.text
        joined = JoinReply.model_validate_json(response.content)
        return Agent(self.client, self.service.redis, name, joined)

    async def submit(self, name: str = "job", **spec: Any) -> JobView:
        response = await self.client.post("/api/v1/jobs", json={"name": name, "run": "python -V", **spec})
        assert response.status_code == 201, response.text
        return JobView.model_validate_json(response.content)

    async def submit_sweep(self, name: str, parameters: dict[str, Any], **spec: Any) -> SweepView:
        sweep = {"parameters": parameters, **spec.pop("sweep", {})}
        body = {"name": name, "run": "python -V", "sweep": sweep, **spec}
        response = await self.client.post("/api/v1/sweeps", json=body)
        assert response.status_code == 201, response.text
        return SweepView.model_validate_json(response.content)

    async def job(self, job: str = "job") -> JobView:
        response = await self.client.get(f"/api/v1/jobs/{job}")
        assert response.status_code == 200, response.text
        return JobView.model_validate_json(response.content)

    async def post(self, path: str, body: Any = None) -> httpx.Response:
        return await self.client.post(f"/api/v1/{path}", json=body)


def join_body(name: str, slots: int = 2, kind: str = "cpu", instance: str | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "instance": instance or f"instance-{name}",
        "address": "127.0.0.1",
        "first_port": 20000,
        "last_port": 20063,
        "slots": [{"index": index, "device_kind": kind} for index in range(slots)],
        "agent_version": "0",
    }


class SkippingClock(DatabaseClock):
    """The database's time, and what tests skip of it."""

    def __init__(self, service: Service, clock: Clock) -> None:
        super().__init__(service.database.time)
        self._clock = clock

    def now(self) -> datetime:
        return super().now() + self._clock.skipped


@asynccontextmanager
async def harness_of(
    settings: Settings,
    *,
    api_skips: bool = False,
    spans: Sends | None = None,
    policies: Policies = POLICIES,
    providers: Sequence[Provider] = (),
) -> AsyncIterator[Harness]:
    """The service; with `api_skips`, what is skipped of time is skipped for its API too. `spans`: where its traces go."""
    service = Service(settings, providers, spans, policies)
    clock = Clock()
    if api_skips:
        service.clock = SkippingClock(service, clock)
    redis = connect(settings.redis_url)
    scheduler = Scheduler(
        transactions=service.database,
        queue=RedisCommandQueue(redis),
        access=service.queue_access,
        storage=service.storage,
        wake_ups=service.wake_ups,
        simulator=ProcessSimulator(300.0),
        launch=service.launch,
        intervals=Intervals(),
        now=clock.now,
        clock_s=time.perf_counter,
        usd_per_slot_h=settings.usd_per_slot_h,
        new_round_id=lambda: f"r{next(_numbers)}",
        policies=policies,
    )
    transport = httpx.ASGITransport(app=service.app(), raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        service.wake_ups.running(),
        httpx.AsyncClient(transport=transport, base_url="http://headway", headers=headers) as client,
    ):
        yield Harness(service, scheduler, client, clock)
    await redis.aclose()
    await service.close()


@pytest_asyncio.fixture
async def harness(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    """A service on a fresh database and an empty Redis."""
    async with harness_of(make_settings(database_url, redis_url, f"file://{tmp_path}/storage")) as made:
        yield made


async def like_the_first_node(harness: Harness, count: int, *, seen_later_s: int = 0) -> None:
    """So many more nodes, which were seen when the one that has joined was, or so much later."""
    columns = (
        "name, instance, token_sha256, state, wanted_state, message, address, first_port, last_port, slots, "
        "agent_version, joined_at"
    )
    statement = (
        f"INSERT INTO nodes (id, seen_at, {columns}) "
        f"SELECT 'n' || n, seen_at + interval '{seen_later_s} s', name || n, {columns.partition(', ')[2]} "
        f"FROM nodes, generate_series(1, {count}) AS n"
    )
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text(statement))


def run_of(commands: list[AnyCommand]) -> RunCommand:
    """The one run command among them."""
    (run,) = [one for one in commands if isinstance(one, RunCommand)]
    return run


def entry(
    kind: str, job: JobView | RunCommand, generation: int | None = None, **fields: Any
) -> dict[str, Any]:
    """A report entry about a job. A message is rank 0's unless it says otherwise."""
    job_id = job.job_id if isinstance(job, RunCommand) else job.id
    rank = {"rank": 0} if kind == "rank_message" else {}
    return {"kind": kind, "job_id": job_id, "generation": generation or job.generation, **rank, **fields}
