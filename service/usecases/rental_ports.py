"""What renting needs of a provider of machines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headway.contract.jobs import Page
from headway.contract.machines import MachineView
from service.domain.rental.fleet import Joined
from service.domain.rental.machines import Found, Machine
from service.domain.rental.offers import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinBy:
    """How the agent on a new machine joins. `token` works once, for this machine."""

    url: str
    token: str
    node_name: str


class Provider(Protocol):
    """Where machines come from. Every call may raise Unavailable: then nobody knows whether it came through."""

    name: str

    async def offers(self) -> Sequence[Offer]:
        """What it sells now."""
        ...

    async def launch(self, machine: Machine, join: JoinBy) -> Found:
        """Rent the machine; asked again for the same `machine.id`, it is the same one.

        Raises:
            NoCapacity: there is none now; another place or time may have one.
            ProviderRefused: there never will be, as it was asked for.
        """
        ...

    async def terminate(self, external_id: str) -> None:
        """Give it back. One that is gone is no error."""
        ...

    async def list(self) -> Sequence[Found]:
        """Every machine with this cluster's tag, those that ended lately among them. What is not in it may still exist:
        providers need a while to list what they have just launched.
        """
        ...


class Machines(Protocol):
    """Rows of machines."""

    async def take_turn(self) -> None:
        """Until the transaction ends, whoever else takes a turn waits."""
        ...

    async def insert(self, machine: Machine) -> None:
        """Store a new machine."""
        ...

    async def lock(self, machine_id: str) -> Machine:
        """The machine, locked until the transaction ends. Raises NotFound."""
        ...

    async def save(self, machine: Machine) -> None:
        """Store a locked machine."""
        ...

    async def of_token(self, token_sha256: str) -> Machine | None:
        """The machine that joins with this token, locked."""
        ...

    async def open(self) -> list[Machine]:
        """Those that are neither GONE nor FAILED, oldest first."""
        ...

    async def joined(self) -> dict[str, Joined]:
        """The nodes of open machines, by the machine's id."""
        ...

    async def known(self, provider: str, names: Collection[str]) -> list[Machine]:
        """Machines by their ids or their provider's names, ended ones too, oldest first."""
        ...

    async def requested_since(self, moment: datetime) -> list[Machine]:
        """Those that were wanted since a moment, ended ones too, oldest first."""
        ...

    async def views(
        self, now: datetime, *, open_only: bool, limit: int, cursor: str | None
    ) -> Page[MachineView]:
        """Machines as the API shows them, newest first."""
        ...
