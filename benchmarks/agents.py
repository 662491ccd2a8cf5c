"""Many agents at one service, with a history of jobs, users who look, and three times as much of it.

    python -m benchmarks.agents --agents 5000 --json

`--replicas` API processes and one scheduler over the embedded PostgreSQL (with fsync) and Redis; the agents are simulated by one process
more (`benchmarks/agents_simulator.py`), all on this machine. Users have the last API for themselves, where there are several. After
the agents have joined and their jobs run:

- `--seconds` of steady load: `lag_p99_s` is how late a report that was due is answered, `command_ack_p99_s` the time from a command's
  row to its acknowledgement in the database, `round_s` the longest of the scheduler's rounds, `list_p99_ms` and `describe_p99_ms`
  what users wait.
- the same with everything three times as often: `overload_p99_ratio` is by how much the p99 of accepted requests grew, in the class
  (reports, reads, submits) where it grew most. What the service answered with 429 is counted in `rejected`.
- agents and scheduler ended: submits in turns with a bare handler (`benchmarks/api.py`) over the same, filled database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.agents_history import fill
from benchmarks.agents_machine import Usage, usage_of
from benchmarks.agents_users import Reads, Users
from benchmarks.api import bare_app, measure
from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from benchmarks.servers import TOKEN, api, connected, migrate, service_env
from headway.local.ports import free_port
from headway.local.postgres import EmbeddedPostgres
from headway.local.processes import read_pid_file
from headway.local.redis import EmbeddedRedis

SLOTS_PER_JOB = 5
SETTLE_S = 15.0
"""After the jobs run, before anything is measured: models and sizes settle."""
READS_PER_S = 20.0
OVER = 3.0
START_PATIENCE_S = 240.0
JOIN_PER_S = 250.0


class Simulator:
    """The process of the agents, and what it said last."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def since_last(self, pace: float, ends_per_s: int) -> dict[str, Any]:
        """What it measured since the last time; it goes on at this pace."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"pace": pace, "ends_per_s": ends_per_s}).encode() + b"\n")
        return await self.said()

    async def said(self) -> dict[str, Any]:
        """Its next line."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError("the simulator has ended; see its error above")
        said: dict[str, Any] = json.loads(line)
        return said


@asynccontextmanager
async def simulator(ports: Sequence[int], agents: int, jobs: int) -> AsyncIterator[Simulator]:
    """The process with its agents joined."""
    of_agents = ",".join(map(str, ports[:-1] or ports))
    arguments = [of_agents, str(ports[-1]), TOKEN, TOKEN, str(agents), str(jobs), str(JOIN_PER_S)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.agents_simulator", *arguments, stdin=pipe, stdout=pipe
    )
    try:
        found = Simulator(process)
        await found.said()
        yield found
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@dataclass(frozen=True)
class Phase:
    """What was measured during some seconds of load."""

    said: dict[str, Any]
    reads: Reads
    acks: dict[str, float | None]
    rounds: dict[str, float | None]
    events: dict[str, int]
    """How many of each kind the jobs had."""
    usage: dict[str, Any]


class Bench:
    """One service with its agents."""

    def __init__(self, url: str, users: Users, processes: dict[str, int], jobs: int) -> None:
        self._url = url
        self._users = users
        self._processes = processes
        self._jobs = jobs

    async def settle(self, agents: Simulator, settle_s: float) -> float:
        """Wait until the jobs run, and the service knows it. Returns the seconds that it took."""
        began_s = time.monotonic()
        await agents.since_last(1.0, 0)
        while (await self._one(_RUNNING))["jobs"] < self._jobs:
            if time.monotonic() - began_s > START_PATIENCE_S:
                raise RuntimeError(f"{self._jobs} jobs do not run after {START_PATIENCE_S:.0f} s")
            await asyncio.sleep(1.0)
        took_s = time.monotonic() - began_s
        await agents.since_last(1.0, self._ends_per_s(1.0))
        await self._users.read(settle_s, READS_PER_S)
        return took_s

    def _ends_per_s(self, pace: float) -> int:
        return max(1, round(pace * self._jobs / 200))

    async def phase(self, agents: Simulator, seconds: float, pace: float) -> Phase:
        """So many seconds of load, at so many times the usual pace."""
        ends = self._ends_per_s(pace)
        await agents.since_last(pace, ends)
        began, before = datetime.now(UTC), usage_of(self._processes)
        reads = await self._users.read(seconds, pace * READS_PER_S)
        said = await agents.since_last(1.0, self._ends_per_s(1.0))
        ended, after = datetime.now(UTC), usage_of(self._processes)
        acks = await self._one(_ACKS, began, ended)
        rounds = await self._one(_ROUNDS, began, ended)
        events = (await self._one(_EVENTS, began, ended))["events"]
        return Phase(said, reads, acks, rounds, json.loads(events), _between(before, after))

    async def _one(self, query: str, *arguments: Any) -> dict[str, Any]:
        async with connected(self._url) as connection:
            row = await connection.fetchrow(query, *arguments)
        return {} if row is None else dict(row)


_ACKS = """
    SELECT count(*) AS commands, count(*) FILTER (WHERE acknowledged_at IS NULL) AS unacknowledged,
           percentile_disc(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM acknowledged_at - created_at)::float) AS p99_s,
           percentile_disc(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM acknowledged_at - created_at)::float) AS p50_s
    FROM commands WHERE created_at BETWEEN $1 AND $2::timestamptz - interval '5 s'
"""
_RUNNING = "SELECT count(*) AS jobs FROM jobs WHERE started_at IS NOT NULL AND finished_at IS NULL"
_ROUNDS = """
    SELECT count(*) AS rounds, max(took_s) AS worst_s, percentile_disc(0.5) WITHIN GROUP (ORDER BY took_s) AS p50_s
    FROM rounds WHERE at BETWEEN $1 AND $2
"""
_EVENTS = """
    SELECT coalesce(jsonb_object_agg(kind, number), '{}') AS events
    FROM (SELECT kind, count(*) AS number FROM events WHERE at BETWEEN $1 AND $2 GROUP BY kind) AS of_each
"""


