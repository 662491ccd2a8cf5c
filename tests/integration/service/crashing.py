"""A service that dies at any step of its work, and callers that ask again, as clients, agents and loops really do.

Steps are where a process may end: before and after each commit, and after everything that is done outside of
transactions (pushing a command, storing or deleting an object, asking a provider). Whoever waits for an answer then hears
none. No wake-up is heard here: what a crash loses of them is lost always.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from headway.contract.views.jobs import JobView
from service.api.app import create_app
from service.loops.scheduler import Scheduler
from service.usecases.ports.rounds import CommandQueue, Delivery, PendingCommand
from service.usecases.ports.storage import Stored, StoredObjects
from service.usecases.ports.transactions import Transaction, Transactions
from tests.integration.service.cloud import Crash
from tests.integration.service.conftest import TOKEN, Clock, Harness

START = datetime(2026, 3, 10, 12, tzinfo=UTC)
PUSHED_AGAIN_S = 6.0
"""After so long commands that were marked as pushed, and were not, are due again."""
MOST_ATTEMPTS = 400

Done = TypeVar("Done")


@dataclass
class Life:
    """The rest of a process's life, in steps."""

    steps_left: float
    over: bool = False

    def step(self) -> None:
        if self.steps_left < 1:
            self.over = True
            raise Crash
        self.steps_left -= 1


class Lives(Protocol):
    """How long each process lives."""

    def begin(self, attempt: int) -> Life:
        """The process that an action is begun by for the `attempt`-th time, counted from 0."""
        ...


class EveryStep:
    """Every action meets a death at its first step, then, begun anew, at its second, and so on, until it survives."""

    def begin(self, attempt: int) -> Life:
        return Life(attempt)


class Drawn:
    """Each process lives for the next of so many steps, whatever it does meanwhile; the last one lives for ever."""

    def __init__(self, steps: Iterable[int] = ()) -> None:
        self._steps = iter(steps)
        self._life = Life(next(self._steps, math.inf))

    def begin(self, attempt: int) -> Life:
        if self._life.over:
            self._life = Life(next(self._steps, math.inf))
        return self._life


class Mortal:
    """Whoever does the work now, and how an action is begun anew when they die."""

    def __init__(self, clock: Clock, lives: Lives) -> None:
        self.clock = clock
        self.lives = lives
        self.crashes = 0
        self.steps = 0
        self._life = Life(math.inf)
        self._action: asyncio.Future[Any] | None = None
        self.forget: list[Callable[[], None]] = []
        """Functions to call when a process dies, since its memory goes with it."""

    def step(self) -> None:
        self.steps += 1
        try:
            self._life.step()
        except Crash:
            # Some task of the process met the death: whoever waits for it dies as well.
            if self._action is not None and asyncio.current_task() is not self._action:
                self._action.cancel()
            raise

    async def persist(self, action: Callable[[], Awaitable[Done]], restart_s: float = 0.0) -> Done:
        """Repeat the action, each time `restart_s` later, until no process dies in it; return its result."""
        for attempt in range(MOST_ATTEMPTS):
            self._life = self.lives.begin(attempt)
            others = asyncio.all_tasks()
            self._action = asyncio.ensure_future(action())
            with suppress(Crash, asyncio.CancelledError):
                done = await self._action
                if not self._life.over:
                    return done
            assert self._life.over, "cancelled by somebody else"
            self.crashes += 1
            await _end(asyncio.all_tasks() - others)
            for one in self.forget:
                one()
            self.clock.skipped += timedelta(seconds=restart_s)
        raise AssertionError(f"nothing comes of it, however often it is begun: {action}")


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class MortalTransactions:
    """Implements `Transactions`."""

    real: Transactions
    mortal: Mortal

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Transaction]:
        async with self.real.begin() as tx:
            yield tx
            self.mortal.step()
        self.mortal.step()


@dataclass
class MortalQueue:
    """Implements `CommandQueue`; a delivery gets through as a whole, whether or not its process hears of that."""

    real: CommandQueue
    mortal: Mortal

    async def latest(self) -> Delivery | None:
        return await self.real.latest()

    async def push(self, commands: Sequence[PendingCommand], delivery: Delivery) -> bool:
        pushed = await self.real.push(commands, delivery)
        self.mortal.step()
        return pushed

    async def empty(self, latest: int | None = None) -> int | None:
        number = await self.real.empty(latest)
        self.mortal.step()
        return number


