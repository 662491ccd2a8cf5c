"""Bad requests: a problem that names the field, and nothing stored."""

from __future__ import annotations

import asyncio
import io
import tarfile
from typing import Any

import pytest

from tests.integration.service.conftest import JOIN_TOKEN, Harness, join_body

OK = {"name": "job", "run": "python train.py"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**OK, "colour": "red"}, "colour"),
        ({"name": "job"}, "run"),
        ({**OK, "run": "   "}, "run"),
        ({**OK, "name": "No Spaces"}, "name"),
        ({**OK, "name": "a" * 64}, "name"),
        ({**OK, "elastic": {"min": 0}}, "elastic.min"),
        ({**OK, "elastic": {"min": 3, "max": 2}}, "elastic"),
        ({**OK, "elastic": {"min": 3, "max": 5, "sizes": [8]}}, "elastic"),
        ({**OK, "elastic": {"resize": "sometimes"}}, "elastic.resize"),
        ({**OK, "batch": {"global": 0}}, "batch.global"),
        ({**OK, "batch": {"policy": "adaptive"}}, "batch"),
        ({**OK, "resources": {"devices": ["h1000"]}}, "resources.devices"),
        ({**OK, "resources": {"memory_per_slot": "lots"}}, "resources.memory_per_slot"),
        ({**OK, "env": {"RANK": "0"}}, "env"),
        ({**OK, "env": {"HEADWAY_TOKEN": "0"}}, "env"),
        ({**OK, "goal": {"deadline": "2026-12-01T00:00:00"}}, "goal.deadline"),
        ({**OK, "goal": {"deadline": 7200}}, "goal.deadline"),
        ({**OK, "goal": {"deadline": "7200"}}, "goal.deadline"),
        ({**OK, "goal": {"target": {"loss": ">= 1_0"}}}, "goal.target"),
        ({**OK, "output": {"dir": "\u00e9" * 300}}, "output.dir"),
        ({**OK, "output": {"dir": "a\nb"}}, "output.dir"),
        ({**OK, "python": {"requirements": "r" * 300}}, "python.requirements"),
        ({**OK, "resources": {"memory_per_slot": "1e30"}}, "resources.memory_per_slot"),
        ({**OK, "priority": 101}, "priority"),
        ({**OK, "checkpoint": {"every": "soon"}}, "checkpoint.every"),
        ({**OK, "bundle": "sha256:" + "0" * 64}, "bundle"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_stored(
    harness: Harness, body: dict[str, Any], field: str
) -> None:
    response = await harness.post("jobs", body)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["code"] == "invalid_field"
    assert any(one["field"].startswith(field) for one in problem["errors"]), problem
    assert problem["request_id"] == response.headers["x-request-id"]
    assert (await harness.client.get("/api/v1/jobs")).json()["items"] == []


async def test_a_live_name_is_taken_and_an_ended_one_is_free(harness: Harness) -> None:
    await harness.submit()
    response = await harness.post("jobs", OK)
    assert (response.status_code, response.json()["code"]) == (409, "name_taken")
    await harness.post("jobs/job/cancel")
    assert (await harness.post("jobs", OK)).status_code == 201


async def test_idempotency_key(harness: Harness) -> None:
    send = harness.client.post
    key = {"Idempotency-Key": "once"}
    first = await send("/api/v1/jobs", json=OK, headers=key)
    again = await send("/api/v1/jobs", json=OK, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = await send("/api/v1/jobs", json={**OK, "priority": 7}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    raced = await asyncio.gather(
        *(
            send("/api/v1/jobs", json={**OK, "name": "raced"}, headers={"Idempotency-Key": "r"})
            for _ in range(8)
        )
    )
    assert sorted(one.status_code for one in raced) == [200] * 7 + [201]
    assert len({one.json()["id"] for one in raced}) == 1


async def test_unknown_things_are_404(harness: Harness) -> None:
    for path in ("jobs/none", "jobs/none/events", "jobs/none/logs", "jobs/none/explain", "nowhere"):
        response = await harness.client.get(f"/api/v1/{path}")
        assert (response.status_code, response.json()["code"]) == (404, "not_found"), path
    assert (await harness.post("jobs/none/cancel")).status_code == 404
    assert (await harness.post("nodes/none/drain")).status_code == 404


async def test_sizes_that_the_job_file_does_not_allow(harness: Harness) -> None:
    await harness.submit(elastic={"min": 1, "max": 8, "sizes": "pow2"})
    response = await harness.post("jobs/job/resize", {"slots": 3})
    assert response.status_code == 422
    assert "1, 2, 4, 8" in response.json()["detail"]
    assert (await harness.post("jobs/job/resize", {"slots": 0})).status_code == 422


async def test_tokens(harness: Harness) -> None:
    for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": ""}):
        response = await harness.client.get("/api/v1/jobs", headers=headers)
        assert (response.status_code, response.json()["code"]) == (401, "wrong_token")
        joining = await harness.client.post("/api/v1/agents", json=join_body("n"), headers=headers)
        assert joining.status_code == 401
    agent = await harness.join("alpha")
    other = await harness.join("beta")
    crossed = await harness.client.post(
        f"/api/v1/agents/{agent.joined.node_id}/reports",
        json={"instance": "instance-alpha"},
        headers={"Authorization": f"Bearer {other.joined.node_token}"},
    )
    assert crossed.status_code == 401


async def test_two_agents_with_one_name(harness: Harness) -> None:
    await harness.join("alpha")
    headers = {"Authorization": f"Bearer {JOIN_TOKEN}"}
    second = join_body("alpha", instance="another-instance")
    response = await harness.client.post("/api/v1/agents", json=second, headers=headers)
    assert (response.status_code, response.json()["code"]) == (409, "node_name_taken")
    back = await harness.client.post("/api/v1/agents", json=join_body("alpha", slots=4), headers=headers)
    assert back.status_code == 201
    (node,) = (await harness.client.get("/api/v1/nodes")).json()["items"]
    assert len(node["slots"]) == 4


def bundle_of(*members: tuple[str, bytes | str]) -> bytes:
    """A tar.gz; a member with text is a symbolic link to it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "status", "says"),
    [
        (b"not a tar", 422, "tar.gz"),
        (bundle_of(("../evil.py", b"x")), 422, "leaves the folder"),
        (bundle_of(("/etc/evil.py", b"x")), 422, "leaves the folder"),
        (bundle_of(("a/../../evil.py", b"x")), 422, "leaves the folder"),
        (bundle_of(("link", "/etc/passwd")), 422, "outside the folder"),
        (bundle_of(("a/link", "../../x")), 422, "outside the folder"),
        (bundle_of(("zeros", bytes(32 << 20))), 413, "unpacked"),
        (b"\x00" * ((1 << 20) + 1), 413, "headwayignore"),
    ],
    # An archive holds the time of its making, and workers must collect the same names.
    ids=["text", "up", "absolute", "down-and-up", "link", "deep-link", "bomb", "large"],
)
async def test_bad_bundles(harness: Harness, data: bytes, status: int, says: str) -> None:
    response = await harness.client.post("/api/v1/bundles", content=data)
    assert response.status_code == status
    assert says in response.json()["detail"]
    assert response.json()["code"] == {422: "bundle_refused", 413: "too_large"}[status]


async def test_good_bundle_and_a_script_that_is_missing(harness: Harness) -> None:
    data = bundle_of(("train.py", b"print(1)"), ("pkg/link.py", "../train.py"))
    first = await harness.client.post("/api/v1/bundles", content=data)
    again = await harness.client.post("/api/v1/bundles", content=data)
    assert (first.status_code, again.status_code) == (201, 200)
    digest = first.json()["digest"]
    assert (await harness.client.get(f"/api/v1/bundles/{digest}")).content == data
    assert (await harness.client.head(f"/api/v1/bundles/{digest}")).status_code == 200
    missing = await harness.post("jobs", {"name": "job", "run": "python other.py", "bundle": digest})
    assert missing.status_code == 422
    assert missing.json()["errors"][0]["field"] == "run"
    assert (await harness.post("jobs", {**OK, "bundle": digest})).status_code == 201


async def test_pages(harness: Harness) -> None:
    for number in range(5):
        await harness.submit(f"job-{number}")
    names: list[str] = []
    url = "/api/v1/jobs?limit=2"
    while url:
        response = await harness.client.get(url)
        names += [one["name"] for one in response.json()["items"]]
        url = response.links.get("next", {}).get("url", "")
    assert names == [f"job-{number}" for number in (4, 3, 2, 1, 0)]
    assert (await harness.client.get("/api/v1/jobs?cursor=nonsense")).status_code == 422
    assert (await harness.client.get("/api/v1/jobs?limit=0")).status_code == 422


async def test_health_and_docs(harness: Harness) -> None:
    for path in ("/livez", "/readyz", "/version", "/openapi.json", "/docs"):
        assert (await harness.client.get(path)).status_code == 200, path
    page = (await harness.client.get("/docs")).text
    assert "https://" not in page.replace("https://fastapi.tiangolo.com", ""), "assets must be local"
    operations = [
        operation["operationId"]
        for path in (await harness.client.get("/openapi.json")).json()["paths"].values()
        for operation in path.values()
    ]
    assert len(operations) == len(set(operations))
