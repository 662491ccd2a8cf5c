"""Output of commands with secrets masked, and commands that an agent must not start."""

from __future__ import annotations

import array
import fcntl
import json
import os
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from headway.contract.agents import ExecCommand
from headway.contract.executions import MAX_PART_BYTES, ExecutionOutcome, ExecutionReply, ExecutionReport
from tests.unit.worker_agent.runs.test_steps import run_of
from worker_agent.launcher.protocol import Execute
from worker_agent.link.redaction import Redactor
from worker_agent.link.secrets import RunSecrets
from worker_agent.runs.executions import Executions, MaskedStream

COMMAND = ExecCommand(
    command_id="c", job_id="j01arz3ndek", generation=3, rank=0, execution="x1", argv=["true"], timeout_s=60.0
)
SECRET = "correct-horse"


class Service:
    """Receiver of reports that refuses or accepts the claim."""

    def __init__(self, *, cancelled: bool) -> None:
        self.reports: list[ExecutionReport] = []
        self.enough = threading.Event()
        self._cancelled = cancelled

    def report_execution(self, _: str, report: ExecutionReport) -> ExecutionReply:
        self.reports.append(report)
        if self._cancelled or report.end is not None:
            self.enough.set()
        return ExecutionReply(cancelled=self._cancelled)


class NoLauncher:
    """Orders of which none may be given."""

    def start_command(self, order: Execute, streams: Sequence[int], env: Mapping[str, str]) -> None:
        raise AssertionError(f"started {order}")

    def end_command(self, command: str) -> None:
        raise AssertionError(f"ended {command}")


@pytest.mark.parametrize("cut", range(len(SECRET) + 8))
def test_secret_that_is_split_between_reads_is_masked(cut: int) -> None:
    data = f"key {SECRET} end".encode()
    stream = MaskedStream(Redactor([SECRET]))
    shown = stream.feed(data[:cut]) + stream.feed(data[cut:]) + stream.feed(b"", last=True)
    assert shown == b"key ************* end"


def test_secret_that_overlaps_another_is_masked_at_every_cut() -> None:
    values, data = ["abcdef", "defghi"], b"x abcdefghi y abcdefg"
    whole = MaskedStream(Redactor(values)).feed(data, last=True)
    assert whole == b"x ********* y ******g"
    stream = MaskedStream(Redactor(values))
    shown = b"".join(stream.feed(data[index : index + 1]) for index in range(len(data)))
    assert shown + stream.feed(b"", last=True) == whole


@pytest.mark.parametrize("pause_at", range(1, len(SECRET)))
def test_byte_that_may_begin_a_secret_is_shown_after_a_pause_and_the_secret_stays_masked(
    pause_at: int,
) -> None:
    stream = MaskedStream(Redactor([SECRET]))
    shown = stream.feed(b"$ " + SECRET[:pause_at].encode()) + stream.early()
    assert shown == b"$ " + SECRET[: min(pause_at, 3)].encode()
    assert not stream.is_holding
    shown += stream.feed(SECRET[pause_at:].encode() + b" end") + stream.feed(b"", last=True)
    assert (
        shown
        == b"$ " + SECRET[: min(pause_at, 3)].encode() + b"*" * (len(SECRET) - min(pause_at, 3)) + b" end"
    )


def test_byte_that_was_shown_early_is_not_shown_again() -> None:
    stream = MaskedStream(Redactor([SECRET]))
    shown = stream.feed(b"c") + stream.early() + stream.feed(b"o") + stream.early() + stream.feed(b"de")
    assert shown + stream.feed(b"", last=True) == b"code"


def test_output_without_secrets_is_shown_at_once() -> None:
    assert MaskedStream(Redactor([SECRET])).feed(b"step 1\n") == b"step 1\n"


def test_command_without_its_run_is_refused_after_the_claim() -> None:
    service = Service(cancelled=False)
    Executions(service, RunSecrets()).begin(COMMAND, None, NoLauncher())
    assert service.enough.wait(60)
    claim, end = service.reports
    assert (claim.sequence, claim.end, end.sequence) == (0, None, 1)
    assert end.end is not None
    assert end.end.outcome is ExecutionOutcome.REFUSED


def test_command_with_a_refused_claim_is_never_started() -> None:
    service = Service(cancelled=True)
    Executions(service, RunSecrets()).begin(COMMAND, None, NoLauncher())
    assert service.enough.wait(60)
    assert [one.sequence for one in service.reports] == [0]


class Launcher:
    """Launcher whose command writes a text and exits, or whose start fails."""

    def __init__(self, text: bytes = b"", error: Exception | None = None) -> None:
        self.ended = threading.Event()
        self._text, self._error = text, error

    def start_command(self, order: Execute, streams: Sequence[int], env: Mapping[str, str]) -> None:
        assert (order.command, dict(env)) == ("x1", {})
        if self._error is not None:
            raise self._error
        stdin, stdout, stderr, status = streams

        def run() -> None:
            with os.fdopen(stdout, "wb") as file:
                file.write(self._text)
            os.write(status, json.dumps({"exit_code": 0, "signal": None}).encode())
            for descriptor in (stdin, stderr, status):
                os.close(descriptor)

        threading.Thread(target=run).start()

    def end_command(self, command: str) -> None:
        assert command == "x1"
        self.ended.set()


class Held(RunSecrets):
    """Secrets of a run with one long value."""

    def __init__(self, value: str) -> None:
        super().__init__()
        self._value = value

    def redactor(self, run: str, *, has_secrets: bool) -> Redactor:
        return Redactor([self._value])


def test_end_that_was_held_back_for_a_long_secret_arrives_in_several_parts(tmp_path: Path) -> None:
    secret = "s" * 9 + "k" * 5 * MAX_PART_BYTES
    text = b"begin " + secret[:-1].encode()
    service = Service(cancelled=False)
    Executions(service, Held(secret)).begin(COMMAND, run_of(tmp_path), Launcher(text))
    assert service.enough.wait(60)
    assert b"".join(part.data for one in service.reports for part in one.parts) == text
    end = service.reports[-1].end
    assert end is not None
    assert (end.outcome, end.exit_code) == (ExecutionOutcome.EXITED, 0)


class Dripping(Launcher):
    """Launcher whose command writes one byte whenever the last one was read, for a while."""

    def start_command(self, order: Execute, streams: Sequence[int], env: Mapping[str, str]) -> None:
        stdin, stdout, stderr, status = streams

        def run() -> None:
            until_s = time.monotonic() + 1.5
            while time.monotonic() < until_s:
                held = array.array("i", [0])
                fcntl.ioctl(stdout, termios.FIONREAD, held)
                if not held[0]:
                    os.write(stdout, b".")
            os.write(status, json.dumps({"exit_code": 0, "signal": None}).encode())
            for descriptor in (stdin, stdout, stderr, status):
                os.close(descriptor)

        threading.Thread(target=run).start()


def test_command_that_writes_byte_by_byte_makes_few_reports(tmp_path: Path) -> None:
    service = Service(cancelled=False)
    Executions(service, Held("a secret of the job")).begin(COMMAND, run_of(tmp_path), Dripping())
    assert service.enough.wait(60)
    assert service.reports[-1].end is not None
    assert len(service.reports) < 100  # n reports take n² / 2000 s


def test_command_whose_thread_fails_is_killed(tmp_path: Path) -> None:
    launcher = Launcher(error=ValueError("a fault"))
    Executions(Service(cancelled=False), RunSecrets()).begin(COMMAND, run_of(tmp_path), launcher)
    assert launcher.ended.wait(60)
