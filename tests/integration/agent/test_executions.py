"""Commands beside ranks of a real agent: they get the rank's user, confinement and working folder, and nothing more."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from headway.contract.agents import ExecCommand, ExecInput
from headway.contract.executions import ExecutionEnd, ExecutionInput, ExecutionOutcome, Terminal
from tests.integration.agent.looking import alive, wait_until
from tests.integration.agent.stub import AgentProcess, StubService

pytestmark = pytest.mark.slow
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give jobs users of their own")
JOB = "j00000001"
KINDS = [pytest.param("users", marks=needs_root), "landlock", "none"]

PLACE = """
import json, os, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
place = {name: status[name].split() for name in ("Uid", "Gid", "Groups", "Seccomp", "NoNewPrivs", "CapEff", "Umask")}
place["folder"] = os.getcwd()
place["rank"] = os.environ["RANK"]
try:
    os.listdir(sys.argv[1])
    place["reads the agent"] = True
except PermissionError:
    place["reads the agent"] = False
print(json.dumps(place), flush=True)
"""
RANK = "import subprocess, sys, time\nsubprocess.run([sys.executable, *sys.argv[1:]], check=True)\ntime.sleep(600)\n"


TREE = """
(setsid sleep 600 & echo $!)
(setsid env -i /bin/sleep 600 & echo $!)
setsid sh -c 'env -i /bin/sleep 600 & echo $!; exec sleep 600' &
echo end
exec sleep 600
"""
"""Command with descendants in sessions of their own, of which two have no environment; it prints their process ids."""


def _start_rank(stub: StubService, make_agent: Callable[..., AgentProcess], kind: str) -> None:
    """Start an agent with this isolation and a rank that sleeps."""
    agent = make_agent("--isolation", kind)
    agent.start()
    stub.wait_for(lambda: stub.reports)
    stub.run(JOB, "sleep 600")
    stub.started(JOB)


def _execute(
    stub: StubService, name: str, argv: list[str], timeout_s: float, terminal: Terminal | None = None
) -> None:
    command = ExecCommand(
        command_id=stub.command_id(), job_id=JOB, generation=1, rank=0, execution=name,
        argv=argv, timeout_s=timeout_s, terminal=terminal,
    )  # fmt: skip
    stub.push(command)


def _end_of(stub: StubService) -> ExecutionEnd:
    return stub.wait_for(lambda: next((one.end for one in stub.executions if one.end is not None), None))


def _printed(stub: StubService, stream: str = "stdout") -> str:
    parts = [part for report in stub.executions for part in report.parts if part.stream == stream]
    return b"".join(part.data for part in parts).decode()


def _start_tree(stub: StubService, name: str, timeout_s: float) -> list[int]:
    """Start `TREE` as the only command, and return the process ids of its descendants."""
    stub.executions.clear()
    _execute(stub, name, ["sh", "-c", TREE], timeout_s)
    words = stub.wait_for(lambda: found if len(found := _printed(stub).split()) == 4 else None)
    return [int(word) for word in words if word != "end"]


@pytest.mark.parametrize("kind", KINDS)
def test_command_has_the_user_confinement_and_folder_of_its_rank(
    stub: StubService, make_agent: Callable[..., AgentProcess], kind: str
) -> None:
    agent = make_agent("--isolation", kind)
    agent.start()
    stub.wait_for(lambda: stub.reports)
    files = {"place.py": PLACE, "rank.py": RANK}
    stub.run(JOB, f"python rank.py place.py {agent.state}", bundle=stub.add_bundle(files))
    of_rank = json.loads(stub.wait_log(JOB, "}").strip().splitlines()[-1])
    _execute(stub, "x1", ["python", "place.py", str(agent.state)], 60)
    end = _end_of(stub)
    printed = {stream: _printed(stub, stream) for stream in ("stdout", "stderr")}
    assert (end.outcome, end.exit_code) == (ExecutionOutcome.EXITED, 0), printed
    assert json.loads(printed["stdout"]) == of_rank
    assert of_rank["reads the agent"] == (kind == "none")


@pytest.mark.parametrize("kind", KINDS)
def test_descendants_in_their_own_sessions_end_with_a_cancel_a_timeout_and_the_rank(
    stub: StubService, make_agent: Callable[..., AgentProcess], kind: str
) -> None:
    _start_rank(stub, make_agent, kind)

    cancelled = _start_tree(stub, "x1", 600)
    assert all(map(alive, cancelled))
    stub.cancelled.add("x1")
    assert _end_of(stub).outcome is ExecutionOutcome.CANCELLED
    wait_until(lambda: not any(map(alive, cancelled)), 10)

    timed_out = _start_tree(stub, "x2", 8)
    assert _end_of(stub).outcome is ExecutionOutcome.TIMED_OUT
    wait_until(lambda: not any(map(alive, timed_out)), 10)

    left = _start_tree(stub, "x3", 600)
    assert all(map(alive, left))
    stub.send_stop(JOB, mode="kill", grace_s=0.1)
    end = _end_of(stub)
    assert (end.outcome, end.signal) == (ExecutionOutcome.EXITED, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, left)), 10)


@pytest.mark.parametrize("kind", KINDS)
def test_terminal_is_that_of_the_command_and_its_keys_reach_the_program_in_the_foreground(
    stub: StubService, make_agent: Callable[..., AgentProcess], kind: str
) -> None:
    _start_rank(stub, make_agent, kind)
    _execute(stub, "x1", ["sh", "-i"], 60, Terminal(rows=31, columns=97, term="dumb"))
    chunks = iter(range(1, 100))

    def type_keys(text: str) -> None:
        chunk = ExecutionInput(sequence=next(chunks), data=text.encode())
        message = ExecInput(
            command_id=stub.command_id(), job_id=JOB, generation=1, execution="x1", chunk=chunk
        )
        for _ in range(2):  # the second is a repetition, which counts for nothing
            stub.push(message)

    type_keys("stty size; echo on-$((1 + 1)) > /dev/tty; echo $TERM\r")
    stub.wait_for(lambda: "31 97\r\non-2\r\ndumb\r\n" in _printed(stub))
    type_keys("echo now-$((1 + 1)); sleep 600\r")
    stub.wait_for(lambda: "now-2" in _printed(stub))
    type_keys("\x03")
    type_keys("echo code-$?\r")
    stub.wait_for(lambda: "code-130" in _printed(stub))
    type_keys("exit 7\r")
    assert _end_of(stub).exit_code == 7
    assert stub.executions[-1].taken in {4, 5}
