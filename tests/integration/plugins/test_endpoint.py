"""An endpoint with its page: four files, put into a copy of the service, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.service.conftest import JOIN_TOKEN, TOKEN, join_body

ENDPOINT = Path(__file__).parent / "endpoint"
ROOT = Path(__file__).parents[3]
ASKING = """
import asyncio, json, os, sys
import httpx
from service.main import Service
from service.settings import read_settings

async def main():
    service = Service(read_settings(os.environ))
    await service.check()
    found = {}
    transport = httpx.ASGITransport(app=service.app(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://headway") as client:
        joins = {"Authorization": "Bearer " + os.environ["HEADWAY_JOIN_TOKEN"]}
        found["join"] = (await client.post("/api/v1/agents", json=json.load(sys.stdin), headers=joins)).status_code
        found["nobody"] = (await client.get("/api/v1/capacity")).status_code
        client.headers["Authorization"] = "Bearer " + os.environ["HEADWAY_API_TOKEN"]
        found["items"] = (await client.get("/api/v1/capacity")).json()["items"]
        found["page"] = (await client.get("/capacity")).text
        found["home"] = (await client.get("/")).text
        found["described"] = "/api/v1/capacity" in (await client.get("/openapi.json")).json()["paths"]
    await service.close()
    print(json.dumps(found))

asyncio.run(main())
"""


@pytest.mark.slow
def test_four_files_are_an_endpoint_with_its_page(database_url: str, redis_url: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "service", tmp_path / "service", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "migrations").symlink_to(ROOT / "migrations")
    added = [file.relative_to(ENDPOINT) for file in ENDPOINT.rglob("*") if file.suffix in {".py", ".html"}]
    assert len(added) == 4
    for file in added:
        assert not (tmp_path / file).exists(), "it replaces nothing"
        shutil.copy(ENDPOINT / file, tmp_path / file)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "HEADWAY_DATABASE_URL": database_url,
        "HEADWAY_REDIS_URL": redis_url,
        "HEADWAY_STORAGE_URL": f"file://{tmp_path}/storage",
        "HEADWAY_API_TOKEN": TOKEN,
        "HEADWAY_JOIN_TOKEN": JOIN_TOKEN,
    }
    run = subprocess.run(
        [sys.executable, "-c", ASKING],
        cwd=tmp_path,
        env=env,
        input=json.dumps(join_body("alpha", 3)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert (found["join"], found["nobody"], found["described"]) == (201, 401, True)
    assert [(one["device_kind"], one["free"]) for one in found["items"]] == [("cpu", 3)]
    assert "<h1>Capacity</h1>" in found["page"]
    assert "<li>3 slots of cpu</li>" in found["page"]
    assert 'href="/capacity"' in found["home"]
