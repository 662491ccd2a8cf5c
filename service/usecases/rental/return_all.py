"""The return of every rented machine at the end of a service that only this machine runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from service.domain.life.life import Launch
from service.domain.rental.fleet import Termination, given_back
from service.domain.rental.machines import ENDED, Machine, MachineReason, MachineState
from service.usecases.ports.rental import Provider
from service.usecases.ports.transactions import Transactions
from service.usecases.rental.provider_calls import answered, tell, terminate
from service.usecases.rental.rent import Memory, Renting, reconciled

_WHY = "Headway was stopped"


async def return_all(
    transactions: Transactions,
    renting: Renting,
    launch: Launch,
    *,
    now: Callable[[], datetime],
    pause: Callable[[], Awaitable[bool]],
) -> list[Machine]:
    """End all machines at their providers, store their ends, and return the machines that are not known to be gone.

    No scheduler may run meanwhile, since it would rent for the jobs that lose them.

    Args:
        transactions: Transactions that need no leadership.
        renting: The providers, and what renting needs.
        launch: As for the lives of jobs.
        now: The time.
        pause: Wait before the providers are asked again; false if there is no time left.
    """
    providers = {one.name for one in renting.providers}
    await _mark(transactions, providers, now())
    memory = Memory()
    asked: set[str] = set()
    while True:
        silent = False
        for provider in renting.providers:
            listed = await answered(provider.name, provider.list())
            silent |= listed is None
            plan = await reconciled(transactions, renting, memory, provider, listed, launch, now())
            memory = Memory(seen={**memory.seen, **plan.seen})
            for found in listed or ():
                if not found.ended and found.external_id not in asked:
                    one = Termination(
                        external_id=found.external_id, machine_id=found.machine_id, message=_WHY
                    )
                    if await _ended(provider, one):
                        asked.add(found.external_id)
        async with transactions.begin() as tx:
            left = [one for one in await tx.machines.open() if one.provider in providers]
        # A machine without a name at its provider that the list does not have either was never launched.
        if not silent and not any(one.external_id for one in left):
            return []
        if not await pause():
            return left


async def _mark(transactions: Transactions, providers: set[str], now: datetime) -> None:
    """Commit that all open machines of these providers are being returned."""
    async with transactions.begin() as tx:
        await tx.machines.lock_decisions()
        for one in await tx.machines.open():
            machine = await tx.machines.lock(one.id)
            if machine.provider in providers and machine.state not in {*ENDED, MachineState.ENDING}:
                returned = given_back(machine, MachineReason.GIVEN_BACK, _WHY, now)
                await tx.machines.save(returned)
                tell(returned)


async def _ended(provider: Provider, one: Termination) -> bool:
    return await terminate(provider, one) == "terminated"
