"""Leases that a test asks a provider for."""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime

from headway.contract.values.markets import Market
from service.domain.rental.machines import Found, Machine, MachineState
from service.usecases.ports.rental import JoinBy, Provider
from tests.waiting import until

_NUMBERS = itertools.count()


def machine_of(provider: str, region: str, instance_type: str, slots: int, /, **changes: object) -> Machine:
    """A wanted spot machine of the device kind `cpu`, whose id no other test has."""
    now = datetime.now(UTC)
    fields: dict[str, object] = {
        "id": f"m{next(_NUMBERS):04}x{os.getpid()}",
        "provider": provider,
        "region": region,
        "instance_type": instance_type,
        "device_kind": "cpu",
        "slots": slots,
        "market": Market.SPOT,
        "usd_per_h": 0.1,
        "state": MachineState.WANTED,
        "reason": "WORTH_IT",
        "message": "",
        "requested_at": now,
        "state_since": now,
        **changes,
    }
    return Machine(**fields)  # type: ignore[arg-type]


async def launched(provider: Provider, machine: Machine, token: str = "secret") -> Found:
    """The machine, after its launch. Its agent would find no service."""
    join = JoinBy(url="http://127.0.0.1:9", token=token, node_name=f"rented-{machine.id}")
    return await provider.launch(machine, join)


async def listed(provider: Provider, machine: Machine) -> list[Found]:
    return [one for one in await provider.list() if one.machine_id == machine.id]


async def ended(provider: Provider, machine: Machine) -> Found:
    """The machine, once it is listed as ended."""

    async def is_so() -> bool:
        return [one.ended for one in await listed(provider, machine)] == [True]

    await until(is_so)
    (found,) = await listed(provider, machine)
    return found
