"""What renting needs of a provider of machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from service.domain.rental.machines import Machine
from service.domain.rental.offers import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinBy:
    """How the agent on a new machine joins. `token` works once, for this machine."""

    url: str
    token: str
    node_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A machine of this cluster in its provider's own list. `machine_id` is the tag that its launch gave it.

    `ended` machines cost nothing any more. `billed_to` is None while it costs.
    """

    external_id: str
    machine_id: str
    ended: bool
    billed_from: datetime
    billed_to: datetime | None = None
    message: str = ""


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
