"""Interface of the store of commands beside ranks (`headway exec`) and their output, which are kept for minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.contract.executions import (
    ExecutionEvent,
    ExecutionInput,
    ExecutionInputReply,
    ExecutionReply,
    ExecutionReport,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A command beside the process that was started as `rank` of `generation` on a node."""

    id: str
    job_id: str
    generation: int
    rank: int
    node_id: str
    has_input: bool = False
    """True if chunks of input follow."""
    has_terminal: bool = False


class Executions(Protocol):
    """Commands and their output. Every method raises Unavailable if the store does not answer."""

    async def open(self, execution: Execution, most: int) -> None:
        """Store a new command of a job that may have `most` at a time. A repeated call changes nothing.

        Raises:
            TooManyCommands: it has as many.
            IdempotencyConflict: a command of another job has the id.
        """

    async def drop(self, execution: Execution) -> None:
        """Remove a command that no agent will get."""

    async def find(self, execution_id: str) -> Execution:
        """Return a command. Raise NotFound if it does not exist any more."""

    async def claim(self, execution: Execution, claim: str) -> bool:
        """Give the command to the agent with this claim. Return False if another claim has it, or it is over."""

    async def append(self, execution: Execution, report: ExecutionReport) -> ExecutionReply:
        """Store a report, and return the answer. A command is to be killed if it was cancelled, or nobody reads it.

        A terminal keeps its last `MAX_TERMINAL_EVENTS` entries, and the answer holds it back while its reader is behind.

        Raises:
            NotFound: the report has another claim than the command, or comes after its end.
            TooLarge: the command has more output than is kept.
        """

    async def send_input(self, execution: Execution, chunk: ExecutionInput) -> ExecutionInputReply:
        """Send a chunk of input to the agent, unless the command has not started or its window is full.

        Raises:
            InvalidField: the command has no input, or the chunk is not the next one.
            NotFound: the command does not exist any more.
        """

    async def cancel(self, execution: Execution) -> None:
        """Have the command killed, or never started."""

    async def read(self, execution_id: str, after: str) -> Sequence[ExecutionEvent]:
        """Return the next events behind a cursor, and note that the command has a reader.

        Without a report of the agent for half a minute, the last event is the end that follows from that.
        """