@dataclass
class MortalStorage:
    """Implements `Storage`, and whatever else storage can do."""

    real: StoredObjects
    mortal: Mortal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def put(self, key: str, data: bytes) -> None:
        await self.real.put(key, data)
        self.mortal.step()

    async def get(self, key: str) -> bytes:
        return await self.real.get(key)

    async def entries(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Stored]:
        async for stored in self.real.entries(prefix, after=after):
            yield stored

    async def delete(self, key: str) -> None:
        await self.real.delete(key)
        self.mortal.step()


@dataclass
class AskingAgain(httpx.AsyncBaseTransport):
    """A way to the API for callers that send the same request until they hear an answer."""

    real: httpx.ASGITransport
    mortal: Mortal

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        response = await self.mortal.persist(lambda: self.real.handle_async_request(request))
        assert response.status_code < 500, f"{request.method} {request.url}: {response.status_code}"
        return response


@dataclass(slots=True, kw_only=True)
class Begun(Scheduler):
    """The loops, begun again whenever their process has died."""

    mortal: Mortal

    async def round(self) -> None:
        await self.mortal.persist(lambda: Scheduler.round(self))

    async def deliver(self) -> None:
        await self.mortal.persist(lambda: Scheduler.deliver(self), PUSHED_AGAIN_S)

    async def simulate(self) -> None:
        await self.mortal.persist(lambda: Scheduler.simulate(self))

    async def expire(self) -> None:
        await self.mortal.persist(lambda: Scheduler.expire(self))

    async def accrue(self) -> None:
        await self.mortal.persist(lambda: Scheduler.accrue(self))

    async def retain(self) -> None:
        await self.mortal.persist(lambda: Scheduler.retain(self))


@dataclass
class GivenTime(Clock):
    """A clock that the test alone moves; no two readings of it are equal."""

    readings: int = 0

    def now(self) -> datetime:
        self.readings += 1
        return START + self.skipped + timedelta(milliseconds=self.readings)


@dataclass
class World(Harness):
    """A harness whose service dies, and whose callers do not mind."""

    mortal: Mortal = field(default_factory=lambda: Mortal(GivenTime(), Drawn()))
    transactions: Any = None
    keys: Any = field(default_factory=itertools.count)

    async def submit(self, name: str = "job", **spec: Any) -> JobView:
        body = {"name": name, "run": "python -V", **spec}
        headers = {"Idempotency-Key": f"key-{next(self.keys)}"}
        response = await self.client.post("/api/v1/jobs", json=body, headers=headers)
        assert response.status_code in {200, 201}, response.text
        return JobView.model_validate_json(response.content)

    def skip(self, seconds: float) -> None:
        self.clock.skipped += timedelta(seconds=seconds)

    async def beat(self) -> None:
        """An API has been up for long."""
        for ago_s in (600, 0):
            async with self.service.database.begin() as tx:
                at = self.clock.now() - timedelta(seconds=ago_s)
                await tx.nodes.beat("api", at, gap_s=3600.0)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        async with self.service.database.engine.connect() as connection:
            return [tuple(row) for row in (await connection.execute(text(query))).all()]


@asynccontextmanager
async def world_of(harness: Harness, lives: Lives) -> AsyncIterator[World]:
    """A world on the harness's stores, emptied before."""
    await _empty(harness)
    clock = GivenTime()
    mortal = Mortal(clock, lives)
    transactions = MortalTransactions(harness.service.database, mortal)
    storage = MortalStorage(harness.service.storage, mortal)
    context = harness.service.app().state.context
    changed = {
        "transactions": transactions,
        "storage": storage,
        "now": clock.now,
        "registry": CollectorRegistry(),
    }
    app = create_app(replace(context, **changed), nullcontext)
    shared = {one.name: getattr(harness.scheduler, one.name) for one in fields(Scheduler) if one.init}
    scheduler = Begun(
        **{
            **shared,
            "transactions": transactions,
            "queue": MortalQueue(harness.scheduler.queue, mortal),
            "storage": storage,
            "now": clock.now,
        },
        mortal=mortal,
    )
    transport = AskingAgain(httpx.ASGITransport(app=app, raise_app_exceptions=False), mortal)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://headway", headers=headers) as client:
        yield World(harness.service, scheduler, client, clock, mortal, transactions)


async def _empty(harness: Harness) -> None:
    async with harness.service.database.engine.begin() as connection:
        found = await connection.execute(
            text(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename NOT IN "
                "('alembic_version', 'audit', 'projects')"
            )
        )
        names = ", ".join(f'"{one}"' for one in found.scalars())
        await connection.execute(text(f"TRUNCATE {names} RESTART IDENTITY CASCADE"))
    await harness.service.redis.flushall()
    _empty_folder(Path(harness.service.settings.storage_url.removeprefix("file://")))


