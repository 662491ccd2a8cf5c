"""Submits per second, compared with a bare FastAPI handler with one INSERT in the same run.

    python -m benchmarks.api --json

Both servers are one uvicorn process over the same embedded PostgreSQL (with fsync), loaded in turns by
`--clients` connections from this process. `submits_per_s` and `bare_per_s` are medians over the turns, and
`p99_ms` covers all submits. The benchmark checks that every submit is stored.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import httpx

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from benchmarks.servers import TOKEN, api, migrate, server, service_env
from headway.local.ports import free_port
from headway.local.postgres import EmbeddedPostgres
from headway.local.redis import EmbeddedRedis
from service.adapters.postgres.database import sqlalchemy_url


@dataclass(frozen=True)
class Turn:
    """One turn of load. Latencies in seconds."""

    per_s: float
    latencies_s: list[float]
    """Latencies of the accepted requests."""
    rejected: int


def a_job(prefix: str, number: int) -> dict[str, object]:
    """Return the job file with this number."""
    return {"name": f"{prefix}-{number}", "run": "python train.py"}


async def load(
    port: int,
    path: str,
    body: Callable[[int], dict[str, object]],
    clients: int,
    count: int,
    tokens: Sequence[str] = (TOKEN,),
) -> Turn:
    """Send `count` POST requests over `clients` keep-alive connections, with the tokens in turn."""
    numbers = iter(range(count))
    latencies: list[float] = []
    rejected = 0

    async def client() -> None:
        nonlocal rejected
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            data = json.dumps(body(number)).encode()
            head = (
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
                f"Authorization: Bearer {tokens[number % len(tokens)]}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            )
            while True:
                began = time.perf_counter()
                writer.write(head.encode() + data)
                answer = await reader.readuntil(b"\r\n\r\n")
                status = answer.split(b" ", 2)[1]
                length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                text = await reader.readexactly(length)
                if status == b"201":
                    latencies.append(time.perf_counter() - began)
                    break
                if status != b"429":
                    raise RuntimeError(f"{path} answered {status!r}: {text[:300]!r}")
                rejected += 1
                await asyncio.sleep(float(answer.lower().split(b"retry-after: ")[1].split(b"\r\n")[0]))
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Turn(count / (time.perf_counter() - began), latencies, rejected)


async def measure(
    service_port: int, bare_port: int, turns: int, clients: int, count: int
) -> dict[str, object]:
    """Load both servers in turns, so that other work of the machine affects both."""
    submits: list[Turn] = []
    bare: list[Turn] = []
    for turn in range(turns + 1):  # the first one warms both up
        bare.append(await load(bare_port, "/items", partial(a_job, "i"), clients, count))
        submits.append(await load(service_port, "/api/v1/jobs", partial(a_job, f"b-{turn}"), clients, count))
    submits, bare = submits[1:], bare[1:]
    latencies = sorted(one for turn in submits for one in turn.latencies_s)
    submits_per_s = statistics.median(turn.per_s for turn in submits)
    bare_per_s = statistics.median(turn.per_s for turn in bare)
    return {
        "submits_per_s": round(submits_per_s),
        "p99_ms": round(1000 * latencies[int(0.99 * len(latencies))], 1),
        "bare_per_s": round(bare_per_s),
        "ratio": round(submits_per_s / bare_per_s, 3),
        "clients": clients,
        "submits": turns * count,
        "rejected": sum(turn.rejected for turn in submits),
    }


def bare_app(postgres: EmbeddedPostgres, port: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run the bare handler on a port, with a database of its own."""
    env = {"BARE_DATABASE_URL": sqlalchemy_url(postgres.create_database("bare")), "BARE_PORT": str(port)}
    return server(["-m", "benchmarks.bare_app"], env, f"http://127.0.0.1:{port}/openapi.json")


def check_stored(port: int, expected: int) -> None:
    """Check that every acknowledged submit is in the listing.

    Raises:
        RuntimeError: a submit is missing.
    """
    count, cursor = 0, None
    with httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        while True:
            params = {"limit": 500, **({"cursor": cursor} if cursor else {})}
            page = client.get(f"http://127.0.0.1:{port}/api/v1/jobs", params=params, timeout=30).json()
            count += len(page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                break
    if count != expected:
        raise RuntimeError(f"{expected} submits were acknowledged and {count} are stored")


def main() -> None:
    parser = benchmark_parser(__doc__, quick="few submits")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--count", type=int, default=1500, help="requests of a turn")
    arguments = parser.parse_args()
    turns, count = (1, 50) if arguments.quick else (arguments.turns, arguments.count)
    with (
        temporary_folder() as data,
        EmbeddedPostgres(data / "postgres") as postgres,
        EmbeddedRedis(data / "redis") as redis,
    ):
        port, bare_port = free_port(), free_port()
        env = service_env(data, postgres, redis)
        migrate(env)
        with api(env, port), bare_app(postgres, bare_port):
            result = asyncio.run(measure(port, bare_port, turns, arguments.clients, count))
            check_stored(port, (turns + 1) * count)
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
