"""Daily work with a running service: messages of webhooks, jobs that start after others, and shells beside ranks.

    python -m benchmarks.week --json

A scheduler and an API process run over an embedded PostgreSQL (with fsync) and Redis. `--jobs` jobs are submitted and
cancelled, one each `--pause-s` seconds, and every cancellation is an event with a message. The receiver checks nothing and
answers at once. `webhook_p99_s` is the 99th percentile of the seconds from the event, as its message says, to the arrival
of the first copy; the goal is at most 5. `webhooks_lost` counts events without a message within `--patience-s` seconds
after the last; the goal is 0. `webhooks_repeated` counts further copies.

Then a local cluster of one agent runs `--pairs` pairs of jobs, in which the second starts after the first with its files.
`after_s` is the longest time from the end of a first job to the grant of slots to its second, and `after_median_s` the
median; the goal is 1.

On the same cluster, `--shells` shells are opened beside a rank, each with a terminal. `shell_s` is the longest time from
the start of `headway shell` to the first prompt, `shell_median_s` the median, and `shell_echo_s` the median of the times from a
key to its echo; the goal of `shell_s` is at most 2.

Last, `--trials` trials of a sweep that ends trials early run in virtual time, once elastic and once with each fixed size
(`benchmarks.early_stops`). `asha_makespan_ratio` is the makespan of the elastic trials over that of the best fixed size; the
goal is at most 0.8.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import select
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from benchmarks.early_stops import SEEDS, TRIALS, figures
from benchmarks.servers import TOKEN, migrate, server, service_env
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from headway.local.ports import free_port
from headway.local.postgres import EmbeddedPostgres
from headway.local.redis import EmbeddedRedis
from headway.local.stack import LocalStack
from service.domain.policies.registry import DEFAULT, policy

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass
class Receiver:
    """An HTTP server that keeps the time at which each job's message arrived."""

    delays_s: dict[str, float] = field(default_factory=dict)
    """Seconds from the event to its first message, by job."""
    copies: int = 0
    expected: int | None = None
    """Number of jobs with a message, once it is known."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one message, and answer it."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = next(
            int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length")
        )
        body = json.loads(await reader.readexactly(size))
        delay_s = (datetime.now(UTC) - datetime.fromisoformat(body["timestamp"])).total_seconds()
        self.copies += 1
        self.delays_s.setdefault(body["data"]["name"], delay_s)
        if len(self.delays_s) == self.expected:
            self.complete.set()
        writer.write(_ANSWER)
        writer.close()


async def measure(port: int, jobs: int, pause_s: float, patience_s: float) -> dict[str, object]:
    """Cancel jobs, and return the figures about their messages."""
    receiver = Receiver()
    hooks = await asyncio.start_server(receiver.take, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{hooks.sockets[0].getsockname()[1]}/"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    names = [f"job-{number}" for number in range(jobs)]
    async with (
        hooks,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", headers=headers) as client,
    ):
        made = await client.post("/projects/default/webhooks", json={"name": "week", "url": address})
        made.raise_for_status()
        for name in names:
            (await client.post("/jobs", json={"name": name, "run": "python -V"})).raise_for_status()
            (await client.post(f"/jobs/{name}/cancel")).raise_for_status()
            await asyncio.sleep(pause_s)
        receiver.expected = jobs
        if len(receiver.delays_s) < jobs:
            with suppress(TimeoutError):
                await asyncio.wait_for(receiver.complete.wait(), patience_s)
    delays_s = sorted(receiver.delays_s.values())
    if not delays_s:
        raise RuntimeError(f"none of {jobs} messages arrived within {patience_s:g} s")
    return {
        "webhook_p99_s": round(delays_s[int(0.99 * len(delays_s))], 3),
        "webhook_median_s": round(statistics.median(delays_s), 3),
        "webhooks_lost": jobs - len(delays_s),
        "webhooks_repeated": receiver.copies - len(delays_s),
        "jobs": jobs,
    }


def after_s(client: Client, pair: int) -> float:
    """Run a job and one that starts after it. Return the seconds from the end of the first to the slots of the second."""
    run = 'echo "$HEADWAY_JOB_ID" > "$HEADWAY_OUTPUT_DIR/id"'
    first = client.submit(JobSpec.model_validate({"name": f"first-{pair}", "run": run}))
    read = f'test -s "$HEADWAY_AFTER_FIRST_{pair}/id"'
    second = client.submit(
        JobSpec.model_validate({"name": f"second-{pair}", "run": read, "after": [f"first-{pair}"]})
    )
    client.wait(second)
    ended_at = client.job(first).finished_at
    granted_at = next(one.at for one in client.events(second) if one.kind == "allocate")
    if ended_at is None:
        raise RuntimeError(f"{first.name} has not ended")
    return (granted_at - ended_at).total_seconds()


def _read_until(terminal: int, sign: bytes) -> None:
    """Read the terminal until it shows the sign, for at most a minute."""
    screen, until_s = b"", time.monotonic() + 60.0
    while sign not in screen:
        if not select.select([terminal], [], [], until_s - time.monotonic())[0]:
            raise RuntimeError(f"the shell shows no {sign!r}: {screen[-500:]!r}")
        screen += os.read(terminal, 1 << 16)


def shell_s(stack: LocalStack, job: str) -> tuple[float, float]:
    """Open a shell. Return the seconds to its prompt, and the seconds from a key to its echo."""
    ours, theirs = os.openpty()
    env = {**os.environ, "HEADWAY_URL": stack.url, "HEADWAY_TOKEN": stack.token, "TERM": "dumb"}
    began_s = time.monotonic()
    command = ["setsid", "--ctty", sys.executable, "-m", "headway.cli", "shell", job]
    with subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            _read_until(ours, b"# " if os.geteuid() == 0 else b"$ ")
            prompt_s = time.monotonic() - began_s
            typed_s = time.monotonic()
            os.write(ours, b"Q")
            _read_until(ours, b"Q")
        except RuntimeError:
            process.kill()
            raise
        echo_s = time.monotonic() - typed_s
        os.write(ours, b"\x15exit\r")
        with suppress(OSError):  # the terminal is closed
            _read_until(ours, b"\0")
        if process.wait() != 0:
            raise RuntimeError(f"the shell ended with {process.returncode}")
    os.close(ours)
    return prompt_s, echo_s


def shells(stack: LocalStack, client: Client, count: int) -> dict[str, object]:
    """Open shells beside the rank of a job, and return their figures."""
    job = client.submit(JobSpec.model_validate({"name": "shells", "run": "sleep 3600"}))
    while client.job(job).state is not JobState.RUNNING:
        time.sleep(0.1)
    taken = [shell_s(stack, job.name) for _ in range(count)]
    client.cancel(job, force=True)
    return {
        "shell_s": round(max(prompt_s for prompt_s, _ in taken), 3),
        "shell_median_s": round(statistics.median(prompt_s for prompt_s, _ in taken), 3),
        "shell_echo_s": round(statistics.median(echo_s for _, echo_s in taken), 3),
    }


def chains(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the pairs and the shells on a local cluster, and return their figures."""
    pairs = 2 if arguments.quick else arguments.pairs
    with temporary_folder() as data, LocalStack(data, agents=1, slots=2) as stack, stack.client() as client:
        after_s(client, 0)  # warm-up
        taken_s = [after_s(client, pair) for pair in range(1, pairs + 1)]
        opened = shells(stack, client, 2 if arguments.quick else arguments.shells)
    return {
        "after_s": round(max(taken_s), 3),
        "after_median_s": round(statistics.median(taken_s), 3),
        "pairs": pairs,
        **opened,
    }


