"""What agent and launcher say to one another: JSON lines over a Unix socket, one message a line.

The facts are in files of the run folder; messages are orders and hints to look there. A run is called
`<job>/<generation>`.

A launcher outlives its agent, so the two may be of different versions. Fields that one of them does not know are
ignored, and so are messages; a message or field that is added here must be one that can be done without.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from worker_agent.commandline import How
from worker_agent.launcher.confinement import Confinement
from worker_agent.launcher.containers import Container

_TELLS_HOW = frozenset({"PATH", "PYTHONPATH"})
"""Of a rank's environment: the launcher looks for its program and its modules there."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Agent: who are you, and what do you keep?"""

    TYPE: ClassVar[str] = "hello"


@dataclass(frozen=True, slots=True)
class Start:
    """Agent: start the run as its launch file says. Idempotent."""

    TYPE: ClassVar[str] = "start"

    run: str
    secrets: bool = False
    """Whether a descriptor comes along, of memory that holds the secrets of the ranks as JSON."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Agent: SIGTERM to each rank of the run."""

    TYPE: ClassVar[str] = "terminate"

    run: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Agent: SIGKILL to everything of the run."""

    TYPE: ClassVar[str] = "kill"

    run: str


@dataclass(frozen=True, slots=True)
class Lease:
    """Agent: ranks may live until `deadline_s` on the boot-time clock."""

    TYPE: ClassVar[str] = "lease"

    deadline_s: float


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Agent: end if nothing is kept."""

    TYPE: ClassVar[str] = "shutdown"


@dataclass(frozen=True, slots=True)
class Welcome:
    """Launcher, in answer to `Hello`. `runs` are those that have processes."""

    TYPE: ClassVar[str] = "welcome"

    version: str
    hosts_stores: bool
    """Whether torch is there, so that a job's store can be kept here."""
    runs: list[str]
    takes_secrets: bool = False
    """Whether it knows of `Start.secrets`."""


@dataclass(frozen=True, slots=True)
class Started:
    """Launcher, in answer to `Start`. With an `error` the run ends: `gone` follows."""

    TYPE: ClassVar[str] = "started"

    run: str
    how: How
    error: str = ""
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Changed:
    """Launcher: a rank of the run ended or is gone, or all of the run is. Look at its files."""

    TYPE: ClassVar[str] = "changed"

    run: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """What the other side says in a newer version."""

    TYPE: ClassVar[str] = "unknown"

    said: str


Message: TypeAlias = (
    Hello | Start | Terminate | Kill | Lease | Shutdown | Welcome | Started | Changed | Unknown
)

_TYPES: dict[str, type[Any]] = {
    kind.TYPE: kind for kind in (Hello, Start, Terminate, Kill, Lease, Shutdown, Welcome, Started, Changed)
}


def encode(message: Message) -> bytes:
    """One line, newline included."""
    return json.dumps({"type": message.TYPE, **asdict(message)}).encode() + b"\n"


class Decoder:
    """Turns received bytes into messages, however they were cut."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Messages that are complete now.

        Raises:
            ValueError: a line is not a message, or lacks a field.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_decode(line) for line in lines]


def _decode(line: bytes) -> Message:
    fields = json.loads(line)
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise ValueError(f"not a message between agent and launcher: {line[:80]!r}")  # noqa: TRY004 - one kind of error
    kind = _TYPES.get(fields["type"])
    if kind is None:
        return Unknown(fields["type"])
    try:
        message: Message = kind(**_known(kind, fields))
    except TypeError as error:
        raise ValueError(f"a message of another version: {line[:80]!r}") from error
    return message


def _known(kind: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the fields that this version of `kind` has."""
    return {name: fields[name] for name in kind.__dataclass_fields__ if name in fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """The order to start one run; `launch.json`."""

    argv: list[str]
    how: How
    cwd: str
    threads: int
    """Threads of torch's CPU operators in each rank."""
    store_host: str | None
    """Address on which to keep the job's TCPStore; None where another node keeps it."""
    store_port: int
    node_count: int
    live: bool = False
    """Ranks come and go one by one, and ranks on other nodes may come to use the store."""
    ranks: dict[int, dict[str, str]] = field(repr=False)
    """Environment of each rank: complete in a plan that an agent makes; as the launcher reads it, without what lies in the
    `env` files of the run, which only the ranks' own processes read.
    """
    confinement: Confinement = field(default_factory=Confinement)
    """What every rank is held to."""
    container: Container | None = None
    """What ranks run in, and are held to instead; None: they are processes of the host."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for `launch.json`."""
        return asdict(self)

    def without_environments(self) -> LaunchPlan:
        """The same with no more of the environments than tells how ranks are to be started."""
        ranks = {
            rank: {name: value for name, value in env.items() if name in _TELLS_HOW}
            for rank, env in self.ranks.items()
        }
        return replace(self, ranks=ranks)

    @classmethod
    def from_json(cls, fields: Any) -> LaunchPlan:
        """The reverse of `to_json`; JSON has no numbers as keys. Fields of a newer agent are ignored.

        Raises:
            TypeError, KeyError: a field is missing.
        """
        ranks = {int(rank): env for rank, env in fields["ranks"].items()}
        confinement = Confinement.from_json(fields.get("confinement") or {})
        container = Container.from_json(fields["container"]) if fields.get("container") else None
        known = _known(cls, fields)
        return cls(**{**known, "ranks": ranks, "confinement": confinement, "container": container})


@contextmanager
def socket_address(state: Path) -> Iterator[str]:
    """Address of the launcher's socket, valid inside the block.

    A Unix socket path may have 107 bytes, a state folder more; through a descriptor it is short.
    """
    folder = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/launcher.sock"
    finally:
        os.close(folder)
