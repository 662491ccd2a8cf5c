"""Passes of the ledger settle rows, and do not write them again."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import text

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState
from service.adapters.postgres.database import Database
from tests.conformance.conftest import node_of, store
from tests.conformance.ledger_rig import (
    at,
    begin_training,
    event,
    machine_of,
    pass_at,
    reconcile,
    release,
    rent,
    rows_at_once,
    rows_of,
    usage,
)
from tests.integration.service.counting import statements


async def test_what_is_settled_is_not_written_again(database: Database) -> None:
    await rent(database, machine_of())
    await begin_training(database)
    await event(database, 100, "succeed", JobState.SUCCEEDED)
    await release(database, 100, 1)
    versions = []
    for moment in (200, 1000, 1005, 1700, 3000):
        await pass_at(database, moment)
        await reconcile(database)
        async with database.engine.connect() as connection:
            found = await connection.execute(
                text("SELECT xmin::text FROM charges WHERE job_id = 'j1' ORDER BY category")
            )
            versions.append(found.scalars().all())
    assert len(versions[0]) == 2
    assert versions[2] == versions[3] == versions[4]
    assert versions[0] != versions[2], "they are written anew until they are settled"


async def test_a_pass_asks_as_often_for_many_nodes_that_came_one_after_the_other_as_for_one(
    database: Database,
) -> None:
    await pass_at(database, 0)
    counts = []
    for number in range(12):
        node = node_of(f"n{number}", slots=1, joined_at=at(number + 0.5), seen_at=at(1e6))
        async with database.begin() as tx:
            await store(tx, node)
        await pass_at(database, number + 1)
    for moment in (100, 400, 800, 1200, 1205):
        with statements(database) as sent:
            await pass_at(database, moment)
        counts.append(len(sent))
        await reconcile(database)
    assert max(counts) <= 16


async def test_what_a_service_that_knows_of_no_settling_wrote_is_written_anew(database: Database) -> None:
    """As during an update, and after going back to the version before."""
    await rent(database, machine_of())
    await begin_training(database)
    for moment in (1000, 2000):
        await pass_at(database, moment)
    async with database.engine.begin() as connection:
        await connection.execute(text("UPDATE charges SET settled_us = 0"))
    await event(database, 2100, "succeed", JobState.SUCCEEDED)
    await release(database, 2100, 1)
    for moment in (2200, 3000):
        await pass_at(database, moment)
        await reconcile(database)
    found = await rows_of(database)
    assert found == await rows_at_once(database, 3000)


async def test_work_that_is_done_again_is_lost_on_a_host_that_is_gone(database: Database) -> None:
    """The host is LOST and its lease has ended when the job, on another, says how far back it had to go."""
    node = node_of("n1", slots=1, joined_at=at(0), seen_at=at(0))
    async with database.begin() as tx:
        await store(tx, node)
    await pass_at(database, 0)
    await begin_training(database, 0)
    for state, seen, moment in ((NodeState.READY, 100, 100), (NodeState.LOST, 100, 130)):
        async with database.begin() as tx:
            await tx.nodes.save(replace(node, state=state, seen_at=at(seen)))
        await pass_at(database, moment)
    await event(database, 125, "fail_rank", JobState.RECOVERING)
    await release(database, 125, 1)
    await event(database, 160, "allocate", JobState.STARTING, 2)
    await event(database, 162, "start", JobState.RUNNING, 2)
    await event(database, 162, "first_step", JobState.RUNNING, 2)
    await event(database, 163, "restore", JobState.RUNNING, 2, lost_samples=9, lost_s=60.0)
    for moment in (170, 1000, 1700):
        await pass_at(database, moment)
        await reconcile(database)
        assert await usage(database) == {"useful": 0.063, "resize": 0.002, "lost": 0.035}
    async with database.begin() as tx:
        assert await tx.ledger.unsettled(0) == []
