"""The verbs that run a command or a shell beside a rank."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Annotated, Any, Final, NoReturn

import typer

from headway.cli.context import JobName, ProjectName, of
from headway.client.client import Client
from headway.client.executions import ExecutionWriter
from headway.contract.executions import (
    MAX_INPUT_BYTES,
    ExecutionEnd,
    ExecutionOutcome,
    ExecutionView,
    Terminal,
    TerminalSize,
)
from headway.contract.values.quantities import duration_s
from headway.errors import HeadwayError

_CANCELLED = 130
_UNFINISHED = 125
"""Exit code for a command that has none, like that of `docker exec` for its own errors."""
_BY_SIGNAL = 128
_SHELL: Final = ["sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi"]
_TERM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,63}")
_ESCAPE: Final = b"\x1d"
"""Ctrl-], which kills a shell when it is typed `_ESCAPES` times."""
_ESCAPES: Final = 3


def exec(  # noqa: A001  # the name of the verb
    context: typer.Context,
    job: JobName,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="command with its arguments")],
    rank: Annotated[int, typer.Option(min=0, help="rank beside which the command runs")] = 0,
    stdin: Annotated[
        bool, typer.Option("-i", "--stdin", help="pass the standard input on to the command, until its end")
    ] = False,
    timeout: Annotated[str, typer.Option(help="kill the command after this time, such as 90s or 2h")] = "1h",
    project: ProjectName = None,
) -> None:
    """Run a command beside a rank of a running job, and exit with its code.

    The command has the rank's user, environment, working folder and confinement. It ends with its rank, with Ctrl-C, and
    after --timeout. Its output is at most 8 MiB and passes through unchanged. Its standard input is empty without -i.

    Example: headway exec digits --rank 1 -- nvidia-smi
    """
    cli = of(context)
    with cli.connect_in(project) as client:
        execution: ExecutionView | None = None
        try:
            execution = client.execute(job, command, rank=rank, timeout_s=_seconds(timeout), stdin=stdin)
            with _passing(client, execution, None) if stdin else nullcontext():
                end = _show(client, execution)
        except (KeyboardInterrupt, BrokenPipeError) as error:
            if execution is not None:
                client.cancel_execution(execution)
            if isinstance(error, BrokenPipeError):
                raise
            raise typer.Exit(_CANCELLED) from None
    _exit(end)


def shell(
    context: typer.Context,
    job: JobName,
    rank: Annotated[int, typer.Option(min=0, help="rank beside which the shell runs")] = 0,
    timeout: Annotated[str, typer.Option(help="kill the shell after this time, such as 90s or 2h")] = "8h",
    project: ProjectName = None,
) -> None:
    """Open a shell beside a rank of a running job, in this terminal, and exit with its code.

    The shell has the rank's user, environment, working folder and confinement, and ends with its rank. Ctrl-C goes to the
    program in its foreground. Ctrl-] three times kills the shell, also when the connection hangs.

    Example: headway shell digits --rank 1
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise HeadwayError(
            "headway shell needs a terminal as its input and output.",
            f"Pass a script on with: headway exec -i {job} -- sh",
        )
    cli = of(context)
    with cli.connect_in(project) as client:
        size = _terminal_size()
        term = os.environ.get("TERM") or "xterm"
        terminal = Terminal(
            rows=size.rows, columns=size.columns, term=term if _TERM.fullmatch(term) else "xterm"
        )
        execution = client.execute(job, _SHELL, rank=rank, timeout_s=_seconds(timeout), terminal=terminal)
        try:
            with _raw(sys.stdin.fileno()), _passing(client, execution, size):
                end = _show(client, execution)
        except (KeyboardInterrupt, OSError, HeadwayError):
            client.cancel_execution(execution)
            raise
    _exit(end)


def _seconds(timeout: str) -> float:
    try:
        return duration_s(timeout)
    except ValueError as error:
        raise HeadwayError(f"--timeout: {error}", "Give a time such as 90s or 2h.") from None


def _show(client: Client, execution: ExecutionView) -> ExecutionEnd:
    """Write the output of a command to this process's own, and return the command's end."""
    for event in client.follow_execution(execution):
        for part in event.parts:
            stream = sys.stdout if part.stream == "stdout" else sys.stderr
            stream.buffer.write(part.data)
            stream.buffer.flush()
        if event.end is not None:
            return event.end
    raise AssertionError("the last event has an end")


@contextmanager
def _passing(client: Client, execution: ExecutionView, size: TerminalSize | None) -> Iterator[None]:
    """Pass the standard input on to the command within the block, and changes of the terminal's size if it has one.

    The threads may be waiting for a key at the end of the block, so they end with this process.
    """
    writer = client.write_execution(execution)
    failures: list[HeadwayError] = []
    resized = threading.Event()

    def guard(work: Callable[[], None]) -> None:
        try:
            work()
        except HeadwayError as error:
            failures.append(error)
            with suppress(HeadwayError):
                client.cancel_execution(execution)

    def follow_size() -> None:
        known = size
        while resized.wait():
            resized.clear()
            if (now := _terminal_size()) != known:
                writer.resize(known := now)

    threading.Thread(
        target=guard,
        args=[partial(_send_input, client, writer, execution, is_shell=size is not None)],
        daemon=True,
    ).start()
    earlier: Any = None
    if size is not None:
        threading.Thread(target=guard, args=[follow_size], daemon=True).start()
        earlier = signal.signal(signal.SIGWINCH, lambda *_: resized.set())
    try:
        yield
    finally:
        writer.over()
        if size is not None:
            signal.signal(signal.SIGWINCH, earlier)
    if failures:
        raise failures[0]


def _send_input(client: Client, writer: ExecutionWriter, execution: ExecutionView, *, is_shell: bool) -> None:
    """Send the standard input of this process until its end, or the end of the command."""
    escapes = 0
    while data := os.read(sys.stdin.fileno(), MAX_INPUT_BYTES):
        escapes = escapes + len(data) if is_shell and not data.strip(_ESCAPE) else 0
        if escapes >= _ESCAPES:
            client.cancel_execution(execution)
            return
        if not writer.write(data):
            return
    writer.end()


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Make the terminal pass each key on unchanged within the block."""
    before = termios.tcgetattr(terminal)
    tty.setraw(terminal, termios.TCSADRAIN)  # keys that were typed early are not lost
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _terminal_size() -> TerminalSize:
    """Return the size of this process's terminal, which is 0 x 0 where nobody has set it."""
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return TerminalSize(rows=min(rows, 10_000) or 24, columns=min(columns, 10_000) or 80)


def _exit(end: ExecutionEnd) -> NoReturn:
    if end.outcome is ExecutionOutcome.EXITED:
        code = end.exit_code if end.exit_code is not None else _BY_SIGNAL + (end.signal or 0)
        raise typer.Exit(code)
    typer.echo(f"headway exec: {end.outcome}: {end.message}", err=True)
    raise typer.Exit(_UNFINISHED)
