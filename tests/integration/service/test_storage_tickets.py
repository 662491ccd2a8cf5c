"""Tickets with which ranks have requests to storage signed: what they open, for whom and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from headway.contract.agents import RunCommand
from service.usecases.storage.access import TICKET_S
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, make_settings, run_of

GET = {"do": "get", "key": "00000001-000000-000000000064/manifest.json"}


@pytest_asyncio.fixture
async def signing(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Harness]:
    """A service that signs, over a store that need not be there: signing asks nobody."""
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "bucket-secret",
    }.items():
        monkeypatch.setenv(name, value)
    settings = make_settings(database_url, redis_url, "s3://bucket/root", storage_signed=True)
    async with harness_of(settings, api_skips=True) as made:
        yield made


async def running(harness: Harness, agent: Agent, name: str) -> RunCommand:
    await harness.submit(name)
    await harness.turn()
    run = run_of(await agent.commands())
    await agent.report(entry("ranks_started", run, how="zygote"))
    return run


async def ask(harness: Harness, agent: Agent, run: RunCommand) -> httpx.Response:
    return await harness.client.post(
        f"/api/v1/agents/{agent.joined.node_id}/storage",
        json={"job_id": run.job_id, "generation": run.generation},
        headers={"Authorization": f"Bearer {agent.joined.node_token}"},
    )


async def signatures(harness: Harness, ticket: str, *calls: dict[str, Any]) -> httpx.Response:
    return await harness.client.post(
        "/api/v1/storage/signatures",
        json={"calls": list(calls)},
        headers={"Authorization": f"Bearer {ticket}"},
    )


async def test_a_ticket_opens_the_checkpoints_of_its_job_while_its_node_runs_it(signing: Harness) -> None:
    agent, other = await signing.join("alpha", slots=1), await signing.join("beta", slots=1)
    run = await running(signing, agent, "job")
    given = await ask(signing, agent, run)
    assert given.headers["Cache-Control"] == "no-store"
    assert given.json()["credentials"] is None, "no key leaves the service"
    ticket = given.json()["ticket"]
    assert ticket["uri"] == f"s3://bucket/root/checkpoints/{run.job_id}"
    assert (await ask(signing, other, run)).status_code == 404

    signed = await signatures(signing, ticket["ticket"], GET, {**GET, "do": "put"}, {"do": "list"})
    assert signed.status_code == 200, signed.text
    assert "bucket-secret" not in signed.text
    own = f"/bucket/root/checkpoints/{run.job_id}/{GET['key']}"
    assert [urlsplit(url).path for url in signed.json()["urls"]] == [own, own, "/bucket"]

    await agent.report(entry("rank_exited", run, rank=0, exit_code=0), entry("released", run))
    over = await signatures(signing, ticket["ticket"], GET)
    assert over.status_code == 404, "a leftover reads and writes nothing"


async def test_what_is_no_valid_ticket_opens_nothing(signing: Harness) -> None:
    agent = await signing.join("alpha", slots=1)
    run = await running(signing, agent, "job")
    ticket = (await ask(signing, agent, run)).json()["ticket"]["ticket"]
    for wrong in ("", "x" * 43, agent.joined.node_token, "api-token"):
        assert (await signatures(signing, wrong, GET)).status_code == 401, wrong
    as_user = await signing.client.get("/api/v1/jobs", headers={"Authorization": f"Bearer {ticket}"})
    assert as_user.status_code == 401, "it opens nothing else"
    out = await signatures(signing, ticket, {"do": "get", "key": "../j00000002/part"})
    assert out.status_code == 422
    assert (await signatures(signing, ticket, *[GET] * 65)).status_code == 422
    assert (await signatures(signing, ticket)).status_code == 422
    signing.clock.skipped = timedelta(seconds=TICKET_S + 1)
    assert (await signatures(signing, ticket, GET)).status_code == 401
    await ask(signing, agent, run)
    async with signing.service.database.engine.connect() as connection:
        left = (await connection.exec_driver_sql("SELECT sha256 FROM storage_tickets")).scalars().all()
    assert len(left) == 1, "those that have expired go with the next"
    assert ticket not in left


async def test_a_service_that_does_not_sign_says_no(harness: Harness) -> None:
    assert (await signatures(harness, "x" * 43, GET)).status_code == 401
