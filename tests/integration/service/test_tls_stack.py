"""The programs as they are started, by TLS: the service, an agent that takes part, a client."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from headway.errors import HeadwayError
from headway.local.ports import free_port
from tests.tls import context_of, issue, relay
from tests.waiting import until

TOKEN = "a" * 40


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_job_runs_where_everything_is_encrypted(
    database_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = issue(tmp_path, "all")
    port = free_port()
    there = urlsplit(redis_url)
    assert there.port is not None
    monkeypatch.setenv("HEADWAY_CA_FILE", str(certificate))
    async with relay(context_of(certificate, key), there.port) as redis_port:
        encrypted = redis_url.replace("redis://", "rediss://").replace(str(there.port), str(redis_port))
        env = {
            **os.environ,
            "HEADWAY_DATABASE_URL": database_url,
            "HEADWAY_REDIS_URL": encrypted,
            "HEADWAY_STORAGE_URL": f"file://{tmp_path}/storage",
            "HEADWAY_API_TOKEN": TOKEN,
            "HEADWAY_JOIN_TOKEN": "j" * 40,
            "HEADWAY_PORT": str(port),
            "HEADWAY_URL": f"https://127.0.0.1:{port}",
            "HEADWAY_TLS_CERT": str(certificate),
            "HEADWAY_TLS_KEY": str(key),
        }
        agent = ["worker_agent", "--name", "alpha", "--slots", "1", "--own-jobs"]
        agent += ["--state-dir", str(tmp_path / "agent")]
        commands = [[sys.executable, "-m", *words] for words in (["service", "all"], agent)]
        programs = [await asyncio.create_subprocess_exec(*command, env=env) for command in commands]
        try:
            with Client(env["HEADWAY_URL"], TOKEN, patience_s=0.0) as client:

                def joined() -> bool:
                    try:
                        return bool(list(client.nodes()))
                    except HeadwayError:
                        return False  # it is not up yet

                await until(lambda: asyncio.to_thread(joined), 110)
                await asyncio.to_thread(client.submit, JobSpec(name="hello", run="true"))
                await until(
                    lambda: asyncio.to_thread(lambda: client.job("hello").state is JobState.SUCCEEDED), 110
                )
        finally:
            for program in programs:
                program.terminate()
            for program in programs:
                await asyncio.wait_for(program.wait(), 30)
