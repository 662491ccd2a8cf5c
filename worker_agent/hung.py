"""Whether ranks hang: what they said, with times, goes in; a verdict with its reason comes out. Pure.

Nothing counts before the first step of a generation, nor between an order of new members and the first step of these, nor
once training is over. Times are seconds in which the agent was awake (`AwakeClock`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import pairwise

from headway.contract.runtime import Completed, FirstStep, Message, Progress, Stopped

MOST_A_TICK_S = 1.0
_LOOKS_IF_IDLE = 4
_LOOKS_IF_BUSY = 60
_IDLE_SHARE = 0.02
"""A main thread that uses less of a processor than this waits."""
_REMEMBERED = 64
"""Messages about steps, of which the median is taken. One speaks of half a second of steps, or of one longer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Ranks hang that took no step for `after_s`, or for `factor` times the usual step if that is longer.

    `when_still`: and whose main threads stay where they are meanwhile.
    """

    after_s: float
    factor: float
    when_still: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank's main thread is, and for how long it has used a processor since its start."""

    stack: str
    cpu_s: float


class Finding(Enum):
    """What looks at ranks show. UNCLEAR: look again."""

    WORKS = auto()
    HANGS = auto()
    UNCLEAR = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is known of the steps of one run."""

    generation: int = 0
    """The newest of which a step was seen; 0: none."""
    ordered: int = 0
    """The newest whose members were ordered."""
    alive_s: float = 0.0
    """The last sign of life."""
    over: bool = False
    steps_s: tuple[float, ...] = ()
    """Mean times of the steps that the latest messages speak of."""
    printed_bytes: int = 0

    @property
    def usual_s(self) -> float:
        """The median step; 0 while none was measured."""
        return statistics.median(self.steps_s) if self.steps_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The ranks took no step for longer than they may."""

    silent_s: float
    usual_s: float


class AwakeClock:
    """Adds up the time in which somebody asked for it again and again, every `MOST_A_TICK_S` at least.

    While the host sleeps, or the agent itself is stopped, nobody asks: of such a pause no more than that counts.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._asked_s: float | None = None

    def tick(self, monotonic_s: float) -> float:
        """The time now, when a monotonic clock says `monotonic_s`."""
        if self._asked_s is not None:
            self.now_s += min(max(monotonic_s - self._asked_s, 0.0), MOST_A_TICK_S)
        self._asked_s = monotonic_s
        return self.now_s


def heard(watch: Watch, message: Message, now_s: float) -> Watch:
    """The watch after a rank of the run said something. Steps are what rank 0 tells of; anything else that a rank says is
    a sign of life, too: it reports values of an evaluation, say.
    """
    match message:
        case FirstStep(rank=0) | Progress(rank=0) if message.generation >= watch.generation:
            watch = replace(watch, generation=message.generation)
            if isinstance(message, Progress) and message.steps:
                mean_s = message.step_s_sum / message.steps
                watch = replace(watch, steps_s=(*watch.steps_s, mean_s)[-_REMEMBERED:])
        case Completed() | Stopped():
            watch = replace(watch, over=True)
    return replace(watch, alive_s=now_s)


def printed(watch: Watch, size_bytes: int, generation: int, now_s: float) -> Watch:
    """The watch of a script without the library when its output is so long: more output counts as a step."""
    if size_bytes == watch.printed_bytes:
        return watch
    return replace(watch, generation=generation, printed_bytes=size_bytes, alive_s=now_s)


def written(watch: Watch, size_bytes: int) -> Watch:
    """The watch after the agent itself added so much to the output."""
    return replace(watch, printed_bytes=watch.printed_bytes + size_bytes)


def ordered(watch: Watch, generation: int) -> Watch:
    """The watch after new members were ordered: they stop to train, and begin again together."""
    return replace(watch, ordered=max(watch.ordered, generation))


def rested(watch: Watch, now_s: float) -> Watch:
    """The watch after the ranks were found to be at work, or their silence was reported: it counts from now on."""
    return replace(watch, alive_s=now_s)


def silence(watch: Watch, limits: Limits, now_s: float) -> Silence | None:
    """The silence of ranks that should train, if it is longer than they may be silent."""
    if watch.over or not watch.generation or watch.generation < watch.ordered:
        return None
    silent_s = now_s - watch.alive_s
    if silent_s < max(limits.after_s, limits.factor * watch.usual_s):
        return None
    return Silence(silent_s=silent_s, usual_s=watch.usual_s)


def judged(looks: Sequence[Mapping[int, Place]], every_s: float) -> Finding:
    """What looks at all ranks, taken `every_s`, oldest first, say of ranks that took no step for long.

    A main thread that moves is at work, on an evaluation or a compilation. One that uses no processor at all, and stays where it
    is, waits for something that does not come. One that is busy at the same place may wait for a GPU again and again in a
    loop, and is only taken to hang after many looks.
    """
    moved = any(_stacks(look) != _stacks(looks[0]) for look in looks[1:])
    if moved:
        return Finding.WORKS
    busy = any(
        after[rank].cpu_s - before[rank].cpu_s > _IDLE_SHARE * every_s
        for before, after in pairwise(looks)
        for rank in after
    )
    return Finding.HANGS if len(looks) >= (_LOOKS_IF_BUSY if busy else _LOOKS_IF_IDLE) else Finding.UNCLEAR


def _stacks(look: Mapping[int, Place]) -> dict[int, str]:
    return {rank: place.stack for rank, place in look.items()}
