"""What has happened on this host, for those who watch the agent: its metrics and the traces of jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from headway.contract.agents import AnyCommand, AnyEntry


@dataclass(frozen=True, slots=True)
class Noted:
    """News for the service; it is sent sooner or later."""

    entry: AnyEntry


@dataclass(frozen=True, slots=True)
class Sent:
    """A report was sent. `lease_until_s` (boot-time clock) is what it brought; None: it did not get through."""

    lease_until_s: float | None


@dataclass(frozen=True, slots=True)
class Read:
    """A command came out of the stream, `age_s` after it was put in by the clock of another host. None: it cannot be read."""

    command: AnyCommand | None
    age_s: float


@dataclass(frozen=True, slots=True)
class Taken:
    """A command was taken up, or ignored since newer ones were here."""

    command: AnyCommand
    ignored: bool


@dataclass(frozen=True, slots=True)
class Shipped:
    """So much output of ranks has reached the service, and so much before it was left out."""

    kept_bytes: int
    left_out_bytes: int


Fact: TypeAlias = Noted | Sent | Read | Taken | Shipped
Tell: TypeAlias = Callable[[Fact], None]
"""Takes a fact in, in the thread in which it happened; must neither raise nor wait."""


def tell_nobody(_: Fact) -> None:
    """Of no interest."""
