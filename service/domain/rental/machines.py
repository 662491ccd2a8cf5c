"""A machine that is rented: a lease, from the decision to rent it until nothing is billed any more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
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
