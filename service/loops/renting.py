"""The renting loop: each pass hands its memory to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from service.domain.life.life import Launch
from service.loops.runner import Loop
from service.usecases.ports.transactions import Transactions
from service.usecases.rental.rent import Memory, Renting, rent

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Rents:
    """The renting of machines, which runs while this process is the leader."""

    transactions: Transactions
    renting: Renting
    launch: Launch
    now: Callable[[], datetime]
    usd_per_slot_h: Mapping[str, float]
    every_s: float
    memory: Memory = field(default_factory=Memory)

    def loop(self) -> Loop:
        """Return the loop of renting passes."""
        return Loop(
            name="rent", run_once=self.run_once, min_interval_s=self.every_s, max_interval_s=self.every_s
        )

    async def run_once(self) -> None:
        """Run one pass, and log its result."""
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
