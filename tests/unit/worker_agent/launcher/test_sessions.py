"""Commands beside a living rank, run by a real keeper with real processes."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from headway.contract.runtime import MEMBERSHIP_VARIABLES
from worker_agent.host.folders import StateFolder, boot_s, read_json, write_json
from worker_agent.launcher.keeper import CannotStart, Keeper
from worker_agent.launcher.preload import Preloaded
from worker_agent.launcher.protocol import Execute, Inbox, LaunchPlan, Lease, encode
from worker_agent.launcher.sessions import Streams

RUN = "job/1"


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return made_keeper(tmp_path)


def made_keeper(tmp_path: Path, *, ranks: int = 1, env: Mapping[str, str] | None = None) -> Keeper:
    given = {} if env is None else {**env, "PYTHONPATH": str(Path(__file__).parents[4])}
    state = StateFolder(tmp_path)
    state.make()
    folder = state.run(RUN)
    folder.path.mkdir(parents=True)
    plan = LaunchPlan(
        argv=("/bin/sleep", "60"), how="spawn", cwd=str(tmp_path), threads=1, store_host=None, store_port=1,
        node_count=1, ranks={rank: {**given, "RANK": str(rank), "PATH": os.defpath} for rank in range(ranks)},
    )  # fmt: skip
    write_json(folder.launch, plan.to_json())
    keeper = Keeper(state, Preloaded(has_torch=False, no_fork="a test"), lambda _: None, lambda: None)
    keeper.renew(boot_s() + 60)
    assert keeper.start(RUN).how == "spawn"
    return keeper


def rank_pid(tmp_path: Path, rank: int) -> int:
    pid: int = read_json(StateFolder(tmp_path).run(RUN).pid(rank))["pid"]
    return pid


def execute(
    keeper: Keeper, rank: int, *argv: str, given: bytes = b"", command: str = "", owner: object = None
) -> tuple[int, list[int]]:
    pipes = [os.pipe() for _ in range(4)]
    os.write(pipes[0][1], given)
    os.close(pipes[0][1])
    (stdin, _), (out, stdout), (err, stderr), (ends, status) = pipes
    streams = Streams(stdin=stdin, stdout=stdout, stderr=stderr, status=status)
    pid = keeper.execute(RUN, rank, argv, streams, command=command, owner=owner)
    return pid, [out, err, ends]


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


def test_command_without_environment_ends_with_its_own_rank(tmp_path: Path) -> None:
    keeper = made_keeper(tmp_path, ranks=2)
    pid, ends = execute(keeper, 0, "/usr/bin/env", "-i", "/bin/sleep", "60")
    watched = os.pidfd_open(pid)
    os.kill(rank_pid(tmp_path, 0), signal.SIGKILL)
    end(keeper, rank_pid(tmp_path, 0))
    assert select.select([watched], [], [], 60)[0]
    os.close(watched)
    keeper.reap()
    assert json.loads(read_all(ends)[2]) == {"exit_code": None, "signal": signal.SIGKILL}
    keeper.kill(RUN)


@pytest.mark.parametrize(
    "script",
    ["setsid sleep 600 & echo $!; wait", "(setsid env -i /bin/sleep 600 & echo $!); exec sleep 600"],
    ids=["own session", "orphan without environment"],
)
def test_killed_command_leaves_no_descendant_in_another_session(keeper: Keeper, script: str) -> None:
    pid, ends = execute(keeper, 0, "/bin/sh", "-c", script, command="x1")
    left = int(os.read(ends[0], 20))
    watched = os.pidfd_open(left)
    while os.getsid(left) != left:  # it has not called setsid yet
        pass
    keeper.end_command("x1")
    end(keeper, pid)
    assert select.select([watched], [], [], 60)[0]
    os.close(watched)
    keeper.kill(RUN)
    read_all(ends)


def test_process_that_a_command_left_behind_ends_with_it(keeper: Keeper) -> None:
    pid, ends = execute(
        keeper, 0, "/bin/sh", "-c", "setsid sleep 600 >/dev/null & echo $!; sleep 0.2", command="x1"
    )
    watched = os.pidfd_open(int(os.read(ends[0], 20)))
    end(keeper, pid)
    assert select.select([watched], [], [], 60)[0]
    os.close(watched)
    keeper.kill(RUN)
    read_all(ends)


def test_end_of_a_connection_kills_only_its_own_commands(keeper: Keeper) -> None:
    agent, other = object(), object()
    pid, ends = execute(keeper, 0, "/bin/cat", "/dev/zero", command="x1", owner=agent)
    keeper.end_commands(other)
    assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    keeper.end_commands(agent)
    end(keeper, pid)
    keeper.kill(RUN)
    assert json.loads(read_all(ends)[2])["signal"] == signal.SIGKILL


def test_command_has_no_variable_through_which_it_would_join_the_training(tmp_path: Path) -> None:
    joining = dict.fromkeys(MEMBERSHIP_VARIABLES, "1")
    keeper = made_keeper(tmp_path, env=joining)
    pid, ends = execute(keeper, 0, sys.executable, "-c", "import headway; headway.init()", command="x1")
    end(keeper, pid)
    assert b"command beside a rank" in read_all(ends)[1]
    pid, ends = execute(keeper, 0, "/usr/bin/env", command="x2")
    end(keeper, pid)
    keeper.kill(RUN)
    names = {line.partition(b"=")[0].decode() for line in read_all(ends)[0].splitlines()}
    assert names == {"RANK", "PATH", "PYTHONPATH", "HEADWAY_BESIDE", "HEADWAY_COMMAND"}


def test_long_order_arrives_with_its_descriptors_and_so_do_those_around_it() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    orders = [
        Execute(RUN, 0, name, (argument,))
        for name, argument in (("a", "é" * 8_000), ("b", "\U0001f600" * 8_000), ("c", "short"))
    ]
    pipes = [os.pipe() for _ in orders]

    def send() -> None:
        with ours:
            for order, (_, writer) in zip(orders, pipes, strict=True):
                ours.sendall(encode(Lease(1.0)))
                socket.send_fds(ours, [encode(order)], [writer])
                os.close(writer)

    sender = threading.Thread(target=send)
    sender.start()
    inbox, found = Inbox(), []
    while (received := inbox.receive(theirs)) is not None:
        found += received
    sender.join()
    theirs.close()
    assert [message for message, _ in found if isinstance(message, Execute)] == orders
    assert [len(held) for _, held in found] == [0, 1] * 3
    for number, (writer,) in enumerate(held for _, held in found if held):
        os.write(writer, b"x")
        os.close(writer)
        assert read_all([pipes[number][0]]) == [b"x"]
