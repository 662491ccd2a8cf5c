"""Keys for checkpoints in the control folders of runs."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headway.contract.credentials import StorageAccess, StorageCredentials
from headway.contract.runtime import STORAGE_FILE
from worker_agent.host.folders import RunFolder, StateFolder
from worker_agent.link.service_api import Refused, Unreachable
from worker_agent.link.storage_keys import SigningPlace, StorageKeys

HOUR = timedelta(hours=1)
PLACE = SigningPlace("https://headway.example.com", "PEM")


class Service:
    """Gives keys that count up, or what else it was told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.refusal: Exception | None = None
        self.gives = True

    def ask(self, job_id: str, generation: int) -> StorageAccess:
        self.asked.append((job_id, generation))
        if self.refusal is not None:
            raise self.refusal
        if not self.gives:
            return StorageAccess()
        keys = StorageCredentials(
            uri="s3://bucket/x",
            access_key_id=f"key-{len(self.asked)}",
            secret_access_key="secret",
            session_token="token",
            expires_at=datetime.now(UTC) + HOUR,
        )
        return StorageAccess(credentials=keys)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    made = StateFolder(tmp_path / "state")
    made.make()
    return made


@pytest.fixture
def keys(service: Service, state: StateFolder) -> StorageKeys:
    return StorageKeys(service.ask, PLACE, state, threading.Event())


@pytest.fixture
def run(state: StateFolder) -> RunFolder:
    folder = state.job("j00000001").run(3)
    folder.path.mkdir(parents=True)
    return folder


def kept(run: RunFolder) -> str:
    text: str = json.loads((run.control / STORAGE_FILE).read_text())["access_key_id"]
    return text


def test_ranks_find_keys_that_others_cannot_read(keys: StorageKeys, run: RunFolder) -> None:
    keys.provide("j00000001", 3, run)
    assert kept(run) == "key-1"
    assert (run.control / STORAGE_FILE).stat().st_mode & 0o777 == 0o640
    assert run.control.stat().st_mode & 0o777 == 0o700


def test_keys_are_renewed_long_before_they_expire(
    keys: StorageKeys, service: Service, run: RunFolder
) -> None:
    keys.provide("j00000001", 3, run)
    now_s = datetime.now(UTC).timestamp()
    keys.renew_due(now_s + 600)
    assert kept(run) == "key-1"
    keys.renew_due(now_s + 1300)
    assert (kept(run), service.asked) == ("key-2", [("j00000001", 3)] * 2)


def test_a_service_that_is_away_takes_nothing(keys: StorageKeys, service: Service, run: RunFolder) -> None:
    keys.provide("j00000001", 3, run)
    service.refusal = Unreachable("away")
    keys.renew_due(datetime.now(UTC).timestamp() + 3000)
    assert kept(run) == "key-1"


def test_a_run_that_is_not_ours_any_more_loses_its_keys(
    keys: StorageKeys, service: Service, run: RunFolder
) -> None:
    keys.provide("j00000001", 3, run)
    service.refusal = Refused(404, "not yours")
    keys.renew_due(datetime.now(UTC).timestamp() + 3000)
    assert not (run.control / STORAGE_FILE).exists()


@pytest.mark.parametrize("over", ["gone", "ended"])
def test_runs_that_are_over_need_none(keys: StorageKeys, service: Service, run: RunFolder, over: str) -> None:
    keys.provide("j00000001", 3, run)
    (run.path / over).touch()
    keys.renew_due(datetime.now(UTC).timestamp() + 3000)
    assert len(service.asked) == 1


def test_where_the_service_gives_none_there_is_no_file(
    keys: StorageKeys, service: Service, run: RunFolder
) -> None:
    service.gives = False
    keys.provide("j00000001", 3, run)
    keys.renew_due(datetime.now(UTC).timestamp() + 3000)
    assert not run.control.exists()
