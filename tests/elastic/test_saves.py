"""Saves by real processes: killed at any point, on a full disk, of shards that another number of ranks loads."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from headway.storage.stores import Folder, open_storage
from headway.train.checkpoint.store import Checkpoints, Failed
from headway.train.data.position import Position
from tests.elastic.harness import PATIENCE_S, _server
from tests.elastic.savers import (
    SAVES,
    load_shards,
    save_on_a_full_disk,
    save_shards,
    save_until_killed,
    state,
)


def run(target: Callable[..., None], *arguments: Any) -> int | None:
    """The exit code of a process that does this."""
    return together([(target, arguments)])[0]


def together(tasks: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> list[int | None]:
    """The exit codes of processes that run at the same time."""
    processes = [_server.Process(target=target, args=arguments) for target, arguments in tasks]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
        process.kill()
        process.join()
    return [process.exitcode for process in processes]


@pytest.mark.slow
def test_a_process_may_be_killed_at_any_point_of_a_save(tmp_path: Path) -> None:
    at, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        folder = tmp_path / str(at)
        folder.mkdir()
        code = run(save_until_killed, str(folder), at)
        done = folder / "done"
        complete = [int(line) for line in done.read_text().split()] if done.exists() else []
        found = Checkpoints(Folder(folder / "kept"), generation=2, keep=1).read()
        newest = -1 if found is None else found.state["value"]
        assert newest in {len(complete) - 1, len(complete)}, f"killed at event {at}"
        if found is not None:
            assert set(found.state["weights"].tolist()) == {float(newest)}
        at += 1
    assert code == 0
    assert complete == list(range(SAVES))
    assert at > 40, "the points are what they were thought to be"


def test_a_full_disk_costs_one_checkpoint(tmp_path: Path) -> None:
    assert run(save_on_a_full_disk, str(tmp_path)) == 0


@pytest.fixture
def saved(tmp_path: Path) -> tuple[str, str]:
    """The folder of checkpoints that two ranks saved at samples 0 and 1, and the file of the whole state."""
    root, result = str(tmp_path / "kept"), str(tmp_path / "whole.pt")
    assert over(2, save_shards, root, result) == [0, 0]
    return root, result


def over(size: int, target: Callable[..., None], *arguments: Any) -> list[int]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return together([(target, (rank, size, store.port, *arguments)) for rank in range(size)])


@pytest.mark.slow
def test_any_number_of_ranks_loads_what_two_have_saved(saved: tuple[str, str]) -> None:
    for size in (1, 2, 3):
        assert over(size, load_shards, *saved, 1) == [0] * size


@pytest.mark.slow
@pytest.mark.parametrize("part", ["0-0.safetensors", "1-0.safetensors", "manifest.json"])
def test_shards_that_are_damaged_are_passed_over_by_all(saved: tuple[str, str], part: str) -> None:
    newest = max(Path(saved[0]).iterdir())
    (newest / part).write_bytes((newest / part).read_bytes()[:-1])
    assert over(2, load_shards, *saved, 0) == [0, 0]


def test_a_store_that_is_away_fails_the_save_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*taken.getsockname()))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            monkeypatch.setenv(name, "any")
        checkpoints = Checkpoints(open_storage("s3://kept/jobs"), generation=1, keep=1)
        checkpoints.begin(state(1), Position(), samples=0)
        failed = checkpoints.wait()
    assert isinstance(failed, Failed)
    assert "Connection refused" in failed.reason or "error sending request" in failed.reason
