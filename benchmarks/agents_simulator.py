"""Simulated agents in one process, which use the real protocol but start no ranks.

    python -m benchmarks.agents_simulator PORT[,PORT...] USERS_PORT JOIN_TOKEN API_TOKEN AGENTS JOBS JOIN_PER_S

Each agent joins with one slot, reads and acknowledges its commands, and reports that ranks started, trained and ended. `JOBS`
jobs are kept live: when one ends, another one is submitted.

Standard input sets the pace, one JSON object a line: `{"pace": 3, "ends_per_s": 1}`. The simulator answers each line with one
line of measurements since the previous one. It ends at the end of its input.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from collections import Counter
from typing import Any

import uvloop

from benchmarks.agents_host import Agent, Load, Shared
from benchmarks.agents_wire import Connection

_SUBMIT_CLIENTS = 4


def job(number: int, rng: random.Random) -> dict[str, Any]:
    """Return the job file of an elastic job on 1 to 8 slots, of one of 20 classes."""
    return {
        "name": f"load-{number}",
        "run": f"python train_{rng.randrange(20)}.py",
        "elastic": {"min": 1, "max": rng.choice((2, 4, 8))},
        "batch": {"global": 256},
    }


class Jobs:
    """Supply of live jobs: for each job that it ends, it submits another one."""

    def __init__(self, shared: Shared, port: int, api_token: str, count: int) -> None:
        self._shared = shared
        self._port = port
        self._token = api_token
        self._rng = random.Random(7)
        self._to_submit = asyncio.Queue[int]()
        self._next = 0
        for _ in range(count):
            self._queue_next()

    def _queue_next(self) -> None:
        self._to_submit.put_nowait(self._next)
        self._next += 1

    async def submit(self) -> None:
        """Submit the queued jobs without end."""
        connection = Connection(self._port)
        while True:
            number = await self._to_submit.get()
            body = json.dumps(job(number, self._rng)).encode()
            while True:
                began_s = time.monotonic()
                try:
                    answer = await connection.send("POST", "/api/v1/jobs", self._token, body)
                except (OSError, EOFError):
                    self._shared.load.failures["submit: no answer"] += 1
                    await asyncio.sleep(0.5)
                    continue
                if answer.status == 201:
                    self._shared.load.submits_s.append(time.monotonic() - began_s)
                    break
                self._shared.load.failures[f"submit: {answer.status}"] += 1
                await asyncio.sleep(max(0.5, answer.retry_after_s) * self._rng.uniform(1.0, 1.5))

    async def end(self) -> None:
        """End jobs whose ranks have all started, at the requested rate."""
        while True:
            await asyncio.sleep(1.0)
            complete = [one for one, ranks in self._shared.ranks.items() if ranks.complete]
            for one in self._rng.sample(complete, min(len(complete), self._shared.ends_per_s)):
                self._shared.end(one)
                self._queue_next()


async def run(argv: list[str]) -> None:
    """Join all agents, then simulate until standard input ends."""
    ports, users_port, join_token, api_token, agents, jobs, join_per_s = argv
    shared = Shared([int(port) for port in ports.split(",")], join_token, Load())
    hosts = [Agent(shared, number) for number in range(int(agents))]
    tasks = set[asyncio.Task[None]]()
    for number, host in enumerate(hosts):
        if number % 20 == 19:
            await asyncio.sleep(20 / float(join_per_s))
        tasks.update(asyncio.create_task(work) for work in (host.report(), host.read_commands()))
    await asyncio.gather(*(host.joined for host in hosts))
    keeper = Jobs(shared, int(users_port), api_token, int(jobs))
    tasks.update(asyncio.create_task(keeper.submit()) for _ in range(_SUBMIT_CLIENTS))
    tasks.add(asyncio.create_task(keeper.end()))
    write_line({"joined": len(hosts)})
    await _answer_lines(shared)
    for task in tasks:
        task.cancel()


async def _answer_lines(shared: Shared) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    while line := await reader.readline():
        settings = json.loads(line)
        measured, shared.load = shared.load, Load()
        seconds, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        running = Counter(ranks.complete for ranks in shared.ranks.values())
        write_line({**measured.figures(seconds), "cpu": round(cpu_s / seconds, 3), "running": running[True]})
        shared.pace, shared.ends_per_s = float(settings["pace"]), int(settings["ends_per_s"])
        began_s, began_cpu_s = time.monotonic(), time.process_time()


def write_line(figures: dict[str, Any]) -> None:
    """Write one line for the driver."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(sys.argv[1:]))
