"""The migrations make exactly the tables that the code declares, once, whoever runs them."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from headway.contract.agents import NodeState
from headway.contract.views.jobs import TERMINAL_STATES, JobState
from headway.local.postgres import EmbeddedPostgres
from service.adapters.postgres.database import sqlalchemy_url
from service.adapters.postgres.engine.schema import alembic_config, migrate, schema_problem
from service.adapters.postgres.tables import (  # noqa: F401  # their tables are in the metadata
    identity,
    links,
    rental,
    upkeep,
)
from service.adapters.postgres.tables.core import metadata
from service.domain.jobs.lifecycle import TRANSITIONS
from tests.waiting import until

_numbers = itertools.count()

CATALOGUE = {
    "columns": "SELECT table_name, column_name, data_type, is_nullable, column_default, is_identity"
    " FROM information_schema.columns WHERE table_schema = 'public'",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'public'::regnamespace",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
}


@pytest_asyncio.fixture
async def empty(postgres: EmbeddedPostgres) -> AsyncIterator[AsyncEngine]:
    """A database without any table."""
    engine = create_async_engine(sqlalchemy_url(postgres.create_database(f"migrations_{next(_numbers)}")))
    yield engine
    await engine.dispose()


@pytest_asyncio.fixture
async def migrated_engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(sqlalchemy_url(database_url))
    yield engine
    await engine.dispose()


async def catalogue(engine: AsyncEngine) -> dict[str, set[tuple[object, ...]]]:
    """Everything that the schema consists of, but alembic's own table."""
    async with engine.connect() as connection:
        return {
            what: {tuple(row) for row in await connection.execute(text(query)) if "alembic" not in str(row)}
            for what, query in CATALOGUE.items()
        }


async def test_alembic_finds_no_difference(migrated_engine: AsyncEngine) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, metadata))

    async with migrated_engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_every_constraint_index_and_default_is_as_declared(
    empty: AsyncEngine, migrated_engine: AsyncEngine
) -> None:
    """Alembic compares neither CHECKs nor the conditions of partial indexes; the database's own words do."""
    async with empty.begin() as connection:
        await connection.run_sync(metadata.create_all)
    declared, migrated = await catalogue(empty), await catalogue(migrated_engine)
    for what in CATALOGUE:
        assert migrated[what] == declared[what], what
        assert declared[what], what


async def test_migrating_again_changes_nothing(empty: AsyncEngine) -> None:
    assert "migrate" in str(await schema_problem(empty))
    await migrate(empty)
    assert await schema_problem(empty) is None
    before = await catalogue(empty)
    await migrate(empty)
    assert await catalogue(empty) == before


@pytest.mark.slow
async def test_two_migrators_at_once_and_one_that_is_slow(empty: AsyncEngine) -> None:
    """Processes of their own, as when several replicas are rolled out. Another holds the turn at first."""
    environment = {
        **os.environ,
        "HEADWAY_DATABASE_URL": empty.url.set(drivername="postgresql").render_as_string(hide_password=False),
        "HEADWAY_REDIS_URL": "redis://127.0.0.1:9",
        "HEADWAY_STORAGE_URL": "memory:///",
        "HEADWAY_API_TOKEN": "a",
        "HEADWAY_JOIN_TOKEN": "j",
    }
    arguments = (sys.executable, "-m", "service", "migrate")
    async with empty.connect() as slow, empty.connect() as watcher:
        await slow.execute(text("SELECT pg_advisory_lock(hashtext('headway-migrations'))"))
        await slow.commit()  # the turn is the session's; an index that is built waits for open transactions
        started = [await asyncio.create_subprocess_exec(*arguments, env=environment) for _ in range(2)]

        async def both_wait() -> bool:
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headway migrate'"
            asking = await watcher.execute(text(f"{query} AND datname = current_database()"))
            await watcher.rollback()  # statistics are those of one moment for a whole transaction
            return asking.scalar_one() == 2

        await until(both_wait, within_s=60)
        assert await schema_problem(empty) is not None
        await slow.execute(text("SELECT pg_advisory_unlock_all()"))
        await slow.commit()
        assert await asyncio.gather(*(process.wait() for process in started)) == [0, 0]
    assert await schema_problem(empty) is None


async def test_down_to_nothing_and_up_again(migrated_engine: AsyncEngine) -> None:
    def downgrade(connection: Connection) -> None:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")

    before = await catalogue(migrated_engine)
    async with migrated_engine.begin() as connection:
        await connection.run_sync(downgrade)
    assert await schema_problem(migrated_engine) is not None
    assert not any((await catalogue(migrated_engine)).values())
    await migrate(migrated_engine)
    assert await catalogue(migrated_engine) == before


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ("ck_jobs_state_known", {str(state) for state in JobState}),
        ("ck_jobs_finished_when_terminal", {str(state) for state in TERMINAL_STATES}),
        ("ck_nodes_state_known", {str(state) for state in NodeState}),
    ],
)
async def test_the_checks_know_the_states_of_the_lifecycle(
    migrated_engine: AsyncEngine, constraint: str, values: set[str]
) -> None:
    query = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = :name"
    async with migrated_engine.connect() as connection:
        definition = (await connection.execute(text(query), {"name": constraint})).scalar_one()
    assert set(re.findall(r"'([A-Z]+)'", definition)) == values
    assert {state for state, _ in TRANSITIONS} | {*TRANSITIONS.values()} == set(JobState)


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("state = 'DREAMING'", "ck_jobs_state_known"),
        ("state = 'FAILED'", "ck_jobs_finished_when_terminal"),
        ("finished_at = now()", "ck_jobs_finished_when_terminal"),
        ("target = '{}'", "ck_jobs_target_while_resizing"),
        ("generation = -1", "ck_jobs_generation_grows_from_zero"),
        ("generation = 1", "ck_jobs_newest_generation_is_newest"),
        ("switch = '{}'", "ck_jobs_switch_while_changing"),
    ],
)
async def test_the_database_refuses_a_job_that_cannot_be(
    migrated_engine: AsyncEngine, change: str, constraint: str
) -> None:
    insert = (
        "INSERT INTO jobs (id, project, name, spec, request_digest, state, reason, message, submitted_at, state_since)"
        " VALUES ('j', 'p', 'n', '{}', '', 'PENDING', '', '', now(), now())"
    )
    async with migrated_engine.connect() as connection:
        await connection.execute(text(insert))
        with pytest.raises(Exception, match=constraint):
            await connection.execute(text(f"UPDATE jobs SET {change}"))


async def test_the_database_refuses_a_second_holder_of_a_slot(migrated_engine: AsyncEngine) -> None:
    node = (
        "INSERT INTO nodes (id, name, instance, token_sha256, state, wanted_state, address, first_port, last_port, slots,"
        " agent_version, joined_at, seen_at) VALUES ('n', 'n', '', '', 'READY', 'READY', '', 1, 2, '[]', '', now(), now())"
    )
    job = (
        "INSERT INTO jobs (id, project, name, spec, request_digest, state, reason, message, submitted_at, state_since)"
        " VALUES ('j', 'p', 'n', '{}', '', 'PENDING', '', '', now(), now())"
    )
    grant = "INSERT INTO slot_grants (node_id, slot, job_id, generation, granted_at) VALUES ('n', 0, 'j', 1, now())"
    async with migrated_engine.connect() as connection:
        for statement in (node, job, grant):
            await connection.execute(text(statement))
        with pytest.raises(Exception, match="uq_slot_grants_held"):
            await connection.execute(text(grant))
