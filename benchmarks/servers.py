"""Servers that benchmarks start and load: databases, and processes of the service."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
import httpx

from headway.local.postgres import EmbeddedPostgres
from headway.local.redis import EmbeddedRedis

TOKEN = "benchmark"
START_PATIENCE_S = 120.0


def service_env(data: Path, postgres: EmbeddedPostgres, redis: EmbeddedRedis, **more: str) -> dict[str, str]:
    """Return the environment of a service without a rate limit: one token sends all requests of a benchmark."""
    return {
        "HEADWAY_DATABASE_URL": postgres.url(),
        "HEADWAY_REDIS_URL": redis.url(),
        "HEADWAY_STORAGE_URL": f"file://{data}/storage",
        "HEADWAY_API_TOKEN": TOKEN,
        "HEADWAY_JOIN_TOKEN": TOKEN,
        "HEADWAY_RATE_PER_S": "0",
        **more,
    }


def migrate(env: Mapping[str, str]) -> None:
    """Create the tables of the service."""
    subprocess.run([sys.executable, "-m", "service", "migrate"], env={**os.environ, **env}, check=True)


def api(env: Mapping[str, str], port: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run an API process of the service on a port."""
    environment = {**env, "HEADWAY_PORT": str(port)}
    return server(["-m", "service", "api"], environment, f"http://127.0.0.1:{port}/livez")


@contextmanager
def server(argv: list[str], env: Mapping[str, str], url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server process, and yield it once it answers at `url`.

    Raises:
        RuntimeError: the process does not answer within `START_PATIENCE_S`.
    """
    # Its log goes to standard error, because standard output is for the result only.
    process = subprocess.Popen([sys.executable, *argv], env={**os.environ, **env}, stdout=sys.stderr)
    try:
        deadline = time.monotonic() + START_PATIENCE_S
        while True:
            try:
                httpx.get(url)
                break
            except httpx.TransportError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{argv} does not answer at {url}") from None
                time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection to the database."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()
