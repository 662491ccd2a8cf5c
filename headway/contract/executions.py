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
MAX_TIMEOUT_S = 86_400.0
ID_PATTERN = r"^x[0-9a-z]{1,40}$"


class ExecutionRequest(BaseModel):
    """Request to run a command beside a rank of a job. The command has no standard input.

    A request that is repeated with the same `id` starts the command once.
    """

    id: Annotated[str, Field(pattern=ID_PATTERN)]

    argv: Annotated[list[str], Field(min_length=1, max_length=MAX_ARGUMENTS)]
    rank: Annotated[int, Field(ge=0, le=MAX_RANK)] = 0
    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] = 3_600.0
    """Seconds after which the agent kills the command."""

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


class ExecutionReply(BaseModel):
    """Answer to a report. `cancelled`: the agent must not start the command, or kill it."""

    cancelled: bool = False


class ExecutionEvent(BaseModel):
    """Output of a command in its order, and its end in the last event. `cursor` is the position behind the event."""

    cursor: str
    parts: list[OutputPart] = Field(default_factory=list)
    end: ExecutionEnd | None = None
