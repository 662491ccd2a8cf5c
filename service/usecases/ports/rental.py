"""Interfaces for renting machines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, Self

from headway.contract.views.jobs import Page
from headway.contract.views.machines import MachineView
from service.domain.cluster.market_limits import MarketLimit
from service.domain.rental.fleet import Joined
from service.domain.rental.machines import Found, Machine
from service.domain.rental.offers import Offer
from service.domain.rental.spot.history import SpotHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinBy:
    """The information with which the agent on a new machine joins. `token` works once, for this machine."""

    url: str
    token: str
    node_name: str


class Provider(Protocol):
    """A provider of machines. Every call may raise Unavailable; its effect is then unknown."""

    name: str
    """Name in `HEADWAY_PROVIDERS`, and of the provider's offers and machines."""

    @classmethod
    def from_env(cls, env: Mapping[str, str], now: Callable[[], datetime]) -> Self:
        """Return the provider with the settings of an environment. `now` is the time in UTC.

        Raise SettingsError, which names the setting, if one is missing or wrong.
        """

    async def offers(self) -> Sequence[Offer]:
        """Return the offers that are available now."""

    async def launch(self, machine: Machine, join: JoinBy) -> Found:
        """Rent the machine from the provider.

        A repeated call with the same `machine.id` returns the same machine.

        Raises:
            NoCapacity: the provider has none now, or a quota is used up; another place or time may have one.
            ProviderRefused: the request can never succeed as it stands.
        """

    async def terminate(self, external_id: str) -> None:
        """Return the machine to the provider. A machine that is already gone is not an error."""

    async def list(self) -> Sequence[Found]:
        """Return every machine with this cluster's tag, recently ended ones included.

        A machine that is missing may still exist: providers list new machines with a delay.
        """


class Machines(Protocol):
    """Machine rows of the database."""

    async def lock_decisions(self) -> None:
        """Lock rental decisions: other callers wait until this transaction ends."""

    async def insert(self, machine: Machine) -> None:
        """Store a new machine, as requested."""

    async def lock(self, machine_id: str) -> Machine:
        """Return the machine, locked until the transaction ends. Raise NotFound if it does not exist."""

    async def save(self, machine: Machine) -> None:
        """Store all fields of a locked machine."""

    async def of_token(self, token_sha256: str) -> Machine | None:
        """Return the machine that joins with this token, locked, or None."""

    async def open(self) -> list[Machine]:
        """Return machines that are neither GONE nor FAILED, oldest first."""

    async def joined(self) -> dict[str, Joined]:
        """Return the nodes of open machines, by machine id."""

    async def known(self, provider: str, names: Collection[str]) -> list[Machine]:
        """Return machines by their ids or their provider's names, ended ones included, oldest first."""

    async def spot_history(self, kinds: Collection[str], now: datetime) -> SpotHistory:
        """Return the learned risks of spot machines with these device kinds."""

    async def store_market_limits(self, limits: Mapping[str, MarketLimit | None]) -> None:
        """Store the limits of locked jobs by job id; None removes a limit."""

    async def drop_market_limits(self) -> None:
        """Remove the limits of all live jobs."""

    async def requested_since(self, moment: datetime) -> list[Machine]:
        """Return machines requested since a moment, ended ones included, oldest first."""

    async def views_of(self, machine_ids: Sequence[str], now: datetime) -> list[MachineView]:
        """Return these machines as the API shows them, by their ids."""

    async def views(
        self, now: datetime, *, open_only: bool, limit: int, cursor: str | None
    ) -> Page[MachineView]:
        """Return machines as the API shows them, newest first."""
