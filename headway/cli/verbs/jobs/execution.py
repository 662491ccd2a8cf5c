"""The verb that runs a command beside a rank."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from headway.cli.context import JobName, ProjectName, of
from headway.contract.executions import ExecutionEnd, ExecutionOutcome, ExecutionView
from headway.contract.values.quantities import duration_s
from headway.errors import HeadwayError

_CANCELLED = 130
_UNFINISHED = 125
"""Exit code for a command that has none, like that of `docker exec` for its own errors."""
_BY_SIGNAL = 128


def exec(  # noqa: A001  # the name of the verb
    context: typer.Context,
    job: JobName,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="command with its arguments")],
    rank: Annotated[int, typer.Option(min=0, help="rank beside which the command runs")] = 0,
    timeout: Annotated[str, typer.Option(help="kill the command after this time, such as 90s or 2h")] = "1h",
    project: ProjectName = None,
) -> None:
    """Run a command beside a rank of a running job, and exit with its code.

    The command has the rank's user, environment, working folder and confinement, and no standard input. It ends with its
    rank, with Ctrl-C, and after --timeout. Its output is at most 8 MiB and passes through unchanged.

    Example: headway exec digits --rank 1 -- nvidia-smi
    """
    try:
        timeout_s = duration_s(timeout)
    except ValueError as error:
        raise HeadwayError(f"--timeout: {error}", "Give a time such as 90s or 2h.") from None
    cli = of(context)
    with cli.connect_in(project) as client:
        execution: ExecutionView | None = None
        try:
            execution = client.execute(job, command, rank=rank, timeout_s=timeout_s)
            for event in client.follow_execution(execution):
                for part in event.parts:
                    stream = sys.stdout if part.stream == "stdout" else sys.stderr
                    stream.buffer.write(part.data)
                    stream.buffer.flush()
                if event.end is not None:
                    _exit(event.end)
        except (KeyboardInterrupt, BrokenPipeError) as error:
            if execution is not None:
                client.cancel_execution(execution)
            if isinstance(error, BrokenPipeError):
                raise
            raise typer.Exit(_CANCELLED) from None


def _exit(end: ExecutionEnd) -> NoReturn:
    if end.outcome is ExecutionOutcome.EXITED:
        code = end.exit_code if end.exit_code is not None else _BY_SIGNAL + (end.signal or 0)
        raise typer.Exit(code)
    typer.echo(f"headway exec: {end.outcome}: {end.message}", err=True)
    raise typer.Exit(_UNFINISHED)
