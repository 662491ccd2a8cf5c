"""Protocol between agent and launcher: JSON lines over a Unix socket, one message per line.

The state of a run is in the files of its folder. Messages are orders, or hints to read these files. A run is
named `<job>/<generation>`.

A launcher outlives its agent, so the two may have different versions. Each side ignores messages and fields
that it does not know. A message or field that is added here must therefore be optional.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from worker_agent.launcher.commandline import How
from worker_agent.launcher.confinement import Confinement, known_fields
from worker_agent.launcher.containers import Container

_READ_BYTES = 1 << 17
_MAX_DESCRIPTORS = 5
_START_VARIABLES = frozenset({"PATH", "PYTHONPATH"})
"""Variables of a rank in which the launcher looks for its program and its modules."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Request of the agent for the launcher's version and runs."""


@dataclass(frozen=True, slots=True)
class Start:
    """Order of the agent to start the run as its launch file says. Idempotent."""

    run: str
    secrets: bool = False
    """True if a descriptor of memory with the ranks' secrets, as JSON, follows."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Order of the agent to send SIGTERM to each rank of the run."""

    run: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Order of the agent to send SIGKILL to every process of the run."""

    run: str


@dataclass(frozen=True, slots=True)
class Execute:
    """Order of the agent to run a command beside a rank. Its descriptors follow.

    They are stdin, stdout, stderr and the status pipe of `sessions.Streams`, then the memory of `secrets`.
    """

    run: str
    rank: int
    """Rank at the start of the process."""
    command: str
    """Id of the command, for `EndCommand`."""
    argv: tuple[str, ...]
    secrets: bool = False
    """True if a descriptor of memory with the rank's secrets, as JSON, is the last one."""
    term: str = ""
    """Type of the terminal that the three streams are; empty if they are none."""


@dataclass(frozen=True, slots=True)
class EndCommand:
    """Order of the agent to send SIGKILL to a command and its process group."""

    command: str


@dataclass(frozen=True, slots=True)
class Lease:
    """Order of the agent that lets ranks live until `deadline_s` on the boot-time clock."""

    deadline_s: float


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Order of the agent to exit if there are no runs."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer of the launcher to `Hello`. `runs` are those that have processes."""

    version: str
    hosts_stores: bool
    """True if torch is installed, so that the launcher can keep a job's store."""
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """Answer of the launcher to `Start`. After an `error` the run ends, and `gone` follows."""

    run: str
    how: How
    error: str = ""
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Changed:
    """Notice of the launcher: a rank ended, or a rank or the whole run is gone. The files tell which."""

    run: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Message of a newer version that this version does not know."""

    type: str


Message: TypeAlias = (
    Hello
    | Start
    | Terminate
    | Kill
    | Execute
    | EndCommand
    | Lease
    | Shutdown
    | Welcome
    | Started
    | Changed
    | Unknown
)

_TYPES: dict[str, type[Any]] = {
    kind.__name__.lower(): kind
    for kind in (
        Hello,
        Start,
        Terminate,
        Kill,
        Execute,
        EndCommand,
        Lease,
        Shutdown,
        Welcome,
        Started,
        Changed,
    )
}
"""Message class of each `type` in a line, which is the name of the class in lower case."""


def encode(message: Message) -> bytes:
    """Return the message as one line, including the newline."""
    return json.dumps({"type": type(message).__name__.lower(), **asdict(message)}).encode() + b"\n"


class Decoder:
    """Conversion of received bytes into messages, independent of how the bytes were split."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete now.

        Raises:
            ValueError: a line is not a message, or lacks a field.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_decode(line) for line in lines]

    @property
    def is_within(self) -> bool:
        """True if a message has arrived in part."""
        return bool(self._rest)


class Inbox:
    """Messages that arrive through one connection, each with its descriptors.

    The kernel passes a long message on in pieces, its descriptors with the first, which ends a read.
    """

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._waiting: list[int] = []
        """Descriptors of a message that has arrived in part."""

    def receive(self, connection: socket.socket) -> list[tuple[Message, list[int]]] | None:
        """Return the messages that are complete now, with open descriptors; None at the end of the connection.

        Raises:
            OSError, ValueError: the connection is lost, or has something else than messages.
        """
        data, arrived, _, _ = socket.recv_fds(
            connection, _READ_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        earlier, self._waiting = self._waiting, arrived
        try:
            messages = self._decoder.feed(data)
        except ValueError:
            self._waiting += earlier
            raise
        if not messages:
            self._waiting += earlier
            return [] if data else None
        held: list[list[int]] = [[] for _ in messages]
        held[0] += earlier
        if not self._decoder.is_within:
            held[-1] += arrived
            self._waiting = []
        return list(zip(messages, held, strict=True))

    def close(self) -> None:
        """Close the descriptors of a message that never became complete."""
        for descriptor in self._waiting:
            os.close(descriptor)
        self._waiting = []


def _decode(line: bytes) -> Message:
    fields = json.loads(line)
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise ValueError(f"not a message between agent and launcher: {line[:80]!r}")  # noqa: TRY004 - one kind of error
    kind = _TYPES.get(fields["type"])
    if kind is None:
        return Unknown(fields["type"])
    try:
        message: Message = kind(**known_fields(kind, fields))
    except TypeError as error:
        raise ValueError(f"a message of another version: {line[:80]!r}") from error
    return message


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Order to start one run, stored as `launch.json`."""

    argv: tuple[str, ...]
    how: How
    cwd: str
    threads: int
    """Threads of torch's CPU operators in each rank."""
    store_host: str | None
    """Address on which to keep the job's TCPStore; None if another node keeps it."""
    store_port: int
    node_count: int
    live: bool = False
    """True if ranks join and leave one by one, and ranks on other nodes may use the store."""
    set_by_job: tuple[str, ...] = ()
    """Names of the variables that the job sets, secrets included."""
    ranks: dict[int, dict[str, str]] = field(repr=False)
    """Environment of each rank.

    It is complete in a plan that an agent creates. In a plan that the launcher reads, it lacks the variables
    in the `env` files of the run, which only the ranks' own processes read.
    """
    confinement: Confinement = field(default_factory=Confinement)
    """Confinement of every rank."""
    container: Container | None = None
    """Container in which ranks run, with its own confinement; None if ranks are processes of the host."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `launch.json`."""
        return asdict(self)

    def without_environments(self) -> LaunchPlan:
        """Return the plan with only the environment variables that decide how ranks are started."""
        ranks = {
            rank: {name: value for name, value in env.items() if name in _START_VARIABLES}
            for rank, env in self.ranks.items()
        }
        return replace(self, ranks=ranks)

    @classmethod
    def from_json(cls, fields: Any) -> LaunchPlan:
        """Return the plan from the values of `to_json`.

        JSON keys are converted to numbers. Unknown fields of a newer agent are ignored.

        Raises:
            TypeError, KeyError: a field is missing.
        """
        ranks = {int(rank): env for rank, env in fields["ranks"].items()}
        confinement = Confinement(**known_fields(Confinement, fields.get("confinement") or {}))
        container = fields.get("container") and Container(**known_fields(Container, fields["container"]))
        known = known_fields(cls, fields)
        return cls(**{**known, "ranks": ranks, "confinement": confinement, "container": container})


@contextmanager
def socket_address(state: Path) -> Iterator[str]:
    """Yield the address of the launcher's socket, valid inside the `with` block.

    The path of a Unix socket has at most 107 bytes, but a state folder may be longer. The path through a
    descriptor is short.
    """
    folder = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/launcher.sock"
    finally:
        os.close(folder)
