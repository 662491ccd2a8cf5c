"""`headway up` with everything real: the service, the stores, agents, a job."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.client.client import Client
from headway.client.target import target
from headway.contract.spec import JobSpec
from headway.contract.views.diagnosis import Level
from headway.contract.views.jobs import JobState
from headway.local.ports import free_port
from headway.local.processes import LocalError, end
from headway.local.stack import LocalStack, Stores
from tests.integration.local.footprint import kill_all, processes_of, until

HEADWAY = [sys.executable, "-m", "headway.cli"]


def started(work: Path) -> list[str]:
    return sorted(path.name for path in work.glob("started-*"))


def submit(client: Client, work: Path) -> str:
    spec = {
        "name": "waiter",
        "run": f"python train.py {work}",
        "workdir": str(work),
        "elastic": {"resize": "restart"},
        "checkpoint": {"grace_s": 5},
    }
    return client.submit(JobSpec.model_validate(spec)).id


def finish(client: Client, work: Path, job: str) -> None:
    (work / "finish").touch()
    *_, last = client.watch(job, every_s=0.1)
    assert last.state is JobState.SUCCEEDED, last.message


@contextmanager
def up(data: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`headway up` in a process of its own, from its readiness on."""
    command = [*HEADWAY, "up", "--data", str(data), "--port", str(free_port()), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=home(data)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip().startswith("stop"):
                break
        else:
            pytest.fail("headway up ended before everything was up")
        try:
            yield process
        finally:
            end(process.pid, (signal.SIGTERM, signal.SIGKILL), 60.0)


def home(data: Path) -> dict[str, str]:
    return {**os.environ, "HEADWAY_HOME": str(data)}


def client_of(data: Path) -> Client:
    found = target(home(data))
    return Client(found.url, found.token, patience_s=30.0)


@pytest.mark.slow
def test_a_job_goes_on_after_the_stack_was_stopped(data: Path, work: Path):
    with LocalStack(data, agents=2, slots=1) as stack, stack.client() as client:
        assert {node.name: len(node.slots) for node in client.nodes()} == {"local-1": 1, "local-2": 1}
        levels = {check.name: check.level for check in client.diagnosis().checks}
        assert levels["scheduler"] is Level.OK, "a scheduler leads when `up` returns"
        job = submit(client, work)
        until(lambda: started(work), "the script to start")
        with pytest.raises(LocalError, match="already runs on"):
            LocalStack(data).start()
    until(lambda: not processes_of(data), "everything to be gone")
    with LocalStack(data, agents=2, slots=1) as stack, stack.client() as client:
        until(lambda: len(started(work)) == 2, "the script to start again")
        finish(client, work, job)
        assert client.job(job).user_errors == 0


@pytest.mark.slow
def test_a_job_goes_on_after_everything_was_killed(data: Path, work: Path):
    with up(data), client_of(data) as client:
        job = submit(client, work)
        until(lambda: started(work), "the script to start")
        kill_all(data)
    with up(data), client_of(data) as client:
        until(lambda: len(started(work)) == 2, "the script to start again")
        finish(client, work, job)
        assert client.job(job).user_errors == 0


@pytest.mark.slow
def test_what_dies_is_started_again(data: Path, work: Path):
    with LocalStack(data, slots=1) as stack, Client(stack.url, stack.token, patience_s=30.0) as client:
        job = submit(client, work)
        until(lambda: started(work), "the script to start")
        victims = {name: program.pid for name, program in stack.programs.items()}
        servers = [pid for pid, command in processes_of(data).items() if is_server(command)]
        for pid in [*victims.values(), *servers]:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        until(
            lambda: all(is_replaced(stack, name, pid) for name, pid in victims.items()),
            "the programs to be back",
        )
        finish(client, work, job)
        assert len(started(work)) == 1, "the ranks outlive all of it"


def is_server(command: str) -> bool:
    return "redis-server" in command or "/postgres -D" in command


def is_replaced(stack: LocalStack, name: str, pid: int | None) -> bool:
    return stack.programs[name].alive() and stack.programs[name].pid != pid


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_signal_stops_everything_in_order(data: Path, number: signal.Signals):
    with up(data, "--agents", "0") as process:
        process.send_signal(number)
        process.send_signal(number)
        assert process.wait(60) == 0
    until(lambda: not processes_of(data), "everything to be gone")


STARTS = (
    "starting PostgreSQL",
    "migrating the database",
    "starting api",
    "starting scheduler",
    "starting agent local-1",
)
"""Steps of a start in their order."""


@pytest.mark.slow
def test_a_background_stack_is_stopped_by_down(data: Path):
    flags = ["--data", str(data)]
    command = [
        *HEADWAY,
        "up",
        *flags,
        "--agents",
        "1",
        "--slots",
        "1",
        "--port",
        str(free_port()),
        "--detach",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=home(data), check=False)
    assert done.returncode == 0, done.stderr
    assert "headway down" in done.stdout
    steps = done.stderr.splitlines()
    began = [next(at for at, step in enumerate(steps) if step.startswith(one)) for one in STARTS]
    assert began == sorted(began), "each start is named when it happens"
    assert "Headway is up" not in done.stderr, "the summary stands once, on stdout"
    with client_of(data) as client:
        assert [node.name for node in client.nodes()] == ["local-1"]
    second = subprocess.run(command, capture_output=True, text=True, env=home(data), check=False)
    assert second.returncode == 1
    assert second.stderr.count("already runs on") == 1
    stopped = subprocess.run([*HEADWAY, "down", *flags], capture_output=True, text=True, check=False)
    assert (stopped.returncode, stopped.stdout.startswith("Stopped. ")) == (0, True)
    until(lambda: not processes_of(data), "everything to be gone")
    again = subprocess.run([*HEADWAY, "down", *flags], capture_output=True, text=True, check=False)
    assert "is not running" in again.stdout


def test_a_taken_port_is_an_error_and_leaves_nothing(data: Path):
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        with pytest.raises(LocalError, match=r"Port \d+ is taken by another program.*--port"):
            LocalStack(data, port=stranger.getsockname()[1]).start()
    until(lambda: not processes_of(data), "everything to be gone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stores", "expected"),
    [
        (Stores(database_url="postgresql://nobody@127.0.0.1:1/none"), "(?i)postgres"),
        (Stores(redis_url="redis://127.0.0.1:1/0"), "(?i)redis"),
    ],
)
def test_configured_stores_that_do_not_answer_are_an_error(data: Path, stores: Stores, expected: str):
    with pytest.raises(LocalError, match=expected):
        LocalStack(data, agents=0, stores=stores).start()
    until(lambda: not processes_of(data), "everything to be gone")
