"""A host learns that it will be taken away, and stops its runs by itself where it must."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.agents import InterruptionKind, InterruptionNotice
from tests.fake_metadata import ACTION, FakeMetadata
from worker_agent.host.folders import boot_s
from worker_agent.host.metadata import EC2_URL, Metadata, NoMetadata
from worker_agent.link.notices import NoticeWatcher
from worker_agent.link.outbox import Outbox
from worker_agent.options import parse
from worker_agent.runs.reconcile import ActionKind, Phase, RunState, last_call_s, reclaimed, reconcile

SECONDS = st.floats(0, 1e4)


@pytest.fixture
def fake() -> Iterator[FakeMetadata]:
    with FakeMetadata() as fake:
        yield fake


@pytest.fixture
def metadata(fake: FakeMetadata) -> Iterator[Metadata]:
    metadata = Metadata(fake.url)
    yield metadata
    metadata.close()


def test_usually_there_is_nothing(fake: FakeMetadata, metadata: Metadata) -> None:
    assert metadata.notices() == []
    assert metadata.notices() == []
    assert fake.asked.count("/latest/api/token") == 1, "a session lasts"


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_a_notice(fake: FakeMetadata, metadata: Metadata, action: str) -> None:
    at = fake.take_away(120, action)
    (notice,) = metadata.notices()
    assert (notice.what, notice.action, notice.reclaim_at) == (InterruptionKind.TERMINATE, action, at)


def test_a_recommendation_to_leave(fake: FakeMetadata, metadata: Metadata) -> None:
    fake.recommend_leaving()
    (notice,) = metadata.notices()
    assert (notice.what, notice.reclaim_at) == (InterruptionKind.REBALANCE, None)


def test_a_session_that_expired_is_opened_again(fake: FakeMetadata, metadata: Metadata) -> None:
    metadata.notices()
    fake.token = "another"
    fake.take_away(120)
    assert len(metadata.notices()) == 1


@pytest.mark.parametrize(
    "body", [b"", b"soon", b"[]", b'{"action": "terminate"}', b'{"action": "terminate", "time": "tomorrow"}']
)
def test_nonsense_is_no_notice(fake: FakeMetadata, metadata: Metadata, body: bytes) -> None:
    fake.bodies[ACTION] = body
    with pytest.raises(NoMetadata):
        metadata.notices()


@pytest.mark.parametrize("status", [403, 500, 503])
def test_errors_are_no_notice(fake: FakeMetadata, metadata: Metadata, status: int) -> None:
    fake.status = status
    with pytest.raises(NoMetadata, match=str(status)):
        metadata.notices()


def test_nobody_there() -> None:
    metadata = Metadata("http://127.0.0.1:9")
    with pytest.raises(NoMetadata, match="does not answer"):
        metadata.notices()
    metadata.close()


def test_each_notice_is_reported_once_and_survives_a_restart(
    fake: FakeMetadata, metadata: Metadata, tmp_path: Path
) -> None:
    outbox = Outbox(tmp_path / "outbox.jsonl")
    deadlines: list[float] = []
    watcher = NoticeWatcher(
        source=metadata, outbox=outbox, reclaimed=deadlines.append, stopping=threading.Event()
    )
    fake.status = 500
    watcher.run_once()
    fake.status = None
    fake.recommend_leaving()
    watcher.run_once()
    at = fake.take_away(60)
    watcher.run_once()
    watcher.run_once()
    (deadline_s,) = deadlines
    left_s = (at - datetime.now(UTC)) / timedelta(seconds=1)
    assert deadline_s - boot_s() == pytest.approx(left_s, abs=0.5)
    later = fake.take_away(90)
    watcher.run_once()
    assert deadlines[1] > deadline_s, "put off"
    outbox.close()
    again = Outbox(tmp_path / "outbox.jsonl")
    entries, _ = again.take(10)
    again.close()
    said = [(entry.what, entry.reclaim_at) for entry in entries if isinstance(entry, InterruptionNotice)]
    terminate = InterruptionKind.TERMINATE
    assert said == [(InterruptionKind.REBALANCE, None), (terminate, at), (terminate, later)]


@given(grace_s=SECONDS, noticed_s=SECONDS, notice_s=SECONDS)
def test_the_last_call_leaves_half_to_the_service_and_the_grace_if_it_can(
    grace_s: float, noticed_s: float, notice_s: float
) -> None:
    reclaim_s = noticed_s + notice_s
    due_s = last_call_s(grace_s, noticed_s, reclaim_s)
    assert noticed_s <= due_s <= reclaim_s
    if notice_s >= 2 * grace_s + 4:
        assert reclaim_s - due_s >= grace_s
    elif notice_s > 4:
        assert due_s - noticed_s >= (notice_s - 2) / 2 - 1e-6


@given(now_s=SECONDS, left_s=st.floats(-100, 1000))
def test_what_is_stopped_has_ended_before_the_host_is_gone(now_s: float, left_s: float) -> None:
    run = RunState(job_id="j", generation=1, slots=frozenset({0}), phase=Phase.LIVE)
    run = reclaimed(run, reclaim_s=now_s + left_s, now_s=now_s)
    assert run.terminate
    assert run.kill_at_s is not None
    assert now_s <= run.kill_at_s <= max(now_s + left_s, now_s)
    actions = [action.kind for action in reconcile([run], now_s)]
    assert actions == [ActionKind.TERMINATE if run.kill_at_s > now_s else ActionKind.KILL]


BASE = ["--url", "http://127.0.0.1:1", "--token", "t"]


@pytest.mark.parametrize(
    ("env", "url"),
    [
        ({}, None),
        ({"HEADWAY_METADATA": "ec2"}, EC2_URL),
        ({"HEADWAY_METADATA_URL": "http://127.0.0.1:9"}, "http://127.0.0.1:9"),
        ({"HEADWAY_METADATA_URL": "http://127.0.0.1:9", "HEADWAY_METADATA": "ec2"}, "http://127.0.0.1:9"),
    ],
)
def test_nobody_is_asked_unless_told(env: dict[str, str], url: str | None) -> None:
    assert parse(BASE, env).metadata_url == url


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"HEADWAY_METADATA": "moon"}, "'moon' is not supported"),
        ({"HEADWAY_METADATA_URL": "here"}, "'here' is not a URL"),
    ],
)
def test_wrong_settings(env: dict[str, str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(BASE, env)
    assert why in capsys.readouterr().err
