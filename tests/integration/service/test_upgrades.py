"""Migrations run beside traffic, from every older revision with rows in it, and beside versions that came before."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, Table, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from headway.local.postgres import EmbeddedPostgres
from service.adapters.postgres.database import sqlalchemy_url
from service.adapters.postgres.engine.schema import (
    LOCK_TIMEOUT_S,
    alembic_config,
    current_revision,
    head_revision,
    migrate,
    schema_problem,
)
from service.domain.shared.errors import Unavailable
from tests.integration.service.conftest import Harness, entry, run_of
from tests.waiting import until

REVISIONS = sorted(one.revision for one in ScriptDirectory.from_config(alembic_config()).walk_revisions())
_numbers = itertools.count()

HANGS_S = 30.0
"""Far above what a write takes while others work on the machine, and below what somebody waits who is held up for good."""
ADDS_A_COLUMN = """
    op.add_column("jobs", sa.Column("colour", sa.Text(), nullable=True))
"""
BUILDS_AN_INDEX = """
    create_index_online(op, "ix_jobs_colour", "jobs", ["message"])
"""
ENDS_SUPPORT = """
    end_support_below(op, revision)
    op.drop_column("jobs", "message")
"""


@pytest_asyncio.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(sqlalchemy_url(database_url))
    yield made
    await made.dispose()


@pytest_asyncio.fixture
async def empty(postgres: EmbeddedPostgres) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(sqlalchemy_url(postgres.create_database(f"upgrades_{next(_numbers)}")))
    yield made
    await made.dispose()


def with_migrations(folder: Path, *bodies: str) -> Config:
    """The configuration of a later version, which has these migrations as well."""
    config = alembic_config()
    before = head_revision()
    for number, body in enumerate(bodies, start=9001):
        (folder / f"{number}_later.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n"
            "from service.adapters.postgres.engine.online import create_index_online, end_support_below\n"
            f'revision = "{number}"\ndown_revision = "{before}"\ndef upgrade():\n{body}\n'
        )
        before = str(number)
    ours = Path(config.get_main_option("script_location") or "") / "versions"
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", f"{ours}\n{folder}")
    return config


# With rows in it.

SPECIAL: dict[str, Any] = {
    "state": "RUNNING",
    "wanted_state": "READY",
    "jobs.progress": {},
    "jobs.spec": {"name": "n", "run": "x"},
    "jobs.allocation": {"x": [0]},
    "allocations.slots": {"x": [0]},
    "nodes.state": "READY",
    "nodes.slots": [{"index": 0, "device_kind": "cpu"}],
    "machines.state": "RUNNING",
    "simulations.status": "queued",
    "market": "on-demand",
    "period": "month",
    "id": 1,
}


def fill(connection: Connection) -> dict[str, int]:
    """A row in every table that takes one made up by type; how many each has."""
    metadata = MetaData()
    metadata.reflect(connection)
    counts = {}
    for table in metadata.sorted_tables:
        if table.name.startswith("alembic"):
            continue
        with contextmanager(_tried)(connection):
            connection.execute(table.insert().values(_row(table)))
        counts[table.name] = connection.execute(text(f"SELECT count(*) FROM {table.name}")).scalar_one()
    return counts


def _tried(connection: Connection) -> Iterator[None]:
    """Rows that this revision's own CHECKs refuse are left out: the tables that matter are asserted."""
    savepoint = connection.begin_nested()
    try:
        yield
    except Exception:  # noqa: BLE001
        savepoint.rollback()
    else:
        savepoint.commit()


def _row(table: Table) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column in table.columns:
        if column.nullable or column.server_default is not None or column.identity is not None:
            continue
        kind = column.type.python_type if not isinstance(column.type, JSONB) else dict
        made = {dict: {}, str: "x", int: 1, float: 1.0, bool: False}.get(kind)
        made = text("now()") if made is None else made
        default = SPECIAL.get(column.name, made) if kind is not str or column.name != "id" else made
        row[column.name] = SPECIAL.get(f"{table.name}.{column.name}", default)
    return row


@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_older_schema_with_rows_in_it_is_brought_up(empty: AsyncEngine, revision: str) -> None:
    await migrate(empty, revision)
    async with empty.begin() as connection:
        before = await connection.run_sync(fill)
    assert {name for name, count in before.items() if count} >= {
        "jobs", "nodes", "allocations", "slot_grants", "commands", "events", "rounds", "bundles",
    }  # fmt: skip
    await migrate(empty)
    assert await schema_problem(empty) is None
    async with empty.connect() as connection:
        for name, count in before.items():
            assert (await connection.execute(text(f"SELECT count(*) FROM {name}"))).scalar_one() >= count, (
                name
            )


# Beside traffic.


@asynccontextmanager
async def open_transaction(engine: AsyncEngine, statement: str) -> AsyncIterator[None]:
    """Somebody who has looked at a table and does not come to an end."""
    async with engine.connect() as connection:
        await connection.execute(text(statement))
        yield
        await connection.rollback()


async def longest_write_s(engine: AsyncEngine, stopped: asyncio.Event, written: list[float]) -> float:
    """Write to `jobs` again and again, each time in a transaction; the longest that one took."""
    while not stopped.is_set():
        began = time.monotonic()
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE jobs SET message = 'x'"))
        written.append(time.monotonic() - began)
        await asyncio.sleep(0.01)
    return max(written)


async def waits_for_jobs(engine: AsyncEngine) -> bool:
    query = "SELECT count(*) FROM pg_locks WHERE relation = 'jobs'::regclass AND NOT granted AND mode = 'AccessExclusiveLock'"
    async with engine.connect() as connection:
        return bool((await connection.execute(text(query))).scalar_one())


