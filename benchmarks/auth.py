"""Cost of authenticating users: submits with users' tokens, compared with the service's own token in the same run.

    python -m benchmarks.auth --json

One API process over an embedded PostgreSQL (with fsync) is loaded in turns by `--clients` connections from this process. The
database has `--users` users, each with a token and roles in three projects. `--tokens` of these tokens are used in turn.
`p99_ratio` is the p99 latency of a submit with users' tokens over that with the token of the service's settings, each over
all turns; the goal is 1.10. `median_ratio` is the same ratio of the medians.
"""

from __future__ import annotations

import asyncio
import statistics
from functools import partial

from benchmarks.api import Turn, a_job, load
from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from benchmarks.servers import TOKEN, api, connected, migrate, service_env
from headway.local.ports import free_port
from headway.local.postgres import EmbeddedPostgres
from headway.local.redis import EmbeddedRedis
from service.usecases.identity.tokens import new_token
from service.usecases.nodes.join import digest_token

_USERS = """
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


async def create_users(url: str, tokens: list[str]) -> None:
    """Store a user for each token."""
    digests = [digest_token(one) for one in tokens]
    async with connected(url) as connection:
        await connection.execute(_USERS, digests)
        await connection.execute(_ROLES)
        await connection.execute(_TOKENS, digests)
        await connection.execute("ANALYZE")


async def measure(port: int, tokens: list[str], turns: int, clients: int, count: int) -> dict[str, object]:
    """Load the API with both kinds of token in turns, so that other work of the machine affects both.

    The first turn of each kind is a warm-up.
    """
    static: list[Turn] = []
    known: list[Turn] = []
    for turn in range(turns + 1):
        for kept, shown, name in ((static, [TOKEN], "s"), (known, tokens, "k")):
            job = partial(a_job, f"{name}-{turn}")
            kept.append(await load(port, "/api/v1/jobs", job, clients, count, shown))
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
    parser.add_argument("--tokens", type=int, default=8, help="users whose tokens are used")
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
        env = service_env(data, postgres, redis)
        migrate(env)
        asyncio.run(create_users(postgres.url(), tokens))
        with api(env, port):
            used = tokens[: arguments.tokens]
            result = asyncio.run(measure(port, used, turns, arguments.clients, count))
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
