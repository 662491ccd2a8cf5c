"""Proxy variables of a company's network, at the command line and at an agent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.loopback import headway, served
from tests.unit.headway.stub import StubService, job_view, page, refusal

DEAD = "http://127.0.0.1:9"


@pytest.fixture
def url() -> Iterator[str]:
    service = StubService()
    service.on("GET /api/v1/jobs", page(job_view()))
    service.on("POST /api/v1/agents", refusal(401, "unauthorized", "no such token"))
    with served(service) as found:
        yield found


@pytest.mark.parametrize(
    "env",
    [
        {"ALL_PROXY": "socks5://127.0.0.1:9"},
        {"all_proxy": "socks://127.0.0.1:9"},
        {"http_proxy": DEAD, "https_proxy": DEAD},
        {"HTTP_PROXY": "127.0.0.1:9"},
    ],
    ids=str,
)
def test_service_on_loopback_is_reached_without_the_proxy(url: str, env: dict[str, str]) -> None:
    done = headway("ps", url=url, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"digits" in done.stdout


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"ALL_PROXY": "socks5://me:word@proxy.example:1080"}, "ALL_PROXY=socks5://me"),
        ({"all_proxy": "socks://proxy.example:1080"}, "all_proxy=socks://proxy.example:1080"),
    ],
    ids=["socks5", "socks"],
)
def test_proxy_that_cannot_be_used_is_named(env: dict[str, str], says: str) -> None:
    done = headway("ps", url="http://headway.example:8123", env=env)
    said = done.stderr.decode()
    assert done.returncode == 1
    assert says in said
    assert "NO_PROXY=headway.example" in said
    assert "Traceback" not in said
    assert "word" not in said


def test_agent_reaches_a_service_on_loopback_without_the_proxy(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "worker_agent", "--url", url, "--token", "wrong", "--name", "a"]
    env = {**os.environ, "http_proxy": DEAD, "ALL_PROXY": "socks5://127.0.0.1:9"}
    done = subprocess.run(
        [*command, "--state-dir", str(tmp_path / "agent"), "--slots", "1"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "refused this agent (401): no such token" in done.stderr
    assert done.returncode == 78
