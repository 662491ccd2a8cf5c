"""`headway exec` behind the real service: the command line, the agent, its launcher and a rank."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import Any

import pytest

from headway.client.client import Client
from headway.contract.executions import ExecutionOutcome, ExecutionView
from headway.contract.runtime import MEMBERSHIP_VARIABLES
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from headway.http import ApiError
from tests.e2e.conftest import PATIENCE_S, Cluster, PatientJob

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def job(cluster: Cluster, name: str) -> str:
    """Name of a job with one rank that sleeps, which runs."""
    run = "sleep 600"
    spec = {"name": name, "run": run, "env": {"COLOUR": "teal"}, "elastic": {"min": 1, "max": 1}}
    cluster.client.submit(JobSpec.model_validate(spec))
    cluster.until(lambda: cluster.client.job(name).state is JobState.RUNNING, "its start")
    return name


def read(client: Client, execution: ExecutionView) -> tuple[bytes, ExecutionOutcome, int | None, int | None]:
    """Return the output of a command on stdout, and its end."""
    output = b""
    for event in client.follow_execution(execution):
        output += b"".join(part.data for part in event.parts if part.stream == "stdout")
        if event.end is not None:
            return output, event.end.outcome, event.end.exit_code, event.end.signal
    pytest.fail("no end")


def begin(cluster: Cluster, *arguments: str, text: bool = True) -> subprocess.Popen[Any]:
    env = {**os.environ, "HEADWAY_URL": cluster.stack.url, "HEADWAY_TOKEN": cluster.stack.token}
    return subprocess.Popen(
        [sys.executable, "-m", "headway.cli", "exec", *arguments],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=text,
    )


def test_command_has_streams_environment_and_exit_code_and_is_audited(cluster: Cluster, job: str) -> None:
    done = cluster.headway("exec", job, "--", "sh", "-c", "echo $COLOUR-$RANK; echo oops >&2; cat; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "teal-0\n", "oops\n")
    (entry,) = [
        one
        for one in json.loads(cluster.headway("audit", "-o", "json").stdout)["items"]
        if one["action"] == "execute_command" and job in one["target"]
    ]
    assert entry["detail"]["argv"].startswith("sh -c 'echo $COLOUR-$RANK")


def test_large_output_arrives_complete_and_beyond_the_limit_ends_the_command(
    cluster: Cluster, job: str
) -> None:
    client = cluster.client
    within = client.execute(job, ["head", "-c", "2000000", "/dev/zero"])
    assert read(client, within) == (bytes(2_000_000), ExecutionOutcome.EXITED, 0, None)
    _, outcome, _, _ = read(client, client.execute(job, ["yes"]))
    assert outcome is ExecutionOutcome.OUTPUT_LIMIT


def test_interrupted_cli_kills_the_command(cluster: Cluster, job: str) -> None:
    process = begin(cluster, job, "--", "sh", "-c", "echo ready; exec sleep 599.25")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    cluster.until(lambda: not sleeping("599.25"), "the end of the command")


def test_end_of_the_rank_ends_the_command(cluster: Cluster, job: str) -> None:
    execution = cluster.client.execute(job, ["sleep", "599.5"])
    cluster.until(lambda: sleeping("599.5"), "the command")
    cluster.client.cancel(job, force=True)
    assert read(cluster.client, execution) == (b"", ExecutionOutcome.EXITED, None, signal.SIGKILL)


def test_timeout_and_unknown_program_have_their_codes(cluster: Cluster, job: str) -> None:
    client = cluster.client
    assert read(client, client.execute(job, ["sleep", "600"], timeout_s=0.2))[1] is ExecutionOutcome.TIMED_OUT
    done = cluster.headway("exec", job, "--", "no-such-program")
    assert done.returncode == 126
    assert "no-such-program" in done.stderr


def test_wrong_requests_are_refused_with_stable_codes(cluster: Cluster, job: str) -> None:
    client = cluster.client

    def code_of(*argv: str, rank: int = 0, of: str = job) -> str:
        with pytest.raises(ApiError) as refused:
            client.execute(of, list(argv), rank=rank)
        return refused.value.problem.code

    assert code_of("true", rank=5) == "not_found"
    assert code_of("") == "invalid_field"
    assert code_of() == "invalid_field"
    running = [client.execute(job, ["sleep", "600"]) for _ in range(4)]
    assert code_of("true") == "too_many_commands"
    for one in running:
        client.cancel_execution(one)
    assert {read(client, one)[1] for one in running} == {ExecutionOutcome.CANCELLED}
    client.cancel(job, force=True)
    cluster.until(lambda: client.job(job).state is JobState.CANCELLED, "the end of the job")
    assert code_of("true") == "illegal_transition"


JOINS = """
import torch.distributed
torch.distributed.init_process_group("gloo")
print("joined", torch.distributed.get_world_size())
"""


@pytest.mark.parametrize("script", ["import headway; headway.init()", JOINS], ids=["headway", "torch"])
def test_training_script_as_a_command_fails_and_leaves_the_training_alone(
    patient: PatientJob, cluster: Cluster, script: str
) -> None:
    patient.start(2, most=2)
    generation = patient.view().generation
    done = cluster.headway("exec", patient.name, "--", "python", "-c", script)
    assert done.returncode == 1, done.stderr
    assert ("command beside a rank" if "headway" in script else "expected, but not set") in done.stderr
    samples = patient.view().progress.samples
    cluster.until(lambda: patient.view().progress.samples > samples, "the next samples")
    assert (patient.view().generation, patient.view().size) == (generation, 2)
    patient.finish()


def test_command_has_the_place_of_its_rank_but_not_the_way_to_the_others(
    patient: PatientJob, cluster: Cluster
) -> None:
    patient.start(2, most=2)
    done = cluster.headway("exec", patient.name, "--rank", "1", "--", "env")
    names = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert (names["RANK"], names["LOCAL_RANK"]) == ("1", "1")
    assert not names.keys() & MEMBERSHIP_VARIABLES
    patient.finish()


def test_standard_input_reaches_the_command_whole_and_its_end_too(cluster: Cluster, job: str) -> None:
    data = os.urandom(3_000_000)
    process = begin(cluster, "-i", job, "--", "tee", "copy", text=False)
    output, errors = process.communicate(data, timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert output == data
    script = b"import sys, os\nprint(os.path.getsize('copy'), sys.stdin.read() == '')\nsys.exit(9)\n"
    process = begin(cluster, "-i", job, "--", "python", text=False)
    output, errors = process.communicate(script, timeout=PATIENCE_S)
    assert (process.returncode, output) == (9, b"3000000 True\n"), errors


def test_command_that_does_not_read_its_input_ends_all_the_same(cluster: Cluster, job: str) -> None:
    process = begin(cluster, "-i", job, "--", "head", "-c", "3", text=False)
    output, errors = process.communicate(b"abc" + bytes(4_000_000), timeout=PATIENCE_S)
    assert (process.returncode, output) == (0, b"abc"), errors


class Typing:
    """A user at a terminal of 24 x 80 characters with `headway shell`."""

    def __init__(self, cluster: Cluster, *arguments: str) -> None:
        env = {**os.environ, "HEADWAY_URL": cluster.stack.url, "HEADWAY_TOKEN": cluster.stack.token}
        env["TERM"] = "xterm-256color"
        command = ["setsid", "--ctty", sys.executable, "-m", "headway.cli", "shell", *arguments]
        self.master, slave = pty.openpty()
        self.slave = slave
        self.resize(24, 80)
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(command, env=env, stdin=slave, stdout=slave, stderr=slave)
        self.screen = bytearray()

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, text: str) -> bytes:
        """Read the screen until it has the text, and return what was before it."""
        deadline = time.monotonic() + PATIENCE_S
        while text.encode() not in self.screen[-(1 << 17) :]:
            assert select.select([self.master], [], [], deadline - time.monotonic())[0], self.screen[-4000:]
            self.screen += os.read(self.master, 1 << 16)
        before, _, self.screen = self.screen.partition(text.encode())
        return bytes(before)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def ended(self) -> int:
        """Return the exit code, and check that the terminal is as it was."""
        code = self.process.wait(PATIENCE_S)
        assert termios.tcgetattr(self.slave) == self.before
        os.close(self.master)
        os.close(self.slave)
        return code


def test_shell_is_a_terminal_with_keys_sizes_job_control_and_exit_code(cluster: Cluster, job: str) -> None:
    user = Typing(cluster, job)
    user.type("echo ready-$((40 + 2)) $RANK $TERM $COLOUR; stty size; test -t 2 && echo on-$((1 + 1))\r")
    user.until("ready-42 0 xterm-256color teal\r\n24 80\r\non-2")
    user.type("sleep 599.75\r")
    cluster.until(lambda: sleeping("599.75"), "the program in the foreground")
    user.type("\x03")
    user.type("echo code-$?\r")
    user.until("code-130")
    user.resize(31, 97)
    user.type("sleep 0.5; stty size\r")
    user.until("31 97")
    user.type("echo now-$((1 + 1)); cat > typed; wc -c < typed\r")
    user.until("now-2")
    user.type("h\u00e9llo\r\x04")
    user.until("\r\n7\r\n")
    user.type("(setsid sleep 599.875 &) ; exit 7\r")
    assert user.ended() == 7
    cluster.until(lambda: not sleeping("599.875"), "the end of what the shell left behind")
    (entry,) = [
        one
        for one in json.loads(cluster.headway("audit", "-o", "json").stdout)["items"]
        if one["action"] == "execute_command" and job in one["target"]
    ]
    assert (entry["detail"]["terminal.rows"], entry["detail"]["argv"][:3]) == (24, "sh ")


def test_shell_with_much_output_stays_and_nothing_of_it_is_missing(cluster: Cluster, job: str) -> None:
    user = Typing(cluster, job)
    user.type("echo begin-$((1 + 1)); seq 1 1500000; echo over-$((1 + 1))\r")
    user.until("begin-2\r\n")
    numbers = user.until("over-2").split()
    assert len(numbers) == 1_500_000
    assert [int(one) for one in numbers] == list(range(1, 1_500_001))
    user.type("yes\r")
    user.until("y\r\ny\r\ny\r\n")
    user.type("\x03")
    user.type("echo still-$((1 + 1))\r")
    user.until("still-2")
    user.type("exit\r")
    assert user.ended() == 0


def test_three_escapes_kill_a_shell_and_the_end_of_its_rank_does_so_too(cluster: Cluster, job: str) -> None:
    user = Typing(cluster, job)
    user.type("sleep 599.625\r")
    cluster.until(lambda: sleeping("599.625"), "the program in the foreground")
    user.type("\x1d\x1d\x1d")
    assert user.ended() == 125
    assert not sleeping("599.625")
    user = Typing(cluster, job)
    user.type("echo ready-$((40 + 2))\r")
    user.until("ready-42")
    cluster.client.cancel(job, force=True)
    assert user.ended() == 128 + signal.SIGKILL


def test_shell_without_a_terminal_says_what_to_use(cluster: Cluster, job: str) -> None:
    done = cluster.headway("shell", job)
    assert done.returncode == 1
    assert "exec -i" in done.stderr


def sleeping(seconds: str) -> bool:
    """Return True while a process sleeps for this time."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return f"sleep {seconds}" in found.splitlines()
