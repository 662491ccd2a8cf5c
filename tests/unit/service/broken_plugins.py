"""Classes that entry points of tests name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from service.domain.policies.fifo import Fifo
from service.domain.policies.framework.parameter import parameter


@dataclass(frozen=True, slots=True)
class Good(Fifo):
    """First in, first out, under another name."""

    name: ClassVar[str] = "good"
    protocol: ClassVar[int] = 1
    pace: float = parameter(1.0, "A number of at least 0.", at_least=0)


@dataclass(frozen=True, slots=True)
class OfTomorrow(Fifo):
    """A policy for an interface that does not exist yet."""

    name: ClassVar[str] = "of-tomorrow"
    protocol: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Undeclared(Fifo):
    """A policy that does not say for which interface it is."""

    name: ClassVar[str] = "undeclared"


@dataclass(frozen=True, slots=True)
class WithoutText(Fifo):
    """A policy whose parameter has no text."""

    name: ClassVar[str] = "without-text"
    protocol: ClassVar[int] = 1
    pace: float = 1.0


class NoDataclass:
    """No policy."""

    name = "no-dataclass"
    protocol = 1

    def choose(self, given: Any, solve: Any) -> Any:
        raise NotImplementedError


class HalfAProvider:
    """A provider that can only list."""

    name = "half"
    protocol = 1

    async def list(self) -> list[Any]:
        return []
