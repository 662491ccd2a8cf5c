"""An agent's own token: by what it comes back, kept for itself, renewed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.agent.stub import JOIN_TOKEN, AgentProcess, StubService

MakeAgent = Callable[..., AgentProcess]


def kept(state: Path) -> str:
    path = state / "credentials.json"
    assert path.stat().st_mode & 0o777 == 0o600
    token: str = json.loads(path.read_text())["node_token"]
    return token


@pytest.mark.slow
def test_an_agent_comes_back_by_its_own_token(
    stub: StubService, make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = make_agent()
    agent.start()
    stub.wait_for(lambda: stub.reports)
    assert kept(tmp_path / "state") == stub.node_token
    agent.kill()
    again = make_agent(token="")
    again.start()
    stub.wait_for(lambda: len(stub.joined_with) == 2)
    assert stub.joined_with == [JOIN_TOKEN, stub.node_token]


def test_a_forgotten_agent_joins_with_a_join_token(
    stub: StubService, make_agent: MakeAgent, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "credentials.json").write_text('{"node_token": "of-long-ago"}')
    make_agent().start()
    stub.wait_for(lambda: stub.reports)
    assert stub.joined_with == ["of-long-ago", JOIN_TOKEN]
    assert kept(tmp_path / "state") == stub.node_token


@pytest.mark.slow
@pytest.mark.parametrize(("kept_token", "code"), [(None, 2), ("of-long-ago", 78)])
def test_an_agent_that_nobody_knows_says_what_it_needs(
    make_agent: MakeAgent, tmp_path: Path, kept_token: str | None, code: int
) -> None:
    if kept_token is not None:
        (tmp_path / "state").mkdir(mode=0o700)
        (tmp_path / "state" / "credentials.json").write_text(json.dumps({"node_token": kept_token}))
    agent = make_agent(token="")
    agent.start()
    assert agent.wait() == code
    assert "headway join-token create" in agent.log()


def test_credentials_are_renewed_now_and_then_and_stored_before_they_are_used(
    stub: StubService, make_agent: MakeAgent, tmp_path: Path
) -> None:
    stub.renew_credentials_s = 0.01
    stub.report_every_s = 0.05
    make_agent().start()
    stub.wait_for(lambda: stub.renewed > 2)
    # A report with the newest token: it was stored by then.
    with stub.changed:
        stub.reports.clear()
        newest = stub.renewed
    stub.wait_for(lambda: stub.reports)
    assert int(kept(tmp_path / "state").rpartition("-")[2]) >= newest
    assert len(stub.joins) == 1, "nothing of it makes the agent join again"


@pytest.mark.slow
def test_an_agent_whose_redis_user_is_gone_asks_for_credentials(
    stub: StubService, make_agent: MakeAgent
) -> None:
    place = stub.redis_url.rpartition("@")[2]
    stub.redis_url = f"redis://headway-node-1:forgotten@{place}"
    make_agent().start()
    stub.wait_for(lambda: stub.renewed)
    stub.run("job", "true")
    stub.released("job")
    assert len(stub.joins) == 1
