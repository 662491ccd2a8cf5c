"""A digest opens nothing by itself: bundles are for who uploaded them, and who sees a job that starts from them."""

from __future__ import annotations

import gzip
import io
import tarfile

import httpx

from tests.integration.service.conftest import Harness


def folder(name: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return gzip.compress(packed.getvalue(), mtime=0)


async def bearer(harness: Harness, project: str, role: str = "user") -> httpx.Headers:
    await harness.client.put(f"/api/v1/projects/{project}", json={})
    body = {"name": f"{project} {role}", "robot": True, "role": role, "project": project}
    made = await harness.post("tokens", body)
    assert made.status_code == 201, made.text
    return httpx.Headers({"Authorization": f"Bearer {made.json()['token']}"})


async def test_a_bundle_is_for_its_uploader_and_for_the_project_that_runs_it(harness: Harness) -> None:
    red, blue = await bearer(harness, "red"), await bearer(harness, "blue")
    colleague = await bearer(harness, "red", "viewer")
    client = harness.client
    uploaded = await client.post("/api/v1/bundles", content=folder("a.py"), headers=red)
    assert uploaded.status_code == 201, uploaded.text
    digest = uploaded.json()["digest"]
    url = f"/api/v1/bundles/{digest}"

    async def readers() -> list[bool]:
        answers = [await client.get(url, headers=who) for who in (red, colleague, blue)]
        assert {answer.status_code for answer in answers} <= {200, 404}
        for answer, who in zip(answers, (red, colleague, blue), strict=True):
            assert (await client.head(url, headers=who)).status_code == answer.status_code
        return [answer.status_code == 200 for answer in answers]

    assert await readers() == [True, False, False]
    job = {"name": "job", "run": "python a.py", "bundle": digest}
    stolen = await client.post("/api/v1/jobs", json={**job, "project": "blue"}, headers=blue)
    assert (stolen.status_code, stolen.json()["errors"][0]["field"]) == (422, "bundle")
    done = await client.post("/api/v1/jobs", json={**job, "project": "red"}, headers=red)
    assert done.status_code == 201, done.text
    assert await readers() == [True, True, False]
    # Whoever has the bytes needs no leave: they upload them too, and nothing is stored twice.
    own = await client.post("/api/v1/bundles", content=folder("a.py"), headers=blue)
    assert (own.status_code, own.json()["digest"]) == (200, digest)
    assert await readers() == [True, True, True]
    assert (
        await client.post("/api/v1/jobs", json={**job, "project": "blue"}, headers=blue)
    ).status_code == 201


async def test_an_agent_reads_the_bundles_of_what_it_runs(harness: Harness) -> None:
    agent, idle = await harness.join("alpha"), await harness.join("beta")
    uploads = [
        await harness.client.post("/api/v1/bundles", content=folder(name)) for name in ("a.py", "b.py")
    ]
    mine, other = (f"/api/v1/bundles/{one.json()['digest']}" for one in uploads)
    await harness.submit(
        "job", run="python a.py", bundle=uploads[0].json()["digest"], elastic={"min": 2, "max": 2}
    )
    await harness.turn()
    holder = agent if await agent.commands() else idle
    for who, url, status in (
        (holder, mine, 200),
        (holder, other, 404),
        (idle if holder is agent else agent, mine, 404),
    ):
        headers = {"Authorization": f"Bearer {who.joined.node_token}"}
        assert (await harness.client.get(url, headers=headers)).status_code == status
