"""Bounds on the statements of a round and of a report."""

from __future__ import annotations

from service.usecases.rounds.apply import PIECE
from tests.integration.service.conftest import Harness
from tests.integration.service.counting import statements

NODES = 4
PER_START = 7
"""Grant, nodes, ports, job, event, allocation, commands."""
PER_PIECE = 4
"""Jobs, nodes and quarantines that are looked at, decisions."""
PER_ROUND = 3
"""Statements of a round with jobs beyond those of one without."""


async def test_a_start_costs_few_statements_on_however_many_nodes(harness: Harness) -> None:
    for number in range(NODES):
        await harness.join(f"node-{number}", slots=2 * PIECE)
    with statements(harness.service.database) as without_jobs:
        await harness.scheduler.round()
    for number in range(2 * PIECE):
        await harness.submit(f"job-{number}", elastic={"min": NODES, "max": NODES})
    with statements(harness.service.database) as sent:
        await harness.scheduler.round()
    started = (await harness.client.get("/api/v1/jobs", params={"state": "STARTING", "limit": 100})).json()
    assert len(started["items"]) == 2 * PIECE
    assert len(sent) <= len(without_jobs) + PER_ROUND + 2 * PER_PIECE + 2 * PIECE * PER_START, sent
