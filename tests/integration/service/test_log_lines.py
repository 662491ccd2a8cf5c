"""A request is followed through the logs by its ids: API, round, command."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from headway.log_lines import log_as_json
from tests.integration.service.conftest import JOIN_TOKEN, TOKEN, Harness, entry, run_of


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    before, handlers = structlog.get_config(), logging.getLogger().handlers
    stream = io.StringIO()
    log_as_json(stream)
    yield stream
    structlog.configure(**before)
    logging.getLogger().handlers = handlers


def found(written: io.StringIO, **fields: Any) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    return [line for line in lines if fields.items() <= line.items()]


async def test_a_submit_is_followed_to_its_ranks(harness: Harness, written: io.StringIO) -> None:
    agent = await harness.join()
    answer = await harness.client.post(
        "/api/v1/jobs", json={"name": "job", "run": "python -V"}, headers={"X-Request-Id": "my-request.1"}
    )
    assert answer.headers["X-Request-Id"] == "my-request.1"
    (accepted,) = found(written, request_id="my-request.1", event="job_accepted")
    job = accepted["job"]
    assert job == answer.json()["id"]
    await harness.turn()
    (allocated,) = found(written, job=job, kind="allocate")
    assert allocated["generation"] == 1
    assert "request_id" not in allocated
    assert found(written, round=allocated["round"], event="round")
    run = run_of(await agent.commands())
    await agent.report(entry("ranks_started", run, how="zygote"))
    (taken,) = found(written, event="command_taken", job=job)
    assert (taken["command"], taken["generation"]) == (run.command_id, 1)
    assert taken["node"] == agent.joined.node_id
    assert found(written, job=job, kind="start", node=agent.joined.node_id, generation=1)
    assert TOKEN not in written.getvalue()
    assert JOIN_TOKEN not in written.getvalue()
    assert agent.joined.node_token not in written.getvalue()


@pytest.mark.parametrize("given", ["no spaces", "x" * 65, "{}", ""])
async def test_an_id_that_is_none_is_replaced(harness: Harness, given: str) -> None:
    answer = await harness.client.get("/api/v1/jobs/nope", headers={"X-Request-Id": given})
    made = answer.headers["X-Request-Id"]
    assert made != given
    assert answer.json()["request_id"] == made