def _between(before: dict[str, Usage], after: dict[str, Usage]) -> dict[str, Any]:
    return {
        name: {
            "cpu": round((now.cpu_s - before[name].cpu_s) / (now.at_s - before[name].at_s), 2),
            "mib": round(now.memory_bytes / 2**20),
        }
        for name, now in after.items()
    }


def figures(steady: Phase, over: Phase) -> dict[str, Any]:
    """The keys that goals are about, and how it came to them."""
    ratios = {
        "reports": _ratio(over.said["report_p99_s"], steady.said["report_p99_s"]),
        "reads": _ratio(over.reads.p99_s(), steady.reads.p99_s()),
        "submits": _ratio(over.said["submit_p99_s"], steady.said["submit_p99_s"]),
    }
    return {
        "lag_p99_s": steady.said["lag_p99_s"],
        "command_ack_p99_s": _rounded(steady.acks["p99_s"]),
        "round_s": _rounded(steady.rounds["worst_s"]),
        "list_p99_ms": _ms(steady.reads.p99_s("list", "walk")),
        "describe_p99_ms": _ms(steady.reads.p99_s("describe", "explain")),
        "overload_p99_ratio": max((one for one in ratios.values() if one is not None), default=None),
        "overload_p99_ratios": ratios,
        "steady": _shown(steady),
        "overload": _shown(over),
    }


def _shown(phase: Phase) -> dict[str, Any]:
    return {
        **phase.said,
        "reads_p99_s": phase.reads.p99_s(),
        "reads_rejected": phase.reads.rejected,
        "reads_failures": dict(phase.reads.failures),
        "acks": {name: _rounded(one) for name, one in phase.acks.items()},
        "rounds": {name: _rounded(one) for name, one in phase.rounds.items()},
        "events": phase.events,
        "usage": phase.usage,
    }


def _ratio(over: float | None, steady: float | None) -> float | None:
    return round(over / steady, 2) if over and steady else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _ms(value: float | None) -> float | None:
    return None if value is None else round(1000 * value, 1)


async def under_load(
    arguments: argparse.Namespace, ports: Sequence[int], url: str, processes: dict[str, int]
) -> dict[str, Any]:
    """Everything that needs agents."""
    jobs = arguments.jobs or max(1, arguments.agents // SLOTS_PER_JOB)
    users = Users(ports[-1], TOKEN, past=arguments.history - jobs)
    began_s = time.monotonic()
    async with simulator(ports, arguments.agents, jobs) as agents:
        join_s = time.monotonic() - began_s
        bench = Bench(url, users, {**processes, "simulator": agents.process.pid}, jobs)
        start_s = await bench.settle(agents, min(SETTLE_S, arguments.seconds))
        steady = await bench.phase(agents, arguments.seconds, 1.0)
        over = await bench.phase(agents, arguments.seconds / 2, OVER)
    return {
        "agents": arguments.agents,
        "replicas": arguments.replicas,
        "jobs": arguments.history,
        "running_jobs": jobs,
        **figures(steady, over),
        "join_s": round(join_s, 1),
        "start_s": round(start_s, 1),
    }


def run(arguments: argparse.Namespace, data: Path) -> dict[str, Any]:
    """The whole, in a folder of its own."""
    jobs = arguments.jobs or max(1, arguments.agents // SLOTS_PER_JOB)
    with EmbeddedPostgres(data / "postgres") as postgres, EmbeddedRedis(data / "redis") as redis:
        ports, bare_port = [free_port() for _ in range(arguments.replicas)], free_port()
        env = service_env(data, postgres, redis)
        migrate(env)
        asyncio.run(fill(postgres.url(), arguments.history - jobs))
        with ExitStack() as stack:
            apis = {
                f"api-{number}" if number else "api": stack.enter_context(api(env, port)).pid
                for number, port in enumerate(ports)
            }
            scheduler = subprocess.Popen(
                [sys.executable, "-m", "service", "scheduler"], env={**os.environ, **env}, stdout=sys.stderr
            )
            stack.callback(_end, scheduler)
            processes = {
                **apis,
                "scheduler": scheduler.pid,
                "postgres": postgres.pid or 0,
                "redis": read_pid_file(data / "redis" / "redis.pid") or 0,
            }
            result = asyncio.run(under_load(arguments, ports, postgres.url(), processes))
            _end(scheduler)
            turns, clients, count = (1, 16, 50) if arguments.quick else (3, 16, 1500)
            with bare_app(postgres, bare_port):
                submits = asyncio.run(measure(ports[-1], bare_port, turns, clients, count))
        return {**result, **{f"submit_{name}": value for name, value in submits.items()}}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def main() -> None:
    parser = benchmark_parser(__doc__, quick="fifty agents for a few seconds")
    parser.add_argument("--agents", type=int, default=5000)
    parser.add_argument("--jobs", type=int, help="that run; one for five agents if not given")
    parser.add_argument(
        "--history", type=int, default=10_000, help="jobs in the database, those that run included"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of steady load; half as many of overload"
    )
    parser.add_argument("--replicas", type=int, default=1, help="processes of the API")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.agents, arguments.jobs, arguments.history, arguments.seconds = 20, 4, 100, 4.0
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with temporary_folder() as folder:
        result = run(arguments, folder)
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
