"""Commands beside ranks: claim, output and end of each, reported by a thread of its own.

The launcher runs the command. This module passes its output on with secrets masked, as the log shipper does, and has it
killed when its user cancels it, its time is over, or the service does not answer.
"""

from __future__ import annotations

import errno
import json
import os
import random
import secrets as random_texts
import selectors
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, Protocol

import structlog

from headway.contract.agents import ExecCommand, ExecInput
from headway.contract.executions import (
    INPUT_WINDOW,
    MAX_OUTPUT_BYTES,
    MAX_PART_BYTES,
    MAX_PARTS,
    ExecutionEnd,
    ExecutionOutcome,
    ExecutionReply,
    ExecutionReport,
    OutputPart,
)
from headway.contract.values.redaction import SHORTEST_BYTES
from worker_agent.launcher.protocol import Execute
from worker_agent.link.redaction import Redactor
from worker_agent.link.secrets import RunSecrets
from worker_agent.link.service_api import Backoff, NotJoined, Refused, Unreachable
from worker_agent.runs.command_input import CommandInput, InputLost, resize
from worker_agent.runs.records import Run

_log = structlog.get_logger()

_REPORT_EVERY_S: Final = 1.0
"""Longest time between two reports: a cancelled command is killed after it."""
_UNREACHABLE_S: Final = 20.0
"""Time without an answer of the service after which a command is killed; the service gives the agent up after 30 s."""
_KILLED_WITHIN_S: Final = 10.0
_HELD_S: Final = 0.1
"""Time between two reports of a terminal whose reader is behind."""
_TERMINAL_PAUSE_S: Final = 0.03
"""Time between two reports of a terminal: fewer than the service takes of one agent, and too short to be noticed."""
_EARLY_S: Final = 0.05
"""Time without output after which a terminal shows bytes with which a secret might begin."""
_SMALL_REPORTS: Final = 1_000
"""Small reports after which there is at most one a second, so that a day of them has less than 100,000."""


class Sink(Protocol):
    """Receiver of reports. It raises Unreachable, NotJoined or Refused, like `ServiceApi`."""

    def report_execution(self, execution: str, report: ExecutionReport) -> ExecutionReply:
        """Send a report about a command."""


class Orders(Protocol):
    """Orders to the launcher, from any thread."""

    def start_command(self, order: Execute, streams: Sequence[int], env: Mapping[str, str]) -> None:
        """Tell the launcher to start a command, and close the descriptors in `streams`."""

    def end_command(self, command: str) -> None:
        """Tell the launcher to kill a command."""


class Executions:
    """Start of a thread for each command.

    Args:
        sink: receiver of the reports.
        secrets: secrets of the runs.
    """

    def __init__(self, sink: Sink, secrets: RunSecrets) -> None:
        self._sink = sink
        self._secrets = secrets
        self._lock = threading.Lock()
        self._inputs: dict[str, CommandInput] = {}
        """Input of each command that has one and has not ended."""

    def begin(self, command: ExecCommand, run: Run | None, orders: Orders) -> None:
        """Run the command beside a rank of `run`; None if the node does not have the run."""
        stdin: CommandInput | None = None
        if command.stdin or command.terminal is not None:
            with self._lock:
                if command.execution in self._inputs:
                    return  # a repeated message
                stdin = self._inputs[command.execution] = CommandInput()
        thread = threading.Thread(
            target=self._run,
            args=[command, run, orders, stdin],
            daemon=True,
            name=f"command {command.execution}",
        )
        thread.start()

    def give(self, given: ExecInput) -> None:
        """Pass on a chunk of input. One for a command that has ended, or that this agent has not begun, is dropped."""
        with self._lock:
            stdin = self._inputs.get(given.execution)
        if stdin is not None:
            stdin.give(given.chunk)

    def _run(self, command: ExecCommand, run: Run | None, orders: Orders, stdin: CommandInput | None) -> None:
        reports = _Reports(self._sink, command)
        try:
            if not reports.claim():
                _log.info("ignored a command beside a rank", execution=command.execution)
                return
            refusal = self._refusal(command, run)
            if run is None or refusal is not None:
                reports.end(ExecutionEnd(outcome=ExecutionOutcome.REFUSED, message=refusal or ""))
                return
            redactor = self._secrets.redactor(run.name, has_secrets=bool(run.command.secrets))
            assert redactor is not None, "refused above"
            _log.info("command beside a rank", execution=command.execution, run=run.name, rank=command.rank)
            running = _Command(command, redactor, reports, orders, stdin)
            end = running.run(run.name, self._secrets.env(run.name))
            reports.end(end)
        except (Unreachable, NotJoined, Refused) as error:
            orders.end_command(command.execution)
            _log.warning("gave up a command beside a rank", execution=command.execution, error=str(error))
        except Exception:  # noqa: BLE001  # whatever it is, the command must not run on without its reports
            orders.end_command(command.execution)
            _log.exception("a command beside a rank failed", execution=command.execution)
        finally:
            if stdin is not None:
                with self._lock:
                    del self._inputs[command.execution]
                stdin.close()

    def _refusal(self, command: ExecCommand, run: Run | None) -> str | None:
        """Return why the command cannot start; None if it can."""
        if run is None:
            return (
                f"Rank {command.rank} of generation {command.generation} does not run on this node any more."
            )
        if self._secrets.redactor(run.name, has_secrets=bool(run.command.secrets)) is None:
            return "The agent has restarted and does not know the job's secrets yet. Try again in a moment."
        return None


