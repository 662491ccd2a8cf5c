"""Calls to providers, and the storage of their answers. No call is made inside a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import structlog

from service.domain.rental.fleet import Termination, launched, not_launched
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.domain.shared.errors import HeadwayServiceError, NoCapacity, ProviderRefused, Unavailable
from service.usecases.ports.rental import JoinBy, Provider
from service.usecases.ports.transactions import Transactions

log = structlog.get_logger()

_ANSWER_S = 90.0
"""Timeout of a call to a provider."""

Answer = TypeVar("Answer")


async def answered(provider: str, call: Awaitable[Answer]) -> Answer | None:
    """Return the provider's answer, or None if it gives none or an invalid one."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await call
    except (HeadwayServiceError, TimeoutError) as error:
        log.warning("provider_silent", provider=provider, reason=str(error) or "no answer in time")
    except Exception:
        # A fault of one adapter must not keep machines of other providers from being terminated.
        log.exception("provider_failed", provider=provider)
    return None


def tell(machine: Machine) -> None:
    """Log the new state of a machine."""
    log.info(
        "machine",
        machine=machine.id,
        state=machine.state.value,
        reason=machine.reason,
        message=machine.message,
        external_id=machine.external_id,
    )


async def ask_for(
    transactions: Transactions,
    provider: Provider,
    machine: Machine,
    join: JoinBy,
    now: Callable[[], datetime],
) -> str:
    """Launch a machine, and store the answer. Return the outcome.

    The row is checked once more before the launch, under a lock that a leader whose term is over does not
    get. A process that was suspended since the decision must not launch a machine that another leader has
    given up meanwhile.
    """
    async with transactions.begin() as tx:
        if (await tx.machines.lock(machine.id)).state is not MachineState.WANTED:
            return "not wanted"
    try:
        async with asyncio.timeout(_ANSWER_S):
            found = await provider.launch(machine, join)
    except NoCapacity as error:
        await _write(transactions, machine, _refused(MachineReason.NO_CAPACITY, error.message, now()))
        return "not launched"
    except ProviderRefused as error:
        await _write(transactions, machine, _refused(MachineReason.REFUSED, error.message, now()))
        return "not launched"
    except (Unavailable, TimeoutError) as error:
        log.warning("launch_unanswered", machine=machine.id, reason=str(error) or "no answer in time")
        return "unanswered"
    except Exception:
        log.exception("launch_failed", machine=machine.id, provider=provider.name)
        return "unanswered"
    await _write(transactions, machine, lambda row: launched(row, found, now()))
    return "launched"


def _refused(reason: MachineReason, message: str, now: datetime) -> Callable[[Machine], Machine]:
    """Return the change of the row after a refusal. A machine that is known to exist is left unchanged."""
    return lambda row: (
        not_launched(row, reason, message, now)
        if row.external_id is None and row.state is MachineState.WANTED
        else row
    )


async def _write(transactions: Transactions, machine: Machine, change: Callable[[Machine], Machine]) -> None:
    async with transactions.begin() as tx:
        row = await tx.machines.lock(machine.id)
        changed = change(row)
        if changed != row:
            await tx.machines.save(changed)
    if changed != row:
        tell(changed)


async def terminate(provider: Provider, one: Termination) -> str:
    """Request the end of a machine. Return the outcome. The provider's list confirms the end in a later pass."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            await provider.terminate(one.external_id)
    except (HeadwayServiceError, TimeoutError) as error:
        log.warning("terminate_unanswered", external_id=one.external_id, reason=str(error))
        return "unanswered"
    except Exception:
        log.exception("terminate_failed", external_id=one.external_id, provider=provider.name)
        return "unanswered"
    log.info("terminated", external_id=one.external_id, machine=one.machine_id, why=one.message)
    return "terminated"
