"""Rented machine: a lease, from the decision to rent it until nothing is billed any more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from headway.contract.values.markets import Market


class MachineState(StrEnum):
    """State of a machine.

    - WANTED: the service has decided to rent it. The launch is not requested yet, or its outcome is unknown.
    - LAUNCHING: it exists at its provider, and its agent has not joined.
    - RUNNING: its agent has joined.
    - ENDING: it is to be terminated.
    - GONE: it is no longer billed.
    - FAILED: it never existed.
    """

    WANTED = "wanted"
    LAUNCHING = "launching"
    RUNNING = "running"
    ENDING = "ending"
    GONE = "gone"
    FAILED = "failed"


class MachineReason(StrEnum):
    """Reason for the state of a machine, for programs. The message beside it is for users."""

    WORTH_IT = "WORTH_IT"
    """The machine is rented because jobs gain more from it than it costs."""
    LEASED = "LEASED"
    """A user leased the machine for a job."""
    LAUNCHED = "LAUNCHED"
    JOINED = "JOINED"
    NO_CAPACITY = "NO_CAPACITY"
    REFUSED = "REFUSED"
    GIVEN_UP = "GIVEN_UP"
    """The provider did not answer for too long."""
    NEVER_JOINED = "NEVER_JOINED"
    AGENT_LOST = "AGENT_LOST"
    IDLE = "IDLE"
    NOT_WORTH_IT = "NOT_WORTH_IT"
    DUPLICATE = "DUPLICATE"
    """A launch created two machines, and this is the duplicate."""
    LEFT_OVER = "LEFT_OVER"
    """The machine was found running after its lease had ended."""
    SPOT_RECLAIMED = "SPOT_RECLAIMED"
    """The provider takes, or has taken, the machine away."""
    ENDED_BY_PROVIDER = "ENDED_BY_PROVIDER"
    VANISHED = "VANISHED"
    """The provider has not listed the machine for a long time."""
    GIVEN_BACK = "GIVEN_BACK"


SUCCESSOR_S = 600.0
"""Seconds before the agreed end of a machine at which it no longer counts as capacity to come, so that another is rented.

The agent drains the machine some minutes before the end; until then the other one starts and its agent joins.
"""


ENDED = frozenset({MachineState.GONE, MachineState.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Lease of a machine. `id` is also the idempotency token of its launch: a repeated request creates no
    second machine.

    `external_id` is the provider's name for the machine, None until it is known. `billed_from` and
    `billed_to` are the provider's times of the paid period, to the second. `min_billed_s` is the shortest
    period that is paid for.
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
    job_id: str | None = None
    """Job that a user leased the machine for; None if the scheduler decided to rent it."""

    @property
    def usd_per_slot_h(self) -> float:
        """Price of the machine, divided by its slots."""
        return self.usd_per_h / max(self.slots, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Machine of this cluster in its provider's list. `machine_id` is the tag that its launch set.

    `ended` machines cost nothing any more. `billed_to` is None while the machine is billed. `ends_at` is the time at
    which the provider will end the machine as agreed, None if it runs until it is returned.
    """

    external_id: str
    machine_id: str
    ended: bool
    billed_from: datetime
    billed_to: datetime | None = None
    message: str = ""
    ends_at: datetime | None = None

    def needs_successor(self, now: datetime) -> bool:
        """Return whether another machine is to take over soon: `SUCCESSOR_S` before the end, or half of a shorter term."""
        if self.ended or self.ends_at is None:
            return False
        term_s = (self.ends_at - self.billed_from).total_seconds()
        return (self.ends_at - now).total_seconds() <= min(SUCCESSOR_S, term_s / 2)


def paid_until(machine: Machine, now: datetime) -> datetime | None:
    """Return the time until which a machine is paid for, as far as is known now, or None if it is not billed.

    The provider reports the end of billing. A machine is paid for at least `min_billed_s`.
    """
    if machine.billed_from is None:
        return None
    if machine.billed_to is None:
        return max(now, machine.billed_from)
    minimum_s = machine.min_billed_s if math.isfinite(machine.min_billed_s) else 0.0
    return max(machine.billed_to, machine.billed_from + timedelta(seconds=max(minimum_s, 0.0)))


def billed_s(machine: Machine, now: datetime) -> float:
    """Return the seconds that are paid for by `now`, as in the ledger."""
    until = paid_until(machine, now)
    return (
        0.0 if until is None or machine.billed_from is None else (until - machine.billed_from).total_seconds()
    )


def cost_usd(machine: Machine, now: datetime) -> float:
    """Return the dollars that the machine has cost by `now`."""
    return billed_s(machine, now) * machine.usd_per_h / 3600.0
