"""What it costs to know who asks: submits with tokens of users, beside submits with the service's own token, in one run.

    python -m benchmarks.auth --json

One API process over an embedded PostgreSQL (with fsync) is loaded in turns by `--clients` connections from this process. The
table holds `--users` users, each a member of a few projects and with a token; `--tokens` of them are used, one after another.
`p99_ratio` is the p99 of a submit with these over the p99 with the token of the service's settings, each over all its turns;
the goal is 1.10. `median_ratio` likewise.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
from functools import partial

import asyncpg

from benchmarks.api import TOKEN, Turn, a_job, load, server
from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from headway.local.ports import free_port
from headway.local.postgres import EmbeddedPostgres
from headway.local.redis import EmbeddedRedis
from service.usecases.identity.tokens import new_token
from service.usecases.nodes.join import digest_token

_PEOPLE = """
    INSERT INTO users (id, name, created_at)
        SELECT 'u' || n, 'user' || n, now() FROM generate_series(1, cardinality($1::text[])) AS n;
"""
_ROLES = """
    INSERT INTO members (user_id, project, role)
        SELECT id, project, 'user' FROM users, unnest(ARRAY['default', 'vision', 'speech']) AS project
"""
_TOKENS = """
    INSERT INTO tokens (id, sha256, name, user_id, created_by, created_at, expires_at)
        SELECT 't' || n, sha256, 'laptop', 'u' || n, 'user' || n, now(), now() + interval '1 day'
        FROM unnest($1::text[]) WITH ORDINALITY AS one (sha256, n)
"""


async def people(url: str, tokens: list[str]) -> None:
    """As many users as tokens, a token each."""
    connection = await asyncpg.connect(url)
    try:
        digests = [digest_token(one) for one in tokens]
        await connection.execute(_PEOPLE, digests)
        await connection.execute(_ROLES)
        await connection.execute(_TOKENS, digests)
        await connection.execute("ANALYZE")
    finally:
        await connection.close()


async def measure(port: int, tokens: list[str], turns: int, clients: int, count: int) -> dict[str, object]:
    """Take turns, so that what else happens on the machine hits both; the first turn of each warms up."""
    static: list[Turn] = []
    known: list[Turn] = []
    for turn in range(turns + 1):
        for kept, shown, name in ((static, [TOKEN], "s"), (known, tokens, "k")):
            kept.append(
                await load(
                    port,
                    "/api/v1/jobs",
                    partial(a_job, f"{name}-{turn}"),
                    clients,
                    count,
                    shown,
                )
            )
    found = {}
    for name, taken in (("static", static[1:]), ("tokens", known[1:])):
        latencies = sorted(one for turn in taken for one in turn.latencies_s)
        found[f"{name}_p99_ms"] = 1000 * latencies[int(0.99 * len(latencies))]
        found[f"{name}_median_ms"] = 1000 * statistics.median(latencies)
    return {
        "p99_ratio": round(found["tokens_p99_ms"] / found["static_p99_ms"], 3),
        "median_ratio": round(found["tokens_median_ms"] / found["static_median_ms"], 3),
        **{name: round(value, 2) for name, value in found.items()},
        "tokens": len(tokens),
        "submits": 2 * turns * count,
    }


def main() -> None:
    parser = benchmark_parser(__doc__, quick="few submits")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--count", type=int, default=1000, help="requests of a turn")
    parser.add_argument("--users", type=int, default=5000)
    parser.add_argument("--tokens", type=int, default=8, help="of these users, that are used")
    arguments = parser.parse_args()
    turns, count, users = (
        (1, 50, 50) if arguments.quick else (arguments.turns, arguments.count, arguments.users)
    )
    tokens = [new_token() for _ in range(max(users, arguments.tokens))]
    with (
        temporary_folder() as data,
        EmbeddedPostgres(data / "postgres") as postgres,
        EmbeddedRedis(data / "redis") as redis,
    ):
        port = free_port()
        service = {
            "HEADWAY_DATABASE_URL": postgres.url(),
            "HEADWAY_REDIS_URL": redis.url(),
            "HEADWAY_STORAGE_URL": f"file://{data}/storage",
            "HEADWAY_API_TOKEN": TOKEN,
            "HEADWAY_RATE_PER_S": "0",  # one token sends all that the service can take
            "HEADWAY_PORT": str(port),
        }
        subprocess.run(
            [sys.executable, "-m", "service", "migrate"], env={**os.environ, **service}, check=True
        )
        asyncio.run(people(postgres.url(), tokens))
        with server(["-m", "service", "api"], service, f"http://127.0.0.1:{port}/livez"):
            result = asyncio.run(
                measure(
                    port,
                    tokens[: arguments.tokens],
                    turns,
                    arguments.clients,
                    count,
                )
            )
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