def webhooks(arguments: argparse.Namespace) -> dict[str, object]:
    """Start the servers, and return the figures about webhooks."""
    jobs = 10 if arguments.quick else arguments.jobs
    with (
        temporary_folder() as data,
        EmbeddedPostgres(data / "postgres") as postgres,
        EmbeddedRedis(data / "redis") as redis,
    ):
        env = service_env(
            data,
            postgres,
            redis,
            HEADWAY_SECRETS_KEY=secrets.token_hex(32),
            HEADWAY_WEBHOOK_NETWORKS="127.0.0.0/8",
        )
        migrate(env)
        port = free_port()
        environment = {**env, "HEADWAY_PORT": str(port)}
        with server(["-m", "service", "all"], environment, f"http://127.0.0.1:{port}/livez"):
            return asyncio.run(measure(port, jobs, arguments.pause_s, arguments.patience_s))


def main() -> None:
    parser = benchmark_parser(__doc__, quick="ten events, two pairs, two shells, one seed of trials")
    parser.add_argument("--jobs", type=int, default=300, help="number of events")
    parser.add_argument("--pause-s", type=float, default=0.05, help="seconds between two of them")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of jobs, one after the other")
    parser.add_argument("--shells", type=int, default=10, help="shells, one after the other")
    parser.add_argument("--trials", type=int, default=TRIALS, help="trials of a sweep, in virtual time")
    parser.add_argument("--patience-s", type=float, default=60.0, help="wait for the last messages")
    arguments = parser.parse_args()
    seeds = SEEDS[:1] if arguments.quick else SEEDS
    trials = figures(policy(DEFAULT), trials=arguments.trials, seeds=seeds)
    show({**webhooks(arguments), **chains(arguments), **trials}, arguments)


if __name__ == "__main__":
    run_benchmark(main)
