"""The host is taken away: the agent says so, and stops in time by itself what the service has not moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headway.contract.agents import InterruptionKind, InterruptionNotice, RankExited
from headway.contract.changes import STOP_FILE, ChangeKind, stop_from_json
from tests.fake_metadata import FakeMetadata
from tests.integration.agent.looking import wait_until
from tests.integration.agent.stub import AgentProcess, StubService

PLAIN = """
import os, signal, sys, threading
stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopped.set())
print("up", flush=True)
stopped.wait()
print("saved", flush=True)
sys.exit(143)
"""


@pytest.fixture
def fake() -> Iterator[FakeMetadata]:
    with FakeMetadata() as fake:
        yield fake


@pytest.fixture
def agent(
    stub: StubService, fake: FakeMetadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AgentProcess]:
    monkeypatch.setenv("HEADWAY_METADATA_URL", fake.url)
    agent = AgentProcess(stub.url, tmp_path / "state")
    agent.start()
    stub.wait_for(lambda: stub.reports)
    yield agent
    agent.clean_up()


def start(stub: StubService, job: str, **fields: float) -> None:
    stub.run(job, "python train.py", bundle=stub.add_bundle({"train.py": PLAIN}), **fields)
    stub.wait_log(job, "up")


def notices(stub: StubService) -> list[InterruptionNotice]:
    return [entry for entry in stub.entries if isinstance(entry, InterruptionNotice)]


@pytest.mark.slow
def test_a_notice_is_reported_at_once(stub: StubService, fake: FakeMetadata, agent: AgentProcess) -> None:
    start(stub, "job")
    fake.recommend_leaving()
    stub.wait_for(lambda: notices(stub))
    at = fake.take_away(120)
    stub.wait_for(lambda: len(notices(stub)) == 2)
    assert [(one.what, one.reclaim_at) for one in notices(stub)] == [
        (InterruptionKind.REBALANCE, None),
        (InterruptionKind.TERMINATE, at),
    ]
    assert not stub.of("job", RankExited), "there is time: the service moves it"


@pytest.mark.slow
def test_without_the_service_the_agent_stops_its_ranks_in_time(
    stub: StubService, fake: FakeMetadata, agent: AgentProcess
) -> None:
    start(stub, "job", grace_s=5.0)
    with stub.changed:
        stub.answering = False
    at = fake.take_away(16)
    state = agent.state / "runs" / "job" / "1"
    wait_until((state / "gone").exists)
    assert datetime.now(UTC) < at
    assert "saved" in (state / "rank-0.log").read_text()
    with stub.changed:
        stub.answering = True
    (exit_,) = stub.exits("job").values()
    assert (exit_.exit_code, exit_.stopped_by_agent) == (143, True)
    assert stop_from_json((state / "control" / STOP_FILE).read_text()).why.kind is ChangeKind.SPOT_NOTICE
    (notice,) = notices(stub)
    assert notice.sequence < exit_.sequence, "the service knows why before it hears of the end"


@pytest.mark.slow
def test_what_the_service_stops_is_not_stopped_again(
    stub: StubService, fake: FakeMetadata, agent: AgentProcess
) -> None:
    start(stub, "job")
    fake.take_away(120)
    stub.wait_for(lambda: notices(stub))
    stub.send_stop("job")
    (exit_,) = stub.exits("job").values()
    assert exit_.exit_code == 143
    assert "the host is taken away" not in agent.log()


def test_a_pilot_without_jobs_says_that_slurm_takes_it_before_it_ends(
    stub: StubService, make_agent: Callable[..., AgentProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_METADATA", "slurm")
    agent = make_agent("--own-jobs")
    agent.start()
    stub.wait_for(lambda: stub.reports)
    assert agent.end() == 0
    assert [one.what for one in notices(stub)] == [InterruptionKind.TERMINATE], (
        "or it would count as a failure"
    )
