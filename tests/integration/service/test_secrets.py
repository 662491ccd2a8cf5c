"""Secrets from end to end within the service: set over HTTP, named by jobs, fetched by the node that starts them."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import text

from service.adapters.keyring import EnvKeyRing
from service.domain.shared.errors import SecretUnreadable
from service.settings import SecretSettings
from service.usecases.identity.secrets import rotate
from tests.integration.service.conftest import Agent, Harness, harness_of, make_settings, run_of

VALUE = "swordfish-" + secrets.token_hex(8)
KEY, NEW_KEY = secrets.token_bytes(32), secrets.token_bytes(32)
PATH = "/api/v1/projects/default/secrets"


@pytest_asyncio.fixture
async def harness(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    keys = SecretSettings(keys=(KEY,))
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}/storage", secrets=keys)
    async with harness_of(settings) as made:
        yield made


async def put(harness: Harness, name: str = "wandb-key", value: str = VALUE, status: int = 201) -> Any:
    response = await harness.client.put(f"{PATH}/{name}", json={"value": value})
    assert response.status_code == status, response.text
    assert value not in response.text
    return response.json()


async def fetch(agent: Agent, job_id: str, generation: int, token: str | None = None) -> httpx.Response:
    return await agent.client.post(
        f"/api/v1/agents/{agent.joined.node_id}/secrets",
        json={"job_id": job_id, "generation": generation},
        headers={"Authorization": f"Bearer {token or agent.joined.node_token}"},
    )


async def everything_stored(harness: Harness) -> str:
    """Every row of every table, and every entry of Redis."""
    found = []
    async with harness.service.database.engine.connect() as connection:
        tables = await connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))
        for (table,) in tables.all():
            rows = await connection.execute(text(f'SELECT to_jsonb(one)::text FROM "{table}" one'))
            found += [row for (row,) in rows.all()]
    for key in await harness.service.redis.keys("*"):
        if await harness.service.redis.type(key) == b"stream":
            found.append(str(await harness.service.redis.xrange(key)))
    return "\n".join(found)


async def test_the_node_that_starts_a_job_gets_its_secrets_and_nobody_else_does(harness: Harness) -> None:
    await put(harness)
    alpha, beta = await harness.join("alpha", 1), await harness.join("beta", 1)
    job = await harness.submit(secrets={"WANDB_API_KEY": "wandb-key"})
    await harness.turn()
    holder, other = (alpha, beta) if await alpha.commands() else (beta, alpha)
    holder.seen.clear()
    run = run_of(await holder.commands())
    assert run.secrets == ["WANDB_API_KEY"]
    answer = await fetch(holder, job.id, run.generation)
    assert answer.json() == {"env": {"WANDB_API_KEY": VALUE}}
    assert answer.headers["Cache-Control"] == "no-store"
    assert (await fetch(other, job.id, run.generation)).status_code == 404
    assert (await fetch(holder, job.id, run.generation + 1)).status_code == 404
    assert (await fetch(holder, job.id, run.generation, other.joined.node_token)).status_code == 401
    assert (await fetch(holder, job.id, run.generation, "api-token")).status_code == 401
    assert VALUE not in await everything_stored(harness)
    for path in ("jobs/job", "jobs/job/events", "projects/default/secrets", "jobs/job/explain", "rounds"):
        assert VALUE not in (await harness.client.get(f"/api/v1/{path}")).text


async def test_audit_of_a_command_hides_the_values_of_the_jobs_secrets(harness: Harness) -> None:
    await put(harness)
    await harness.join(host={"executes": True})
    await harness.submit(secrets={"WANDB_API_KEY": "wandb-key"})
    await harness.turn()
    argv = ["curl", "-H", f"X-Key: {VALUE}", "https://wandb"]
    answer = await harness.client.post("/api/v1/jobs/job/executions", json={"id": "x1", "argv": argv})
    assert answer.status_code == 201, answer.text
    (entry,) = await _commands_in_the_audit(harness)
    assert entry == "curl -H 'X-Key: [hidden]' https://wandb"


async def test_audit_hides_a_whole_command_if_no_key_opens_the_jobs_secrets(harness: Harness) -> None:
    await put(harness)
    await harness.join(host={"executes": True})
    await harness.submit(secrets={"WANDB_API_KEY": "wandb-key"})
    await harness.turn()
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text("UPDATE secrets SET key_id = 'lost'"))
    request = {"id": "x1", "argv": ["curl", VALUE]}
    assert (await harness.client.post("/api/v1/jobs/job/executions", json=request)).status_code == 201
    assert await _commands_in_the_audit(harness) == ["[hidden]"]


async def _commands_in_the_audit(harness: Harness) -> list[str]:
    entries = (await harness.client.get("/api/v1/audit")).json()["items"]
    return [one["detail"]["argv"] for one in entries if one["action"] == "execute_command"]


async def test_a_secret_that_went_away_is_told_to_the_node(harness: Harness) -> None:
    await put(harness)
    agent = await harness.join(slots=1)
    job = await harness.submit(secrets={"KEY": "wandb-key"})
    await harness.turn()
    assert (await harness.client.delete(f"{PATH}/wandb-key")).status_code == 204
    answer = await fetch(agent, job.id, 1)
    assert answer.status_code == 404
    assert "headway secret set wandb-key --project default" in answer.json()["detail"]


async def test_a_job_cannot_name_a_secret_that_is_not_there(harness: Harness) -> None:
    answer = await harness.post("jobs", {"name": "job", "run": "true", "secrets": {"KEY": "nothing"}})
    assert answer.status_code == 422
    assert "headway secret set nothing" in answer.json()["detail"]


@pytest.mark.parametrize(
    "fields",
    [
        {"secrets": {"RANK": "wandb-key"}},
        {"secrets": {"HEADWAY_X": "wandb-key"}},
        {"secrets": {"A B": "wandb-key"}},
        {"secrets": {"KEY": "../other"}},
        {"secrets": {"KEY": "wandb-key"}, "env": {"KEY": "x"}},
    ],
)
async def test_names_that_cannot_be(harness: Harness, fields: dict[str, Any]) -> None:
    await put(harness)
    assert (await harness.post("jobs", {"name": "job", "run": "true", **fields})).status_code == 422


async def test_secrets_are_listed_changed_and_removed_without_their_values(harness: Harness) -> None:
    await put(harness)
    await put(harness, value="another-value", status=200)
    listed = (await harness.client.get(PATH)).json()["items"]
    assert [(one["name"], one["created_by"]) for one in listed] == [("wandb-key", "admin")]
    assert (await harness.client.delete(f"{PATH}/wandb-key")).status_code == 204
    assert (await harness.client.delete(f"{PATH}/wandb-key")).status_code == 404
    assert (await harness.client.put(f"{PATH}/key", json={"value": "nul\0"})).status_code == 422
    assert (await harness.client.put(f"{PATH}/key", json={"value": ""})).status_code == 422
    unknown = await harness.client.put("/api/v1/projects/nowhere/secrets/key", json={"value": VALUE})
    assert unknown.status_code == 404
    assert VALUE not in unknown.text


async def test_rows_that_were_swapped_do_not_open(harness: Harness) -> None:
    await put(harness, "one", "the-first-value")
    await put(harness, "two", "the-second-value")
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(
            text(
                "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE name = 'one') WHERE name = 'two'"
            )
        )
    agent = await harness.join(slots=1)
    job = await harness.submit(secrets={"KEY": "two"})
    await harness.turn()
    answer = await fetch(agent, job.id, 1)
    assert (answer.status_code, answer.json()["code"]) == (409, "secret_unreadable")


async def test_another_key_takes_over(harness: Harness) -> None:
    await put(harness)
    transactions = harness.service.database
    assert await rotate(transactions, EnvKeyRing([NEW_KEY, KEY])) == 1
    async with transactions.begin() as tx:
        sealed = (await tx.secrets.get("default", {"wandb-key"}))["wandb-key"]
    context = b"headway secret\0default\0wandb-key"
    assert await EnvKeyRing([NEW_KEY]).open(sealed, context) == VALUE.encode()
    with pytest.raises(SecretUnreadable):
        await EnvKeyRing([KEY]).open(sealed, context)


async def test_an_environment_no_rank_starts_with_is_refused_with_its_field(harness: Harness) -> None:
    for number in range(8):
        await put(harness, f"large-{number}", "v" * 65_000)
    secrets = {f"LARGE_{number}": f"large-{number}" for number in range(8)}
    for fields, field in (
        ({"env": {"DATA": "\u00e4" * 20_000}}, "env.DATA"),
        ({"env": {"PATH": "/opt/bin:$PATH"}}, "env.PATH"),
        ({"env": {"DATA": "x" * 10_000}, "secrets": secrets}, "env"),
    ):
        answer = await harness.post("jobs", {"name": "job", "run": "true", **fields})
        assert answer.status_code == 422
        assert [one["field"] for one in answer.json()["errors"]] == [field]
        assert field in answer.json()["detail"]
    job = await harness.submit(env={"DATA": "~/data"}, secrets={"LARGE": "large-0"})
    assert "env.DATA holds '~/'" in job.message


async def test_a_secret_is_bounded_in_bytes(harness: Harness) -> None:
    await put(harness, value="\u00e4" * 32_768)
    await put(harness, value="\u00e4" * 32_769, status=422)


async def test_what_looks_like_a_credential_in_env_is_told_of(harness: Harness) -> None:
    job = await harness.submit(
        env={"WANDB_API_KEY": "0123456789abcdef", "EPOCHS": "3", "TOKENIZERS": "x" * 20}
    )
    assert "env WANDB_API_KEY looks like a credential" in job.message
    assert "EPOCHS" not in job.message


async def test_without_a_key_the_service_keeps_no_secrets(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    async with harness_of(make_settings(database_url, redis_url, f"file://{tmp_path}/storage")) as harness:
        answer = await harness.client.put(f"{PATH}/key", json={"value": VALUE})
        assert (answer.status_code, answer.json()["code"]) == (409, "no_secrets_key")
        assert "HEADWAY_SECRETS_KEY" in answer.json()["detail"]


@pytest.mark.slow
async def test_secrets_are_rotated_by_the_program(harness: Harness, tmp_path: Path) -> None:
    await put(harness)

    def rotated(keys: str) -> subprocess.CompletedProcess[str]:
        settings = harness.service.settings
        env = {
            **os.environ,
            "HEADWAY_DATABASE_URL": settings.database_url,
            "HEADWAY_REDIS_URL": settings.redis_url,
            "HEADWAY_STORAGE_URL": f"file://{tmp_path}/storage",
            "HEADWAY_SECRETS_KEY": keys,
        }
        command = [sys.executable, "-m", "service", "rotate-secrets"]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=100)

    done = await asyncio.to_thread(rotated, f"{NEW_KEY.hex()},{KEY.hex()}")
    assert (done.returncode, done.stdout) == (0, "secrets encrypted with the first key: 1\n"), done.stderr
    refused = await asyncio.to_thread(rotated, KEY.hex())
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert refused.stderr.startswith("headway service: ")