def _empty_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


async def outcome(world: World) -> str:
    """Return the state of everything as lines, without ids and times: it must not depend on who died."""
    queries = {
        "job": "SELECT name, state, reason, generation, newest_generation, attempt, preemptions,"
        " infrastructure_failures, user_errors, pinned_size, pause_requested, live,"
        " progress - CAST('{run_since,start_s,stop_s,imposed,imposed_s,losses}' AS text[]) FROM jobs ORDER BY name",
        "event": "SELECT jobs.name, events.kind, events.state, events.generation FROM events"
        " JOIN jobs ON jobs.id = job_id ORDER BY jobs.name, events.sequence",
        "exit": "SELECT jobs.name, e.generation, e.rank, e.exit_code, e.signal, e.stopped_by_agent FROM rank_exits e"
        " JOIN jobs ON jobs.id = job_id ORDER BY 1, 2, 3",
        "measured": "SELECT jobs.name, m.generation, m.global_batch, m.steps, m.step_s_sum FROM measurements m"
        " JOIN jobs ON jobs.id = job_id ORDER BY 1, 2, 3",
        "metric": "SELECT jobs.name, m.name, m.samples, m.value FROM metrics m JOIN jobs ON jobs.id = job_id"
        " ORDER BY 1, 3, 2",
        "node": "SELECT name, state, wanted_state, last_sequence FROM nodes ORDER BY name",
        "command": "SELECT nodes.name, jobs.name, c.generation, c.body->>'kind', c.acknowledged_at IS NOT NULL"
        " FROM commands c JOIN jobs ON jobs.id = job_id JOIN nodes ON nodes.id = node_id ORDER BY 1, 2, 3, 4",
        "grant": "SELECT nodes.name, slot, jobs.name, slot_grants.generation, released_at IS NULL FROM slot_grants"
        " JOIN jobs ON jobs.id = job_id JOIN nodes ON nodes.id = node_id ORDER BY 3, 4, 1, 2, 5",
        "budget": "SELECT name, usd, version FROM budgets ORDER BY name",
        "told": "SELECT split_part(subject, '/', 1), share FROM budget_notices ORDER BY 1, 2",
        "simulation": "SELECT status, result IS NULL FROM simulations ORDER BY created_at",
        "machine": "SELECT state, reason, external_id FROM machines ORDER BY requested_at",
        "bundle": "SELECT digest FROM bundles ORDER BY 1",
    }
    lines = [
        f"{name}: {json.dumps(row, sort_keys=True)}"
        for name, query in queries.items()
        for row in await world.rows(query)
    ]
    text = re.sub(r"spot-m?\d+", "spot", "\n".join(lines))  # a node that is named for its machine's id
    return text.replace(
        '"NO_PROGRESS"', '"COMPLETED"'
    )  # only a job that ends early is flagged, and a death takes time


async def check(world: World) -> None:
    """Check the invariants that hold whenever no process is at work."""
    assert (
        await world.rows(
            "SELECT node_id, slot FROM slot_grants WHERE released_at IS NULL GROUP BY 1, 2 HAVING count(*) > 1"
        )
        == []
    ), "a slot is granted twice"
    assert (
        await world.rows(
            "SELECT jobs.name, jobs.state FROM slot_grants JOIN jobs ON jobs.id = job_id WHERE released_at IS NULL"
            " AND jobs.state IN ('PENDING', 'PAUSED', 'SUCCEEDED', 'FAILED', 'CANCELLED')"
        )
        == []
    ), "a job that has nothing to run holds slots"
    assert (
        await world.rows(
            "SELECT jobs.name, jobs.state FROM jobs WHERE state IN ('STARTING', 'RUNNING', 'RESIZING', 'CANCELLING')"
            " AND NOT EXISTS (SELECT 1 FROM slot_grants WHERE job_id = jobs.id AND released_at IS NULL)"
        )
        == []
    ), "nobody will ever say that this job's processes are gone"
    assert (
        await world.rows(
            "SELECT leases.id FROM leases LEFT JOIN charges ON lease_id = leases.id GROUP BY leases.id HAVING"
            " abs(coalesce(sum(slot_us), 0) - jsonb_array_length(slots)"
            " * (extract(epoch FROM to_at) - extract(epoch FROM from_at)) * 1000000) > 1"
        )
        == []
    ), "the ledger does not add up"
