"""Commands that users run beside a rank (`headway exec`): requests, reports of agents, and what a reader gets."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from headway.contract.credentials import JOB_ID_PATTERN, MAX_GENERATION
from headway.contract.renumbering import MAX_RANK

MAX_ARGUMENTS = 256
MAX_COMMAND_CHARS = 8_192
"""Characters of all arguments together, so that the order fits in one message to the launcher."""
MAX_PART_BYTES = 64 << 10
MAX_PARTS = 8
MAX_OUTPUT_BYTES = 8 << 20
"""Output of one command, both streams together. The service keeps it in Redis for a few minutes."""
MAX_INPUT_BYTES = 64 << 10
"""Bytes of one chunk of input."""
INPUT_WINDOW = 8
"""Chunks of input that may be on the way to a command, so that a command that does not read holds its client back."""
MAX_EVENTS = 100_000
"""Entries of output that a command may have, however small they are."""
MAX_TERMINAL_EVENTS = 128
"""Entries of output that a terminal keeps for its reader."""
TERMINAL_UNREAD_EVENTS = 64
"""Entries that the reader of a terminal has not got, above which the agent reads no further output."""
MAX_TIMEOUT_S = 86_400.0
ID_PATTERN = r"^x[0-9a-z]{1,40}$"


class TerminalSize(BaseModel):
    """Size of a terminal in characters."""

    rows: Annotated[int, Field(ge=1, le=10_000)] = 24
    columns: Annotated[int, Field(ge=1, le=10_000)] = 80


class Terminal(TerminalSize):
    """Terminal that a command is to have. `term` is its type, as in the variable `TERM`."""

    term: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]{0,63}$")] = "xterm"


class ExecutionRequest(BaseModel):
    """Request to run a command beside a rank of a job. Without `stdin` and `terminal`, its standard input is empty.

    A request that is repeated with the same `id` starts the command once.
    """

    id: Annotated[str, Field(pattern=ID_PATTERN)]

    argv: Annotated[list[str], Field(min_length=1, max_length=MAX_ARGUMENTS)]
    rank: Annotated[int, Field(ge=0, le=MAX_RANK)] = 0
    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] = 3_600.0
    """Seconds after which the agent kills the command."""
    stdin: bool = False
    """True if the standard input follows in chunks (`ExecutionInput`)."""
    terminal: Terminal | None = None
    """Terminal of the command, with its input in chunks and all its output on stdout."""

    @property
    def has_input(self) -> bool:
        """True if chunks of input follow."""
        return self.stdin or self.terminal is not None

    @field_validator("argv")
    @classmethod
    def _can_run(cls, argv: list[str]) -> list[str]:
        if not argv[0].strip():
            raise ValueError("the command is empty")
        if any("\0" in one for one in argv):
            raise ValueError("an argument has a NUL character")
        if sum(map(len, argv)) > MAX_COMMAND_CHARS:
            raise ValueError(f"the arguments have more than {MAX_COMMAND_CHARS:,} characters together")
        return argv


class ExecutionView(BaseModel):
    """A command that was accepted. `generation` and `rank` are those of the start of its rank's process."""

    id: str
    job_id: str
    generation: int
    rank: int
    node: str


class ExecutionOutcome(StrEnum):
    """Stable codes of how a command ended."""

    EXITED = "exited"
    """It has an exit code, or a signal ended it."""
    REFUSED = "refused"
    """The node could not start it: the rank has ended, runs in a container, or the node has too many commands."""
    CANCELLED = "cancelled"
    """Its user cancelled it, or nobody has read its output for a minute."""
    TIMED_OUT = "timed_out"
    OUTPUT_LIMIT = "output_limit"
    INPUT_LOST = "input_lost"
    """A part of its input did not arrive, so the agent killed it rather than leave the part out."""
    UNANSWERED = "unanswered"
    """The agent has not taken the command."""
    AGENT_LOST = "agent_lost"
    """The agent does not report any more; its launcher kills the command."""


class ExecutionEnd(BaseModel):
    """The end of a command. Exit code and signal are None unless it exited; `message` explains any other outcome."""

    outcome: ExecutionOutcome
    exit_code: int | None = None
    signal: int | None = None
    message: Annotated[str, Field(max_length=1000)] = ""


class OutputPart(BaseModel):
    """Consecutive bytes of one stream (base64 in JSON)."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    stream: Literal["stdout", "stderr"]
    data: Annotated[bytes, Field(max_length=MAX_PART_BYTES)]


class ExecutionInput(BaseModel):
    """Chunk of a command's standard input, in the order of `sequence`: 1, 2 and so on. A repeated chunk counts once.

    A chunk with `size` is a change of the terminal's size, and `eof` is the end of the input behind the data.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    sequence: Annotated[int, Field(ge=1, le=2**31)]
    data: Annotated[bytes, Field(max_length=MAX_INPUT_BYTES)] = b""
    eof: bool = False
    size: TerminalSize | None = None


class ExecutionInputReply(BaseModel):
    """Answer to a chunk of input. Without `accepted` the client sends it again in a moment, unless the command has `ended`."""

    accepted: bool
    ended: bool = False


class ExecutionReport(BaseModel):
    """Report of an agent about a command. It also says that the agent still runs the command.

    The first report claims the command with sequence 0: an agent must not start one whose claim is refused. The reports
    behind it have the sequences 1, 2 and so on; a repeated one counts once. `claim` is a random text of this start.
    """

    job_id: Annotated[str, Field(pattern=JOB_ID_PATTERN)]
    generation: Annotated[int, Field(ge=1, le=MAX_GENERATION)]
    claim: Annotated[str, Field(min_length=8, max_length=64)]
    sequence: Annotated[int, Field(ge=0, le=2**31)]
    parts: Annotated[list[OutputPart], Field(max_length=MAX_PARTS)] = Field(default_factory=list)
    end: ExecutionEnd | None = None
    taken: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Sequence of the last chunk of input that the command has got."""


class ExecutionReply(BaseModel):
    """Answer to a report. `cancelled`: the agent must not start the command, or kill it.

    `hold`: the reader of the terminal is behind, so the agent reads no further output for now.
    """

    cancelled: bool = False
    hold: bool = False


class ExecutionEvent(BaseModel):
    """Output of a command in its order, and its end in the last event. `cursor` is the position behind the event."""

    cursor: str
    parts: list[OutputPart] = Field(default_factory=list)
    end: ExecutionEnd | None = None
