"""Hosts of one's own: they join by themselves, and there is nothing to rent."""

from __future__ import annotations

from collections.abc import Sequence

from service.domain.errors import ProviderRefused
from service.domain.rental.machines import Found, Machine
from service.domain.rental.offers import Offer
from service.usecases.rental_ports import JoinBy


class StaticProvider:
    """Implements `usecases.rental_ports.Provider`."""

    name = "static"

    async def offers(self) -> Sequence[Offer]:
        """Nothing."""
        return ()

    async def launch(self, machine: Machine, join: JoinBy) -> Found:  # noqa: ARG002 - the port's
        """Refuse: hosts of one's own are started by their owners."""
        raise ProviderRefused(
            f"{machine.instance_type}: nothing is rented from `static`; start `headway agent` there"
        )

    async def terminate(self, external_id: str) -> None:
        """Nothing was launched, so nothing is left."""

    async def list(self) -> Sequence[Found]:
        """Nothing was launched."""
        return ()
