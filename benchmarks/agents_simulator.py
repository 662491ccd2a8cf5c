"""Simulated agents in one process: they speak the real protocol and start no ranks.

    python -m benchmarks.agents_simulator PORT[,PORT...] USERS_PORT JOIN_TOKEN API_TOKEN AGENTS JOBS JOIN_PER_S

Each joins with one slot, reads its command stream, acknowledges, and says that ranks have started, trained and ended, and when
it is due, that it is there. `JOBS` jobs are kept live: one ends every now and then and another one is submitted.

Its own pace is set from standard input, one JSON object a line: `{"pace": 3, "ends_per_s": 1}`. To each it prints, as one line, what
it has measured since the line before. At the end of its input it ends.
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
    """An elastic job on 1 to 8 slots, of one of 20 classes."""
    return {
        "name": f"load-{number}",
        "run": f"python train_{rng.randrange(20)}.py",
        "elastic": {"min": 1, "max": rng.choice((2, 4, 8))},
        "batch": {"global": 256},
    }


class Jobs:
    """Keeps so many jobs live: submits, and ends those that have all their ranks."""

    def __init__(self, shared: Shared, port: int, api_token: str, count: int) -> None:
        self._shared = shared
        self._port = port
        self._token = api_token
        self._rng = random.Random(7)
        self._to_submit = asyncio.Queue[int]()
        self._next = 0
        for _ in range(count):
            self._another()

    def _another(self) -> None:
        self._to_submit.put_nowait(self._next)
        self._next += 1

    async def submit(self) -> None:
        """Submit what is to be submitted, for ever."""
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
        """End jobs at the pace that was asked for."""
        while True:
            await asyncio.sleep(1.0)
            whole = [one for one, ranks in self._shared.ranks.items() if ranks.complete]
            for one in self._rng.sample(whole, min(len(whole), self._shared.ends_per_s)):
                self._shared.end(one)
                self._another()


async def run(argv: list[str]) -> None:
    """Join, then work until standard input ends."""
    ports, users_port, join_token, api_token, agents, jobs, join_per_s = argv
    shared = Shared([int(port) for port in ports.split(",")], join_token, Load())
    hosts = [Agent(shared, number) for number in range(int(agents))]
    tasks = set[asyncio.Task[None]]()
    for number, host in enumerate(hosts):
        if number % 20 == 19:
            await asyncio.sleep(20 / float(join_per_s))
        tasks.update(asyncio.create_task(work) for work in (host.report(), host.obey()))
    await asyncio.gather(*(host.joined for host in hosts))
    keeper = Jobs(shared, int(users_port), api_token, int(jobs))
    tasks.update(asyncio.create_task(keeper.submit()) for _ in range(_SUBMIT_CLIENTS))
    tasks.add(asyncio.create_task(keeper.end()))
    say({"joined": len(hosts)})
    await _obey_lines(shared)
    for task in tasks:
        task.cancel()


async def _obey_lines(shared: Shared) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    while line := await reader.readline():
        wish = json.loads(line)
        seen, shared.load = shared.load, Load()
        seconds, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        running = Counter(ranks.complete for ranks in shared.ranks.values())
        say({**seen.figures(seconds), "cpu": round(cpu_s / seconds, 3), "running": running[True]})
        shared.pace, shared.ends_per_s = float(wish["pace"]), int(wish["ends_per_s"])
        began_s, began_cpu_s = time.monotonic(), time.process_time()


def say(figures: dict[str, Any]) -> None:
    """One line for whoever drives this."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(sys.argv[1:]))
