"""Last saves of folders that were never used: no end of a job waits for storage to say that there is nothing to save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.contract.agents import RankSlot, RunCommand
from tests.unit.worker_agent.runs.test_environment import command
from worker_agent.host.folders import RunFolder, StateFolder
from worker_agent.output.child import ChildReply
from worker_agent.output.folder_calls import FolderCalls, OutputNotMoved, OutputRun
from worker_agent.output.values import Outcome, Request
from worker_agent.runs import records


class Storage:
    """Storage as the child process reaches it: each call is recorded, and fails if it is `down`."""

    def __init__(self) -> None:
        self.down = False
        self.requests: list[Request] = []

    def call(self, _command: RunCommand, _folder: RunFolder, request: Request) -> ChildReply:
        self.requests.append(request)
        if self.down:
            return ChildReply(error="Storage does not answer")
        return ChildReply(outcome=Outcome(index=None))


def ended(tmp_path: Path, **how: Any) -> OutputRun:
    """A live run whose rank 0 has ended so."""
    state = StateFolder(tmp_path / "state")
    state.make()
    made = records.new_run(
        state, command(generation=1, live=True, ranks=[RankSlot(rank=0, local_rank=0, slot=0)])
    )
    made.folder.exit(0).write_text(json.dumps({"exit_code": None, "signal": None, **how}))
    made.folder.gone.touch()
    return OutputRun(made.command, made.folder)


def save(run: OutputRun, storage: Storage) -> Outcome | None:
    return FolderCalls(storage, "n").save([run], run, last=True, handed_over=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [0, 143])
def test_folder_that_was_never_used_asks_nothing_of_storage_at_the_usual_end(
    tmp_path: Path, code: int
) -> None:
    storage = Storage()
    assert save(ended(tmp_path, exit_code=code), storage) is None
    assert storage.requests == []


@pytest.mark.parametrize("down", [False, True])
def test_lost_rank_0_without_files_marks_its_end_once_whatever_storage_answers(
    tmp_path: Path, down: bool
) -> None:
    storage = Storage()
    storage.down = down
    assert save(ended(tmp_path, signal=9), storage) is None
    (request,) = storage.requests
    assert (request.do, request.mark, request.last) == ("save", 1, True)


def test_files_of_rank_0_are_saved_with_the_mark_and_a_failure_is_raised(tmp_path: Path) -> None:
    storage, run = Storage(), ended(tmp_path, exit_code=0)
    run.folder.job.output.mkdir(exist_ok=True)
    (run.folder.job.output / "best.pt").write_text("x")
    assert save(run, storage) is not None
    assert storage.requests[-1].mark == 1
    storage.down = True
    with pytest.raises(OutputNotMoved):
        save(run, storage)