@pytest.mark.slow
async def test_a_long_transaction_does_not_make_a_migration_hold_up_traffic(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    config = with_migrations(tmp_path, ADDS_A_COLUMN)
    stopped, written = asyncio.Event(), list[float]()
    async with open_transaction(engine, "SELECT * FROM jobs"):
        migrating = asyncio.create_task(migrate(engine, config=config))
        await until(lambda: waits_for_jobs(engine))
        traffic = asyncio.create_task(longest_write_s(engine, stopped, written))
        for _ in range(2):  # it gives up its place, traffic passes, and it tries again
            passed = len(written)
            await until(lambda passed=passed: len(written) > passed + 2)  # type: ignore[misc]
            await until(lambda: waits_for_jobs(engine))
        assert not migrating.done()
    await asyncio.wait_for(migrating, 60)
    stopped.set()
    assert await traffic < LOCK_TIMEOUT_S + HANGS_S
    assert await current_revision(engine) == "9001"


async def test_a_migration_that_never_gets_its_lock_says_who_has_it(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    config = with_migrations(tmp_path, ADDS_A_COLUMN)
    before = await current_revision(engine)
    async with open_transaction(engine, "SELECT name FROM jobs"):
        with pytest.raises(Unavailable, match=r"open for \d+ s: SELECT name FROM jobs.*migrate` again"):
            await migrate(engine, config=config, patience_s=0.0)
    assert await current_revision(engine) == before
    await migrate(engine, config=config)
    assert await current_revision(engine) == "9001"


async def test_an_index_is_built_while_others_write(engine: AsyncEngine, tmp_path: Path) -> None:
    config = with_migrations(tmp_path, BUILDS_AN_INDEX)
    stopped, written = asyncio.Event(), list[float]()
    async with open_transaction(engine, "LOCK jobs IN ROW EXCLUSIVE MODE"):
        migrating = asyncio.create_task(migrate(engine, config=config))
        traffic = asyncio.create_task(longest_write_s(engine, stopped, written))
        await until(lambda: building(engine))
        passed = len(written)
        await until(lambda: len(written) > passed + 10)
        assert not migrating.done()
    await asyncio.wait_for(migrating, 60)
    stopped.set()
    assert await traffic < HANGS_S
    assert await index_is_valid(engine)


async def building(engine: AsyncEngine) -> bool:
    query = "SELECT count(*) FROM pg_stat_progress_create_index WHERE datname = current_database()"
    async with engine.connect() as connection:
        return bool((await connection.execute(text(query))).scalar_one())


async def index_is_valid(engine: AsyncEngine) -> bool:
    query = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('ix_jobs_colour')"
    async with engine.connect() as connection:
        return bool((await connection.execute(text(query))).scalar_one_or_none())


async def test_what_a_broken_off_index_leaves_is_built_anew(engine: AsyncEngine, tmp_path: Path) -> None:
    config = with_migrations(tmp_path, BUILDS_AN_INDEX)
    async with open_transaction(engine, "LOCK jobs IN ROW EXCLUSIVE MODE"):
        migrating = asyncio.create_task(migrate(engine, config=config))
        await until(lambda: building(engine))
        async with engine.connect() as connection:
            await connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_progress_create_index WHERE datname = current_database()"
                )
            )
        with pytest.raises(Exception, match=r"."):
            await migrating
    assert not await index_is_valid(engine)
    await migrate(engine, config=config)
    assert await index_is_valid(engine)


# Beside other versions.


async def test_this_version_starts_on_a_schema_that_only_grew(engine: AsyncEngine, tmp_path: Path) -> None:
    await migrate(engine, config=with_migrations(tmp_path, ADDS_A_COLUMN))
    assert await current_revision(engine) > head_revision()
    assert await schema_problem(engine) is None
    await migrate(engine)  # as a unit does before every start
    assert await current_revision(engine) == "9001"


async def test_it_does_not_start_where_something_was_taken_away(engine: AsyncEngine, tmp_path: Path) -> None:
    await migrate(engine, config=with_migrations(tmp_path, ADDS_A_COLUMN, ENDS_SUPPORT))
    problem = await schema_problem(engine)
    assert problem is not None
    assert "revision 9002 and newer" in problem


async def test_it_does_not_start_on_an_older_schema(empty: AsyncEngine) -> None:
    assert "missing" in str(await schema_problem(empty))
    await migrate(empty)
    async with empty.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    assert f"at revision 0000, and this version needs {head_revision()}" in str(await schema_problem(empty))


async def test_rows_of_a_newer_version_are_worked_on(harness: Harness) -> None:
    """It runs beside this one during an upgrade, and has taken a job that uses what is new in it."""
    agent = await harness.join()
    await harness.submit()
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(
            text(
                'UPDATE jobs SET reason = \'WARPED\', spec = spec || \'{"tempo": 3, "retry": {"gently": true}}\''
            )
        )
    assert (await harness.job()).reason == "WARPED"
    await harness.turn()
    assert run_of(await agent.commands()).job_name == "job"
    async with harness.service.database.engine.connect() as connection:
        spec = (await connection.execute(text("SELECT spec FROM jobs"))).scalar_one()
    assert spec["tempo"] == 3, "what this version does not know stays for the one that does"


async def test_news_of_a_newer_agent_do_not_stand_in_the_way(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    await harness.turn()
    run = run_of(await agent.commands())
    dance = {"kind": "dance", "sequence": 0, "steps": [1, 2]}
    await agent.report(dance, entry("ranks_started", run, how="zygote"), dance)
    assert (await harness.job()).state == "RUNNING"
