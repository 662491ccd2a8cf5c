"""One job on a recorded spot market: what it takes and costs by a rule that says which machines to hold.

Time goes in steps of `STEP_S`. A machine is paid for from its launch and trains `LAUNCH_S` later. Machines that the market
takes away give notice, so every rule saves in time and no step is lost; a job whose members are all gone, or whose rule
knows no live resize, restarts from that checkpoint when it has machines again, which costs its application's measured
restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.domain.shared.arrays import IntArray

STEP_S = 30.0
LAUNCH_S = 120.0
PAUSE_S = 1.0
"""A live resize."""
GIVEN_UP_AFTER = 20.0
"""Times of the on-demand time, after which a job counts as it stands."""


@dataclass(frozen=True, slots=True)
class Zones:
    """Spot machines available (Z, T) in the zones of a region, one column for each `gap_s`; round and round."""

    name: str
    gap_s: float
    counts: IntArray

    def available(self, at_s: float, most: int) -> list[int]:
        """By zone, for a job of at most so many machines. A trace of fewer instances than that is of a smaller request:
        they come and go in proportion.
        """
        tick = int(at_s / self.gap_s) % self.counts.shape[1]
        peak = max(int(self.counts.max()), 1)
        column = self.counts[:, tick].tolist()
        return [min(one, most) if peak >= most else one * most // peak for one in column]


@dataclass(frozen=True, slots=True)
class Work:
    """A job: `speed[n - 1]` is what share of its work n machines do in a second, `full` the size that its user asks for.
    `deadline_s` is from its submit.
    """

    name: str
    speed: Sequence[float]
    full: int
    restart_s: float
    submit_s: float
    deadline_s: float

    @property
    def on_demand_s(self) -> float:
        """From its submit to its end on its full size on demand."""
        return LAUNCH_S + self.restart_s + 1 / self.speed[self.full - 1]


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars per hour of a machine, and of what a rule holds beside."""

    on_demand: float
    spot: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a rule sees. `done` is a share of the work; `spot_available` counts those that are held."""

    work: Work
    elapsed_s: float
    done: float
    spot_available: int
    spot_ready: int
    spot_held: int
    on_demand_ready: int
    on_demand_held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalChange:
    """Machines to hold. A `gang` trains with exactly so many or not at all. `beside_usd_per_h` is paid besides."""

    on_demand: int
    spot: int
    gang: int | None = None
    beside_usd_per_h: float = 0.0


class Rule(Protocol):
    """Says which machines to hold."""

    name: str

    def wish(self, scene: Scene) -> OptionalChange:
        """What to hold now."""
        ...

    def most(self, work: Work) -> int:
        """Machines that it ever holds at once on spot."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds from submit to end, dollars, and whether the deadline was missed."""

    time_s: float
    usd: float
    missed: bool


@dataclass(slots=True)
class _Held:
    """Machines by when they are ready, for each zone, and on demand."""

    spot: list[list[float]]
    on_demand: list[float] = field(default_factory=list)

    def ready(self, now_s: float) -> tuple[int, int]:
        """Machines that can train, on spot and on demand."""
        spot = sum(one <= now_s for zone in self.spot for one in zone)
        return spot, sum(one <= now_s for one in self.on_demand)

    def count(self) -> int:
        """Spot machines that are held."""
        return sum(len(zone) for zone in self.spot)

    def lose(self, available: Sequence[int]) -> None:
        """Those that the market takes away; the newest of a zone go first."""
        for zone, there in zip(self.spot, available, strict=True):
            del zone[there:]

    def adjust(self, wish: OptionalChange, available: Sequence[int], now_s: float) -> None:
        """Launch what is missing and give back what is too many; the newest go first."""
        surplus = self.count() - wish.spot
        for zone, there in zip(self.spot, available, strict=True):
            if surplus > 0:
                gone = min(surplus, len(zone))
                del zone[len(zone) - gone :]
                surplus -= gone
            elif surplus < 0:
                more = min(-surplus, max(there - len(zone), 0))
                zone.extend([now_s + LAUNCH_S] * more)
                surplus += more
        missing = wish.on_demand - len(self.on_demand)
        if missing >= 0:
            self.on_demand += [now_s + LAUNCH_S] * missing
        else:
            del self.on_demand[missing:]


def play(work: Work, rule: Rule, zones: Zones, prices: Prices, offset_s: float) -> Outcome:
    """The job from its submit to its end; `offset_s` is where in the traces the stream of jobs begins."""
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
            spot_ready=spot_ready,
            spot_held=held.count(),
            on_demand_ready=on_demand_ready,
            on_demand_held=len(held.on_demand),
        )
        wish = rule.wish(scene)
        held.adjust(wish, available, elapsed_s)
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
        # The last step ends when the work does.
        share = min((1 - done) / progress, 1.0) if progress > 0 else 1.0
        lasted_s = STEP_S if share >= 1 else STEP_S - trained_s * (1 - share)
        price = prices.on_demand * len(held.on_demand) + prices.spot * held.count() + wish.beside_usd_per_h
        usd += price * lasted_s / 3600
        done += progress * share if share < 1 else progress
        elapsed_s += lasted_s
        if share < 1:
            break
    return Outcome(elapsed_s, usd, elapsed_s > work.deadline_s)
