"""Commands beside a living rank, run by a real keeper with real processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from worker_agent.host.folders import StateFolder, boot_s, write_json
from worker_agent.launcher.keeper import CannotStart, Keeper
from worker_agent.launcher.preload import Preloaded
from worker_agent.launcher.protocol import LaunchPlan
from worker_agent.launcher.sessions import Streams

RUN = "job/1"


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    state = StateFolder(tmp_path)
    state.make()
    folder = state.run(RUN)
    folder.path.mkdir(parents=True)
    plan = LaunchPlan(
        argv=("/bin/sleep", "60"), how="spawn", cwd=str(tmp_path), threads=1, store_host=None, store_port=1,
        node_count=1, ranks={0: {"RANK": "0", "PATH": os.defpath}},
    )  # fmt: skip
    write_json(folder.launch, plan.to_json())
    keeper = Keeper(state, Preloaded(has_torch=False, no_fork="a test"), lambda _: None, lambda: None)
    keeper.renew(boot_s() + 60)
    assert keeper.start(RUN).how == "spawn"
    return keeper


def execute(keeper: Keeper, rank: int, *argv: str, given: bytes = b"") -> tuple[int, list[int]]:
    pipes = [os.pipe() for _ in range(4)]
    os.write(pipes[0][1], given)
    os.close(pipes[0][1])
    (stdin, _), (out, stdout), (err, stderr), (ends, status) = pipes
    streams = Streams(stdin=stdin, stdout=stdout, stderr=stderr, status=status)
    return keeper.execute(RUN, rank, argv, streams), [out, err, ends]


def end(keeper: Keeper, pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    keeper.reap()


def read_all(descriptors: list[int]) -> list[bytes]:
    read = []
    for descriptor in descriptors:
        with os.fdopen(descriptor, "rb") as file:
            read.append(file.read())
    return read


def test_command_has_streams_environment_folder_and_code(keeper: Keeper, tmp_path: Path) -> None:
    pid, ends = execute(keeper, 0, "/bin/sh", "-c", "cat; pwd; echo $RANK >&2; exit 7", given=b"in\n")
    end(keeper, pid)
    out, err, status = read_all(ends)
    assert out.decode() == f"in\n{tmp_path}\n"
    assert err == b"0\n"
    assert json.loads(status) == {"exit_code": 7, "signal": None}
    keeper.kill(RUN)


def test_kill_of_run_ends_command_by_signal(keeper: Keeper) -> None:
    pid, ends = execute(keeper, 0, sys.executable, "-c", "import time; time.sleep(60)")
    keeper.kill(RUN)
    end(keeper, pid)
    assert json.loads(read_all(ends)[2]) == {"exit_code": None, "signal": signal.SIGKILL}


def test_command_of_absent_rank_is_refused(keeper: Keeper) -> None:
    with pytest.raises(CannotStart) as refused:
        execute(keeper, 1, "/bin/true")
    assert refused.value.retryable
    keeper.kill(RUN)
