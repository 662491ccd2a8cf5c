"""A provider that does what a test says, and everything wrong that one can do."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from service.domain.rental.machines import Found, Machine
from service.domain.rental.offers import Offer
from service.domain.shared.errors import HeadwayServiceError, NoCapacity, Unavailable
from service.usecases.ports.rental import JoinBy


class Crash(BaseException):
    """The service ends here."""


@dataclass
class Instance:
    """A machine that exists at the provider."""

    external_id: str
    machine_id: str
    began: datetime
    join: JoinBy
    ended: datetime | None = None
    message: str = ""

    def shown(self) -> Found:
        return Found(
            external_id=self.external_id,
            machine_id=self.machine_id,
            ended=self.ended is not None,
            billed_from=self.began,
            billed_to=self.ended,
            message=self.message,
        )


def small_offer(seen_at: datetime, **fields: Any) -> Offer:
    """Machines with two slots on both markets, or with other `fields`."""
    usual: dict[str, Any] = {
        "instance_type": "small",
        "devices": 2,
        "spot_usd_per_h": 0.12,
        "on_demand_usd_per_h": 0.4,
        "min_billed_s": 0.0,
    }
    return Offer(provider="cloud", region="here", device_kind="cpu", seen_at=seen_at, **{**usual, **fields})


@dataclass
class Cloud:
    """Implements `Provider`. `next_errors` come first, one for each call of `launch`; `badness` is how often any step goes
    wrong in any way.
    """

    now: Callable[[], datetime]
    sells: list[Offer] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    next_errors: list[HeadwayServiceError | Crash] = field(default_factory=list)
    lose_answers: bool = False
    launches: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    badness: float = 0.0
    faults: int = 0
    name: str = "cloud"

    def bad(self) -> bool:
        happens = self.rng.random() < self.badness
        self.faults += happens
        return happens

    async def offers(self) -> Sequence[Offer]:
        self.stumble()
        return self.sells

    async def launch(self, machine: Machine, join: JoinBy) -> Found:
        self.launches += 1
        self.stumble()
        if self.next_errors:
            raise self.next_errors.pop(0)
        mine = [one for one in self.instances if one.machine_id == machine.id]
        if not mine and self.bad():
            raise NoCapacity("none left")
        if not mine or self.bad():  # asked twice, it makes two
            for _ in range(2 if self.bad() else 1):
                external_id = f"i-{len(self.instances)}"
                self.instances.append(Instance(external_id, machine.id, self.now(), join))
            mine = [one for one in self.instances if one.machine_id == machine.id]
        if self.lose_answers:
            raise Unavailable("the answer was lost")
        self.stumble()
        return mine[0].shown()

    async def terminate(self, external_id: str) -> None:
        self.stumble()
        self.end(external_id)
        self.stumble()

    async def list(self) -> Sequence[Found]:
        self.stumble()
        return [one.shown() for one in self.instances if not self.bad()]

    def end(self, external_id: str, message: str = "") -> None:
        for one in self.instances:
            if one.external_id == external_id and one.ended is None:
                one.ended, one.message = max(self.now(), one.began), message

    def stumble(self) -> None:
        """No answer, or our own end."""
        if self.bad():
            raise Unavailable("500")
        if self.badness and self.rng.random() < self.badness / 4:
            self.faults += 1
            raise Crash

    def running(self) -> Sequence[Instance]:
        return [one for one in self.instances if one.ended is None]
