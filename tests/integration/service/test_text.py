"""Text and numbers that PostgreSQL cannot store are refused wherever a request has them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.service.conftest import Harness

BIG = "9" * 30


@pytest.mark.parametrize(
    "path",
    [
        "jobs/%00",
        "simulations/%00",
        "rounds/a%00b",
        "jobs?project=%00",
        "jobs?name=a%00",
        f"jobs/job/events?cursor={BIG}",
        f"jobs/job/metrics?cursor={BIG}",
    ],
)
async def test_in_a_path_or_query(harness: Harness, path: str) -> None:
    await harness.submit()
    answer = await harness.client.get(f"/api/v1/{path}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_field")


async def test_there_are_no_events_after_a_number_too_large(harness: Harness) -> None:
    await harness.submit()
    answer = await harness.client.get(f"/api/v1/jobs/job/events?after={BIG}")
    assert (answer.status_code, answer.json()["items"]) == (200, [])


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("jobs", r'{"name":"j","run":"a\ud800b"}', "run"),
        ("jobs", r'{"name":"j","run":"x","env":{"A":"\u0000"}}', "env.A"),
        ("jobs", r'{"name":"j","run":"x","env":{"\uDC00":"1"}}', "env"),
        ("tokens", r'{"name":"\u0000","robot":true,"role":"viewer"}', "name"),
    ],
)
async def test_in_a_body(harness: Harness, path: str, body: str, field: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await harness.client.post(f"/api/v1/{path}", content=body, headers=headers)
    assert answer.status_code == 422
    assert [one["field"] for one in answer.json()["errors"]] == [field]


async def test_an_escaped_backslash_is_text(harness: Harness) -> None:
    body = r'{"name":"j","run":"echo \\u0000"}'
    answer = await harness.client.post(
        "/api/v1/jobs", content=body, headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()["spec"]["run"]) == (201, "echo \\u0000")


async def test_in_a_header(harness: Harness) -> None:
    answer = await harness.client.post(
        "/api/v1/jobs", json={"name": "j", "run": "x"}, headers={"Idempotency-Key": "\x00"}
    )
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("form", "status"), [("&".join(f"f{n}=1" for n in range(150)), 413), ("job=a%00", 422)]
)
@pytest.mark.parametrize("path", ["/submit", "/auth/login"])
async def test_in_a_form(harness: Harness, path: str, form: str, status: int) -> None:
    headers: dict[str, Any] = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (await harness.client.post(path, content=form, headers=headers)).status_code == status


async def test_body_of_too_many_values_is_refused_and_many_wrong_fields_are_counted(harness: Harness) -> None:
    many = {f"wrong{n}": n for n in range(20_002)}
    refused = await harness.post("jobs", many)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    assert "20,000 values at most" in refused.json()["detail"]
    fewer = await harness.post("jobs", dict(list(many.items())[:1_000]))
    assert (fewer.status_code, len(fewer.json()["errors"])) == (422, 50)
    assert fewer.json()["detail"].endswith("; and 952 more"), "1,000 and the missing name and run, less 50"
    commas = await harness.post("jobs", {"name": "job", "run": "python -V", "env": {"A": "," * 30_000}})
    assert commas.status_code == 201
