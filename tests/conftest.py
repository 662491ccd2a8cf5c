"""Real servers for every test that asks for one: one of each per test process."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import redis as redis_client
import structlog
from hypothesis import settings

from headway.local.guard import Guard
from headway.local.postgres import EmbeddedPostgres
from headway.local.redis import EmbeddedRedis
from worker_agent.launcher import landlock

if TYPE_CHECKING:
    from tests.databases import Databases

if os.geteuid() == 0:
    # Scripts and tests of whole stacks meet in folders of pytest, which are root's alone. With one kind of isolation they do
    # as root what they do as anybody else; the agent's own tests try out all of them.
    os.environ.setdefault("HEADWAY_ISOLATION", "landlock" if landlock.version() else "none")
# Stores of ranks live in processes of tests too, as in an agent's: a lost answer of the name server must not stop them for 5 s.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
settings.register_profile(
    "headway",
    deadline=None,  # a busy machine is no failure
    derandomize="CI"
    in os.environ,  # there, red must mean that the change broke it; searching is for everywhere else
)
settings.load_profile("headway")
# As the programs log, who configure it at their start: rich's tracebacks, the default, take seconds for an error of SQLAlchemy.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_collection_finish() -> None:
    """Exclude all that was imported from garbage collection, as the service does: it lives until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guard]:
    """Ends what tests have started if they are killed."""
    with Guard() as guard:
        guard.watch(tmp_path_factory.getbasetemp())
        yield guard


@pytest.fixture(scope="session")
def postgres(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL without fsync; make a database of your own in it with `create_database`."""
    data = tmp_path_factory.mktemp("postgres")
    if not any(
        "databases" in one.fixturenames for one in request.session.items if isinstance(one, pytest.Function)
    ):
        with EmbeddedPostgres(data, durable=False) as server:
            yield server
        return
    from tests.databases import migrated_server  # noqa: PLC0415 - only these tests pay for it

    own = tmp_path_factory.getbasetemp()
    with migrated_server(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own, data) as server:
        yield server


@pytest.fixture(scope="session")
def databases(postgres: EmbeddedPostgres) -> Iterator[Databases]:
    """Databases with the schema."""
    from tests.databases import TEMPLATE, Databases  # noqa: PLC0415 - only these tests pay for it

    with closing(Databases(postgres, TEMPLATE)) as made:
        yield made


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """URL of a database with the schema and nothing else."""
    with databases.borrow() as url:
        yield url


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A Redis server that the tests of this process share."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis: EmbeddedRedis) -> str:
    """URL of an empty Redis."""
    url = redis.url()
    with redis_client.Redis.from_url(url) as client:
        client.flushall()
    return url
