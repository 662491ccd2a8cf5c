"""`Operations`: the cluster in figures."""

from __future__ import annotations

from datetime import timedelta

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState, Reason
from service.adapters.postgres.database import Database
from tests.conformance.conftest import NOW, job_of, node_of, store


async def test_an_empty_cluster(database: Database) -> None:
    async with database.begin() as tx:
        figures = await tx.operations.figures(NOW)
    assert (figures.jobs, figures.nodes, figures.slots, figures.changes) == ({}, {}, {}, {})
    assert figures.oldest_waiting_s == figures.silent_s == figures.oldest_command_s == figures.gap == 0.0
    assert tuple(figures.round_s) == (0.0, 0.0)


async def test_what_is_there_and_what_is_held(database: Database) -> None:
    later = NOW + timedelta(seconds=30)
    async with database.begin() as tx:
        await store(tx, node_of("a"), node_of("b"), node_of("gone", state=NodeState.LOST))
        await tx.jobs.insert(job_of("j1"), idempotency_key=None, request_digest="")
        await tx.jobs.insert(job_of("j2"), idempotency_key=None, request_digest="")
        await tx.grants.grant("j1", 1, {"a": (0,)}, NOW)
        figures = await tx.operations.figures(later)
    assert sum(figures.jobs.values()) == 2
    assert figures.jobs[JobState.PENDING, Reason.SUBMITTED, "default"] == 2
    assert figures.oldest_waiting_s == 30.0
    assert figures.nodes == {NodeState.READY: 2, NodeState.LOST: 1}
    assert figures.silent_s == 30.0
    ((slots, held),) = figures.slots.values()
    assert (slots, held) == (2 * len(node_of("a").slots), 1)
