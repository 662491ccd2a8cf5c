"""What it costs to know who asks: submits with tokens of users, beside submits with the service's own token, in one run.

    python -m benchmarks.auth --json

One API process over an embedded PostgreSQL (with fsync) is loaded in turns by `--clients` connections from this process. The
table holds `--users` users, each a member of a few projects and with a token; `--tokens` of them are used, one after another.
`p99_ratio` is the p99 of a submit with these over the p99 with the token of the service's settings, each over all its turns;
the goal is 1.10. `median_ratio` likewise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import asyncpg

from benchmarks.api import TOKEN, Turn, a_job, load, server
from headway.local.ports import free_port
from headway.local.postgres import EmbeddedPostgres
from headway.local.redis import EmbeddedRedis
from service.usecases.join import digest_token
from service.usecases.tokens import new_token

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--count", type=int, default=1000, help="requests of a turn")
    parser.add_argument("--users", type=int, default=5000)
    parser.add_argument("--tokens", type=int, default=8, help="of these users, that are used")
    arguments = parser.parse_args()
    tokens = [new_token() for _ in range(max(arguments.users, arguments.tokens))]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        with EmbeddedPostgres(data / "postgres") as postgres, EmbeddedRedis(data / "redis") as redis:
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
                        arguments.turns,
                        arguments.clients,
                        arguments.count,
                    )
                )
    print(json.dumps(result) if arguments.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
