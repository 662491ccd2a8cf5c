"""A machine that is rented: a lease, from the decision to rent it until nothing is billed any more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from headway.contract.markets import Market


class MachineState(StrEnum):
    """WANTED is decided and not asked for yet, or nobody knows whether asking came through. LAUNCHING exists at its
    provider, and its agent has not joined. RUNNING has joined. ENDING is to be given back. GONE is no longer billed.
    FAILED never existed.
    """

    WANTED = "wanted"
    LAUNCHING = "launching"
    RUNNING = "running"
    ENDING = "ending"
    GONE = "gone"
    FAILED = "failed"


class MachineReason(StrEnum):
    """Why a machine is in its state: for programs. The sentence beside it is for people."""

    WORTH_IT = "WORTH_IT"
    """Rented: jobs gain more by it than it costs."""
    LAUNCHED = "LAUNCHED"
    JOINED = "JOINED"
    NO_CAPACITY = "NO_CAPACITY"
    REFUSED = "REFUSED"
    GIVEN_UP = "GIVEN_UP"
    """Its provider did not answer for too long."""
    NEVER_JOINED = "NEVER_JOINED"
    AGENT_LOST = "AGENT_LOST"
    IDLE = "IDLE"
    NOT_WORTH_IT = "NOT_WORTH_IT"
    DUPLICATE = "DUPLICATE"
    """A launch made two machines: this is the one too many."""
    LEFT_OVER = "LEFT_OVER"
    """It was found running after its lease had ended."""
    SPOT_RECLAIMED = "SPOT_RECLAIMED"
    """Its provider takes it, or took it, away."""
    ENDED_BY_PROVIDER = "ENDED_BY_PROVIDER"
    VANISHED = "VANISHED"
    """Its provider has not listed it for long."""
    GIVEN_BACK = "GIVEN_BACK"


ENDED = frozenset({MachineState.GONE, MachineState.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A lease. `id` is also the token that makes a launch happen once: a provider that is asked twice gives one machine.

    `external_id` is the provider's name for it, None until it is known. `billed_from` and `billed_to` are the provider's:
    what is paid for, to the second. `min_billed_s` is the least that is paid for.
    """

    id: str
    provider: str
    region: str
    zone: str = ""
    instance_type: str
    device_kind: str
    slots: int
    market: Market
    usd_per_h: float
    state: MachineState
    reason: str
    message: str
    external_id: str | None = None
    join_token_sha256: str | None = None
    requested_at: datetime
    state_since: datetime
    billed_from: datetime | None = None
    billed_to: datetime | None = None
    min_billed_s: float = 60.0

    @property
    def usd_per_slot_h(self) -> float:
        """Its price, spread over its slots."""
        return self.usd_per_h / max(self.slots, 1)


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


def paid_until(machine: Machine, now: datetime) -> datetime | None:
    """Until when a machine has to be paid for, as far as is known now; None for one that is not billed.

    Its provider says when billing has ended. For a shorter time than `min_billed_s` nobody rents.
    """
    if machine.billed_from is None:
        return None
    if machine.billed_to is None:
        return max(now, machine.billed_from)
    minimum_s = machine.min_billed_s if math.isfinite(machine.min_billed_s) else 0.0
    return max(machine.billed_to, machine.billed_from + timedelta(seconds=max(minimum_s, 0.0)))


def billed_s(machine: Machine, now: datetime) -> float:
    """Seconds that are paid for by `now`, as in the ledger."""
    until = paid_until(machine, now)
    return (
        0.0 if until is None or machine.billed_from is None else (until - machine.billed_from).total_seconds()
    )


def cost_usd(machine: Machine, now: datetime) -> float:
    """What it has cost by `now`."""
    return billed_s(machine, now) * machine.usd_per_h / 3600.0
