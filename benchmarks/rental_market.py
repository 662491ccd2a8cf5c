"""One job on a recorded spot market: its time and cost with a rule that chooses the machines to hold.

Time advances in steps of `STEP_S`. A machine is paid for from its launch, and trains `LAUNCH_S` later. The market gives notice
before it takes a machine away, so every rule saves a checkpoint in time and loses no step. A job restarts from the checkpoint
if it has lost all members, or if its rule has no live resize. A restart costs the measured restart time of the application.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.domain.rental.fleet import backoff_s
from service.domain.shared.arrays import IntArray

STEP_S = 30.0
LAUNCH_S = 120.0
PAUSE_S = 1.0
"""Seconds of a live resize."""
GIVEN_UP_AFTER = 20.0
"""Time limit of a job, as a multiple of its time on demand."""


@dataclass(frozen=True, slots=True)
class Zones:
    """Available spot machines (zones, time) in a region, one column for each `gap_s`; the trace repeats."""

    name: str
    gap_s: float
    counts: IntArray

    def available(self, at_s: float, most: int) -> list[int]:
        """Return the available machines by zone for a job of at most `most` machines.

        A trace with fewer instances was recorded for a smaller request, so its counts are scaled up in proportion.
        """
        tick = int(at_s / self.gap_s) % self.counts.shape[1]
        peak = max(int(self.counts.max()), 1)
        column = self.counts[:, tick].tolist()
        return [min(one, most) if peak >= most else one * most // peak for one in column]


@dataclass(frozen=True, slots=True)
class Work:
    """Job on the market.

    `speed[n - 1]` is the share of its work that n machines do in a second. `full` is the requested size.
    `deadline_s` counts from the submit.
    """

    name: str
    speed: Sequence[float]
    full: int
    restart_s: float
    submit_s: float
    deadline_s: float

    @property
    def on_demand_s(self) -> float:
        """Seconds from submit to end on the requested size on demand."""
        return LAUNCH_S + self.restart_s + 1 / self.speed[self.full - 1]


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars per hour of a machine."""

    on_demand: float
    spot: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Situation that a rule decides on.

    `done` is the finished share of the work. `spot_available` includes the machines that are held, and is the
    true number. `spot_requestable` is the number that a service can know: the held machines, and all others while
    some zone accepts requests.
    """

    work: Work
    elapsed_s: float
    done: float
    spot_available: int
    spot_requestable: int
    spot_ready: int
    spot_held: int
    on_demand_ready: int
    on_demand_held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalChange:
    """Machines to hold. With a `gang`, the job trains on exactly that many. `extra_usd_per_h` are additional costs."""

    on_demand: int
    spot: int
    gang: int | None = None
    extra_usd_per_h: float = 0.0


class Rule(Protocol):
    """Rule that chooses the machines to hold.

    With `knows_market`, it requests no more machines of a zone than there are. Otherwise requests fail, and the
    zone's launches are suspended for as long as in the service.
    """

    name: str
    knows_market: bool

    def wish(self, scene: Scene) -> OptionalChange:
        """Return the machines to hold now."""
        ...

    def most(self, work: Work) -> int:
        """Return the largest number of spot machines that the rule ever holds."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds from submit to end and dollars of a job. `missed` is True if it ended after its deadline."""

    time_s: float
    usd: float
    missed: bool


