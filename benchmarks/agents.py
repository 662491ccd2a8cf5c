"""Load of many agents and of users on one service with a history of jobs, at the normal rate and at three times this rate.

    python -m benchmarks.agents --agents 5000 --json

`--replicas` API processes and one scheduler run over embedded PostgreSQL (with fsync) and Redis. One more process simulates
the agents (`benchmarks/agents_simulator.py`). All of them share this machine. With several APIs, the last one serves the users
alone. After the agents have joined and their jobs run:

- `--seconds` of steady load. `lag_p99_s`: time from when a report is due until it is answered. `command_ack_p99_s`: time from
  a command's row to its acknowledgement in the database. `round_s`: longest round of the scheduler. `list_p99_ms` and
  `describe_p99_ms`: latencies of users' requests.
- Half as many seconds of load at three times the rate. `overload_p99_ratio`: growth of the p99 of accepted requests, in the class (reports,
  reads, submits) that grew most. `rejected` counts the requests that the service answered with 429.
- After the agents and the scheduler have stopped: submits to the service and, in turns, to a bare handler
  (`benchmarks/bare_app.py`) over the same filled database.
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
"""Seconds from when the jobs run until the measurement, in which models and sizes settle."""
READS_PER_S = 20.0
OVER = 3.0
START_PATIENCE_S = 240.0
JOIN_PER_S = 250.0


class Simulator:
    """Process that simulates the agents."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def since_last(self, pace: float, ends_per_s: int) -> dict[str, Any]:
        """Return the figures since the last call, and continue at this pace."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"pace": pace, "ends_per_s": ends_per_s}).encode() + b"\n")
        return await self.read_line()

    async def read_line(self) -> dict[str, Any]:
        """Return the next line of the simulator.

        Raises:
            RuntimeError: the simulator has ended.
        """
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError("the simulator has ended; see its error above")
        fields: dict[str, Any] = json.loads(line)
        return fields


@asynccontextmanager
async def simulator(ports: Sequence[int], agents: int, jobs: int) -> AsyncIterator[Simulator]:
    """Yield the simulator once its agents have joined."""
    agent_ports = ",".join(map(str, ports[:-1] or ports))
    arguments = [agent_ports, str(ports[-1]), TOKEN, TOKEN, str(agents), str(jobs), str(JOIN_PER_S)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.agents_simulator", *arguments, stdin=pipe, stdout=pipe
    )
    try:
        started = Simulator(process)
        await started.read_line()
        yield started
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@dataclass(frozen=True)
class Phase:
    """Measurements of a period of load."""

    simulator: dict[str, Any]
    reads: Reads
    acks: dict[str, float | None]
    rounds: dict[str, float | None]
    events: dict[str, int]
    """Number of job events by kind."""
    usage: dict[str, Any]


class Bench:
    """Service with simulated agents and users."""

    def __init__(self, url: str, users: Users, processes: dict[str, int], jobs: int) -> None:
        self._url = url
        self._users = users
        self._processes = processes
        self._jobs = jobs

    async def settle(self, agents: Simulator, settle_s: float) -> float:
        """Wait until all jobs run according to the service, and return the seconds that this took.

        Raises:
            RuntimeError: the jobs do not run within `START_PATIENCE_S`.
        """
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
        """Measure the load for `seconds`, at `pace` times the normal rate."""
        ends = self._ends_per_s(pace)
        await agents.since_last(pace, ends)
        began, before = datetime.now(UTC), usage_of(self._processes)
        reads = await self._users.read(seconds, pace * READS_PER_S)
        measured = await agents.since_last(1.0, self._ends_per_s(1.0))
        ended, after = datetime.now(UTC), usage_of(self._processes)
        acks = await self._one(_ACKS, began, ended)
        rounds = await self._one(_ROUNDS, began, ended)
        events = (await self._one(_EVENTS, began, ended))["events"]
        return Phase(measured, reads, acks, rounds, json.loads(events), _usage_between(before, after))

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


def _usage_between(before: dict[str, Usage], after: dict[str, Usage]) -> dict[str, Any]:
    return {
        name: {
            "cpu": round((now.cpu_s - before[name].cpu_s) / (now.at_s - before[name].at_s), 2),
            "mib": round(now.memory_bytes / 2**20),
        }
        for name, now in after.items()
    }


def figures(steady: Phase, over: Phase) -> dict[str, Any]:
    """Return the figures that have goals, and the measurements from which they follow."""
    ratios = {
        "reports": _ratio(over.simulator["report_p99_s"], steady.simulator["report_p99_s"]),
        "reads": _ratio(over.reads.p99_s(), steady.reads.p99_s()),
        "submits": _ratio(over.simulator["submit_p99_s"], steady.simulator["submit_p99_s"]),
    }
    return {
        "lag_p99_s": steady.simulator["lag_p99_s"],
        "command_ack_p99_s": _rounded(steady.acks["p99_s"]),
        "round_s": _rounded(steady.rounds["worst_s"]),
        "list_p99_ms": _ms(steady.reads.p99_s("list", "walk")),
        "describe_p99_ms": _ms(steady.reads.p99_s("describe", "explain")),
        "overload_p99_ratio": max((one for one in ratios.values() if one is not None), default=None),
        "overload_p99_ratios": ratios,
        "steady": _phase_figures(steady),
        "overload": _phase_figures(over),
    }


def _phase_figures(phase: Phase) -> dict[str, Any]:
    return {
        **phase.simulator,
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
    """Measure both periods of load, and return the figures."""
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
    """Run the benchmark with its data in this folder, and return the result."""
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
    parser.add_argument("--jobs", type=int, help="running jobs; default: one for five agents")
    parser.add_argument(
        "--history", type=int, default=10_000, help="jobs in the database, including the running ones"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="duration of the steady load; overload takes half as long"
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
