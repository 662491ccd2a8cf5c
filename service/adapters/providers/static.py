"""Provider for owned hosts, which join by themselves and cannot be rented."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Self

from service.domain.rental.machines import Found, Machine
from service.domain.rental.offers import Offer
from service.domain.shared.errors import ProviderRefused
from service.usecases.ports.rental import JoinBy, Provider


class StaticProvider(Provider):
    """Provider without offers."""

    name = "static"

    @classmethod
    def from_env(cls, env: Mapping[str, str], now: Callable[[], datetime]) -> Self:  # noqa: ARG003 - the port's
        return cls()

    async def offers(self) -> Sequence[Offer]:
        return ()

    async def launch(self, machine: Machine, join: JoinBy) -> Found:  # noqa: ARG002 - the port's
        raise ProviderRefused(
            f"{machine.instance_type}: the provider `static` rents no machines; start `headway agent` on the host"
        )

    async def terminate(self, external_id: str) -> None:
        """Do nothing, because nothing was launched."""

    async def list(self) -> Sequence[Found]:
        return ()