@dataclass(slots=True)
class _Held:
    """Times at which the held machines are ready: on spot for each zone, and on demand."""

    spot: list[list[float]]
    on_demand: list[float] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    """Failed requests in a row, by zone."""
    closed_until_s: list[float] = field(default_factory=list)
    """End of the backoff of each zone."""

    def __post_init__(self) -> None:
        self.failures = [0] * len(self.spot)
        self.closed_until_s = [-math.inf] * len(self.spot)

    def requestable(self, now_s: float, most: int) -> int:
        """Return the spot machines that are held or may be requested, as far as a service can know."""
        return most if any(one <= now_s for one in self.closed_until_s) else self.count()

    def ready(self, now_s: float) -> tuple[int, int]:
        """Return the numbers of machines that can train, on spot and on demand."""
        spot = sum(one <= now_s for zone in self.spot for one in zone)
        return spot, sum(one <= now_s for one in self.on_demand)

    def count(self) -> int:
        """Return the number of held spot machines."""
        return sum(len(zone) for zone in self.spot)

    def lose(self, available: Sequence[int]) -> None:
        """Remove the machines that the market takes away, the newest of a zone first."""
        for zone, there in zip(self.spot, available, strict=True):
            del zone[there:]

    def adjust(
        self, wish: OptionalChange, available: Sequence[int], now_s: float, *, knows_market: bool
    ) -> None:
        """Launch missing machines, and give back surplus ones, the newest first."""
        surplus = self.count() - wish.spot
        for index, (zone, there) in enumerate(zip(self.spot, available, strict=True)):
            if surplus > 0:
                gone = min(surplus, len(zone))
                del zone[len(zone) - gone :]
                surplus -= gone
            elif surplus < 0 and (knows_market or self.closed_until_s[index] <= now_s):
                more = min(-surplus, max(there - len(zone), 0))
                zone.extend([now_s + LAUNCH_S] * more)
                surplus += more
                fails = surplus < 0 and not knows_market
                self.failures[index] = self.failures[index] + 1 if fails else 0
                if fails:
                    self.closed_until_s[index] = now_s + backoff_s(self.failures[index])
        missing = wish.on_demand - len(self.on_demand)
        if missing >= 0:
            self.on_demand += [now_s + LAUNCH_S] * missing
        else:
            del self.on_demand[missing:]


def play(work: Work, rule: Rule, zones: Zones, prices: Prices, offset_s: float) -> Outcome:
    """Run the job from its submit to its end. `offset_s` is the position in the traces at which the stream begins."""
    most = rule.most(work)
    held = _Held([[] for _ in range(zones.counts.shape[0])])
    elapsed_s, done, usd, pause_s, members, alive = 0.0, 0.0, 0.0, 0.0, 0, False
    longest_s = GIVEN_UP_AFTER * work.on_demand_s
    while done < 1 and elapsed_s < longest_s:
        available = zones.available(offset_s + work.submit_s + elapsed_s, most)
        held.lose(available)
        spot_ready, on_demand_ready = held.ready(elapsed_s)
        scene = Scene(
            work=work,
            elapsed_s=elapsed_s,
            done=done,
            spot_available=min(sum(available), most),
            spot_requestable=held.requestable(elapsed_s, most),
            spot_ready=spot_ready,
            spot_held=held.count(),
            on_demand_ready=on_demand_ready,
            on_demand_held=len(held.on_demand),
        )
        wish = rule.wish(scene)
        held.adjust(wish, available, elapsed_s, knows_market=rule.knows_market)
        ready = min(sum(held.ready(elapsed_s)), len(work.speed))
        size = ready if wish.gang is None else wish.gang * (ready >= wish.gang)
        if size != members or (wish.gang is not None and size and spot_ready != held.ready(elapsed_s)[0]):
            if size and (wish.gang is not None or not alive):
                pause_s = work.restart_s
            elif size:
                pause_s += PAUSE_S
            members, alive = size, size > 0
        trained_s = max(STEP_S - pause_s, 0.0) if members else 0.0
        pause_s = max(pause_s - STEP_S, 0.0) if members else pause_s
        progress = trained_s * work.speed[members - 1] if members else 0.0
        # The last step ends with the work.
        share = min((1 - done) / progress, 1.0) if progress > 0 else 1.0
        lasted_s = STEP_S if share >= 1 else STEP_S - trained_s * (1 - share)
        price = prices.on_demand * len(held.on_demand) + prices.spot * held.count() + wish.extra_usd_per_h
        usd += price * lasted_s / 3600
        done += progress * share if share < 1 else progress
        elapsed_s += lasted_s
        if share < 1:
            break
    return Outcome(elapsed_s, usd, elapsed_s > work.deadline_s)
