"""Detection of hung ranks from their messages and the time, without I/O; the result is a verdict with its reason.

Silence does not count before the first step of a generation unless the user set a time, between an order of new members and their first
step, or after training is over. Times are seconds in which the agent was awake (`AwakeClock`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import pairwise

from headway.contract.runtime import Completed, FirstStep, Message, Progress, StandsStill, Stopped

MAX_TICK_S = 1.0
_SAMPLES_IF_IDLE = 4
_SAMPLES_IF_BUSY = 60
_IDLE_SHARE = 0.02
"""Share of a processor below which a main thread counts as waiting."""
_REMEMBERED = 64
"""Number of step messages for the median. A message covers half a second of steps, or one longer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time without a step after which ranks count as hung.

    It is `after_s`, or `factor` times the usual step if that is longer. With `when_still`, the main threads
    must also stay at the same place meanwhile.
    """

    after_s: float
    factor: float
    when_still: bool
    from_start: bool = False
    """Count from the start of the ranks, and not from their first step or output."""


@dataclass(frozen=True, slots=True)
class ThreadSample:
    """Sample of a rank's main thread: its stack, and its processor time since the start."""

    stack: str
    cpu_s: float


class HangFinding(Enum):
    """Result of the samples of all ranks. UNCLEAR means that another sample is needed."""

    WORKS = auto()
    HANGS = auto()
    UNCLEAR = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWatch:
    """Steps of one run, as its messages report them."""

    generation: int = 0
    """Newest generation that reported a step; 0 if none."""
    ordered: int = 0
    """Newest generation whose members were ordered."""
    alive_s: float = 0.0
    """Time of the last message or output."""
    over: bool = False
    steps_s: tuple[float, ...] = ()
    """Mean step times in the latest messages."""
    printed_bytes: int = 0

    @property
    def usual_s(self) -> float:
        """Median step time; 0 while none was measured."""
        return statistics.median(self.steps_s) if self.steps_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Silence of ranks that took no step for longer than allowed."""

    silent_s: float
    usual_s: float


class AwakeClock:
    """Clock that counts only time in which `tick` is called at least every `MAX_TICK_S`.

    While the host sleeps or the agent is stopped, nothing calls it. Of such a pause, only `MAX_TICK_S`
    counts.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._asked_s: float | None = None

    def tick(self, monotonic_s: float) -> float:
        """Return the time of this clock when a monotonic clock reads `monotonic_s`."""
        if self._asked_s is not None:
            self.now_s += min(max(monotonic_s - self._asked_s, 0.0), MAX_TICK_S)
        self._asked_s = monotonic_s
        return self.now_s


def after_message(watch: StepWatch, message: Message, now_s: float) -> StepWatch:
    """Return the watch after a message of a rank.

    Only rank 0 reports steps. Any other message but that of a standstill also ends the silence, such as the values of an
    evaluation.
    """
    match message:
        case StandsStill():
            return watch
        case FirstStep(rank=0) | Progress(rank=0) if message.generation >= watch.generation:
            watch = replace(watch, generation=message.generation)
            if isinstance(message, Progress) and message.steps:
                mean_s = message.step_s_sum / message.steps
                watch = replace(watch, steps_s=(*watch.steps_s, mean_s)[-_REMEMBERED:])
        case Completed() | Stopped():
            watch = replace(watch, over=True)
    return replace(watch, alive_s=now_s)


def after_output(watch: StepWatch, size_bytes: int, generation: int, now_s: float) -> StepWatch:
    """Return the watch of a script without the library for this output size: more output counts as a step."""
    if size_bytes == watch.printed_bytes:
        return watch
    return replace(watch, generation=generation, printed_bytes=size_bytes, alive_s=now_s)


def after_own_output(watch: StepWatch, size_bytes: int) -> StepWatch:
    """Return the watch after the agent itself added `size_bytes` to the output."""
    return replace(watch, printed_bytes=watch.printed_bytes + size_bytes)


def after_order(watch: StepWatch, generation: int) -> StepWatch:
    """Return the watch after new members were ordered: they pause training, and resume together."""
    return replace(watch, ordered=max(watch.ordered, generation))


def restarted(watch: StepWatch, now_s: float) -> StepWatch:
    """Return the watch with the silence counted from now on: the ranks work, or their silence was reported."""
    return replace(watch, alive_s=now_s)


def silence(watch: StepWatch, limits: Limits, now_s: float) -> Silence | None:
    """Return the silence of ranks that should train, or None if it is within the limits."""
    begun = watch.generation > 0 or limits.from_start
    if watch.over or not begun or watch.generation < watch.ordered:
        return None
    silent_s = now_s - watch.alive_s
    if silent_s < max(limits.after_s, limits.factor * watch.usual_s):
        return None
    return Silence(silent_s=silent_s, usual_s=watch.usual_s)


def judge(samples: Sequence[Mapping[int, ThreadSample]], every_s: float) -> HangFinding:
    """Return the finding from samples of all ranks, taken every `every_s`, oldest first.

    A main thread that moves is at work, for example on an evaluation or a compilation. One that stays at its
    place and uses no processor waits for an event that does not come. One that is busy at the same place may
    poll a GPU in a loop, so it counts as hung only after many samples.
    """
    stacks = [{rank: thread.stack for rank, thread in sample.items()} for sample in samples]
    if any(sample != stacks[0] for sample in stacks):
        return HangFinding.WORKS
    busy = any(
        after[rank].cpu_s - before[rank].cpu_s > _IDLE_SHARE * every_s
        for before, after in pairwise(samples)
        for rank in after
    )
    enough = len(samples) >= (_SAMPLES_IF_BUSY if busy else _SAMPLES_IF_IDLE)
    return HangFinding.HANGS if enough else HangFinding.UNCLEAR