class _Reports:
    """Reports of one command, with retries."""

    def __init__(self, sink: Sink, command: ExecCommand) -> None:
        self._sink = sink
        self._command = command
        self._claim = random_texts.token_hex(16)
        self._sequence = 0
        self.cancelled = False
        self.hold = False
        self.taken = 0
        """Last chunk of input that the command has got, for the next report."""

    def claim(self) -> bool:
        """Return True if this agent may start the command."""
        self._send(0, (), None)
        return not self.cancelled

    def output(self, parts: Sequence[OutputPart]) -> None:
        """Send output, or without any, that the command still runs."""
        self._sequence += 1
        self._send(self._sequence, parts, None)

    def end(self, end: ExecutionEnd) -> None:
        """Send the end of the command."""
        self._sequence += 1
        self._send(self._sequence, (), end)

    def _send(self, sequence: int, parts: Sequence[OutputPart], end: ExecutionEnd | None) -> None:
        report = ExecutionReport(
            job_id=self._command.job_id,
            generation=self._command.generation,
            claim=self._claim,
            sequence=sequence,
            parts=list(parts),
            end=end,
            taken=self.taken,
        )
        backoff, give_up_s = Backoff(random.Random()), time.monotonic() + _UNREACHABLE_S
        while True:
            try:
                reply = self._sink.report_execution(self._command.execution, report)
            except (Unreachable, NotJoined) as error:
                pause_s = backoff.next_s(getattr(error, "retry_after_s", 0.0))
                if time.monotonic() + pause_s > give_up_s:
                    raise
                time.sleep(pause_s)
            else:
                self.cancelled, self.hold = reply.cancelled, reply.hold
                return


