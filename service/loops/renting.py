"""The loop that rents: one pass after another, with what each leaves to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from service.loops.runner import Loop
from service.usecases.orders import Launch
from service.usecases.ports import Transactions
from service.usecases.rent import Memory, Renting, rent

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Rents:
    """Rents and gives back, as long as this process is the leader."""

    transactions: Transactions
    renting: Renting
    launch: Launch
    now: Callable[[], datetime]
    usd_per_slot_h: Mapping[str, float]
    every_s: float
    memory: Memory = field(default_factory=Memory)

    def loop(self) -> Loop:
        """Its loop."""
        return Loop(
            name="rent", run_once=self.run_once, min_interval_s=self.every_s, max_interval_s=self.every_s
        )

    async def run_once(self) -> None:
        """One pass."""
        result = await rent(
            self.transactions,
            self.renting,
            self.memory,
            self.launch,
            now=self.now,
            usd_per_slot_h=self.usd_per_slot_h,
        )
        before, self.memory = self.memory, result.memory
        if self.memory.held_back and self.memory.held_back != before.held_back:
            log.info("renting_held_back", why=self.memory.held_back)
        if result.did_something:
            log.info(
                "rented",
                wanted=result.wanted,
                launched=result.launched,
                not_launched=result.not_launched,
                terminated=result.terminated,
                unanswered=result.unanswered,
            )