class MaskedStream:
    """Output of one stream with secrets masked. It holds back an end in which a secret may have begun."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""
        self._early = 0
        """Bytes of the held ones that were shown early."""

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """Return what may be shown after more `data`: all of it if it is the `last`."""
        data = self._held + data
        cut = len(data) if last else self._redactor.begun(data)
        spans = list(self._redactor.spans(data))
        # A secret that is complete but goes beyond the cut is held back as a whole, and so is one that it overlaps.
        for begin, end in sorted(spans, reverse=True, key=lambda span: span[1]):
            if begin < cut < end:
                cut = begin
        shown, self._held = self._redactor.mask(data)[self._early : cut], data[cut:]
        self._early = max(0, self._early - cut)
        return shown

    @property
    def is_holding(self) -> bool:
        """True if bytes are held back that `early` would show."""
        return self._early < min(len(self._held), SHORTEST_BYTES - 1)

    def early(self) -> bytes:
        """Return the first held bytes, fewer than a secret has, because nothing has followed for a while.

        A user who types is to see the key. If a secret follows after all, its other bytes are masked.
        """
        before, self._early = self._early, max(self._early, min(len(self._held), SHORTEST_BYTES - 1))
        return self._redactor.mask(self._held)[before : self._early]


class _Command:
    """One command that this agent has claimed."""

    def __init__(
        self,
        command: ExecCommand,
        redactor: Redactor,
        reports: _Reports,
        orders: Orders,
        stdin: CommandInput | None,
    ) -> None:
        self._command = command
        self._stdin = stdin
        self._is_terminal = command.terminal is not None
        self._reported_at_s = 0.0
        self._reports = reports
        self._orders = orders
        self._streams = {"stdout": MaskedStream(redactor), "stderr": MaskedStream(redactor)}
        self._sent_bytes = 0
        self._small_reports = 0
        self._was_small = False
        self._killed: ExecutionEnd | None = None
        self._status = b""

    def run(self, run: str, env: Mapping[str, str]) -> ExecutionEnd:
        """Run the command, report its output, and return its end.

        Raises:
            Unreachable, NotJoined, Refused: its output cannot be reported.
        """
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            readers, theirs = self._streams_of(stack)
            for name, reader in readers.items():
                os.set_blocking(reader, False)
                selector.register(reader, selectors.EVENT_READ, name)
            if self._stdin is not None:
                selector.register(self._stdin.arrived, selectors.EVENT_READ, "arrived")
            order = Execute(
                run, self._command.rank, self._command.execution, tuple(self._command.argv),
                secrets=bool(env), term=self._command.terminal.term if self._command.terminal else "",
            )  # fmt: skip
            self._orders.start_command(order, theirs, env)
            status = stack.enter_context(selectors.DefaultSelector())
            status.register(readers["status"], selectors.EVENT_READ)
            self._pass_on(selector, status)
            self._report([part for name in self._streams for part in self._parts(name, b"", last=True)])
        return self._killed or self._end()

    def _streams_of(self, stack: ExitStack) -> tuple[dict[str, int], list[int]]:
        """Return the ends to read by name, and the four descriptors of the command: its streams and its status pipe."""
        readers: dict[str, int] = {}
        theirs: list[int] = []
        if self._command.terminal is not None:
            ours, end = os.openpty()
            resize(ours, self._command.terminal)
            readers["stdout"] = ours
            theirs += [end, os.dup(end), os.dup(end)]
            assert self._stdin is not None, "a terminal has input"
            self._stdin.write_to(os.dup(ours), is_terminal=True)
        elif self._stdin is not None:
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            theirs.append(reader)
            self._stdin.write_to(writer, is_terminal=False)
        else:
            theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for name in ("status",) if self._is_terminal else ("stdout", "stderr", "status"):
            readers[name], end = os.pipe()
            theirs.append(end)
        for ours in readers.values():
            stack.callback(os.close, ours)
        return readers, theirs

    def _pass_on(self, selector: selectors.BaseSelector, status: selectors.BaseSelector) -> None:
        """Report output until the status pipe ends, then what the pipes still hold. `status` has only that pipe."""
        deadline_s = time.monotonic() + self._command.timeout_s
        give_up_s: float | None = None
        while True:
            wait_s = max(0.0, min(_REPORT_EVERY_S, deadline_s - time.monotonic()))
            early = self._is_terminal and self._streams["stdout"].is_holding
            if early:
                wait_s = min(wait_s, _EARLY_S)
            if self._reports.hold:
                status.select(min(_HELD_S, wait_s))
            ready = {key.data: key for key, _ in selector.select(0.0 if self._reports.hold else wait_s)}
            self._pass_input(selector, ready)
            # The status is read first: output that is in the pipes by then is complete.
            ended = "status" in ready and not self._read_status(ready.pop("status").fd)
            outputs = [key for name, key in ready.items() if name in self._streams]
            if self._reports.hold and not ended:
                outputs = []
            shown = self._parts_of("stdout", self._streams["stdout"].early()) if early and not outputs else []
            self._report(
                shown + [part for key in outputs for part in self._read(selector, key)],
                heartbeat=self._is_due(),
            )
            if ended:
                break
            self._judge(deadline_s)
            if self._was_small and self._killed is None:
                status.select(min(self._pause_s(), max(0.0, deadline_s - time.monotonic())))
            if self._killed is not None:
                give_up_s = give_up_s or time.monotonic() + _KILLED_WITHIN_S
                deadline_s = give_up_s
                if time.monotonic() > give_up_s:
                    return
        while left := [key for key, _ in selector.select(0) if key.data in self._streams]:
            self._report([part for key in left for part in self._read(selector, key)])
            self._judge(deadline_s)
            if self._killed is not None:
                return

    def _is_due(self) -> bool:
        """Return True if a report is due without output: much input was written, or the last report is long ago."""
        if self._reports.hold or time.monotonic() - self._reported_at_s >= _REPORT_EVERY_S:
            return True
        return self._stdin is not None and self._stdin.taken - self._reports.taken >= INPUT_WINDOW // 2

    def _pass_input(
        self, selector: selectors.BaseSelector, ready: Mapping[str, selectors.SelectorKey]
    ) -> None:
        """Write the input that has arrived and that the command takes, and await the moment when it takes more."""
        stdin = self._stdin
        if stdin is None:
            return
        awaited = next((key for key in selector.get_map().values() if key.data == "stdin"), None)
        if awaited is not None:
            selector.unregister(awaited.fd)
        if "arrived" in ready:
            try:
                stdin.take_in()
            except InputLost:
                message = "A part of the command's input was lost on its way."
                self._kill(ExecutionOutcome.INPUT_LOST, message)
        stdin.write()
        if stdin.writer is not None:
            selector.register(stdin.writer, selectors.EVENT_WRITE, "stdin")

    def _pause_s(self) -> float:
        """Return the time for which output is collected before the next report: longer after many small ones.

        A terminal is to answer quickly, and keeps its last output only, so its reports stay frequent.
        """
        if self._is_terminal:
            return _TERMINAL_PAUSE_S
        return min(_REPORT_EVERY_S, self._small_reports / _SMALL_REPORTS * _REPORT_EVERY_S)

    def _judge(self, deadline_s: float) -> None:
        """Kill the command if it must not go on."""
        if self._killed is not None:
            return
        if self._reports.cancelled:
            self._kill(ExecutionOutcome.CANCELLED, "Its user cancelled the command, or stopped reading.")
        elif time.monotonic() >= deadline_s:
            self._kill(ExecutionOutcome.TIMED_OUT, f"The command ran for {self._command.timeout_s:g} s.")
        elif self._sent_bytes > MAX_OUTPUT_BYTES and not self._is_terminal:
            message = f"The command wrote more than {MAX_OUTPUT_BYTES:,} bytes. Write to a file instead."
            self._kill(ExecutionOutcome.OUTPUT_LIMIT, message)

    def _kill(self, outcome: ExecutionOutcome, message: str) -> None:
        self._killed = ExecutionEnd(outcome=outcome, message=message)
        self._orders.end_command(self._command.execution)

    def _read_status(self, descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        self._status += data
        return data

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> list[OutputPart]:
        data = b""
        while len(data) < MAX_PART_BYTES:
            try:
                piece = os.read(key.fd, MAX_PART_BYTES - len(data))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                piece = b""  # no process has the terminal open any more
            if not piece:
                selector.unregister(key.fd)
                break
            data += piece
            if not self._is_terminal:  # which gives 4 KiB at a time
                break
        return self._parts(key.data, data)

    def _parts(self, name: Any, data: bytes, *, last: bool = False) -> list[OutputPart]:
        # With what was held back, which may be as long as the longest secret.
        return self._parts_of(name, self._streams[name].feed(data, last=last))

    def _parts_of(self, name: Any, shown: bytes) -> list[OutputPart]:
        return [
            OutputPart(stream=name, data=shown[begin : begin + MAX_PART_BYTES])
            for begin in range(0, len(shown), MAX_PART_BYTES)
        ]

    def _report(self, parts: Sequence[OutputPart], *, heartbeat: bool = False) -> None:
        parts = [] if self._killed is not None else parts
        size = sum(len(part.data) for part in parts)
        self._sent_bytes += size
        self._was_small = 0 < size < MAX_PART_BYTES // 4
        self._small_reports += self._was_small
        if self._stdin is not None and (parts or heartbeat):
            self._reports.taken = self._stdin.taken
        if parts or heartbeat:
            self._reported_at_s = time.monotonic()
        for begin in range(0, len(parts), MAX_PARTS):
            self._reports.output(parts[begin : begin + MAX_PARTS])
        if heartbeat and not parts:
            self._reports.output(())

    def _end(self) -> ExecutionEnd:
        try:
            record = json.loads(self._status)
        except ValueError:
            message = "The node's launcher has ended, or is too old to run commands beside ranks."
            return ExecutionEnd(outcome=ExecutionOutcome.REFUSED, message=message)
        if "refused" in record:
            return ExecutionEnd(outcome=ExecutionOutcome.REFUSED, message=str(record["refused"])[:1000])
        return ExecutionEnd(
            outcome=ExecutionOutcome.EXITED, exit_code=record["exit_code"], signal=record["signal"]
        )
