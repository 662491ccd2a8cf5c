"""Timeline of a job: its phases, derived from the events of its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headway.contract.views.jobs import JobState
from headway.contract.views.money import Category
from service.domain.jobs.lifecycle import JobEvent

FIRST_STEP = "first_step"
RESTORE = "restore"
PHASE_MARKS = tuple(sorted(JobEvent))
"""Kinds of events that begin a phase."""
MARKS = (*PHASE_MARKS, FIRST_STEP, RESTORE)
"""Kinds of events that a timeline is built from."""

FOR_EVER = 1 << 62
UNKNOWN_RATE = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """Event of a job that affects the use of its slots. Times are microseconds since 1970.

    `sequence` orders the events. `at_us` of a first step is the node's clock, which may be wrong; all other
    times are the service's clock. `pause_s` is the pause of training before a switch. `lost_s` is the
    training to repeat after a return to a checkpoint: lost samples over the previous speed, or `UNKNOWN_RATE`
    if that speed is unknown. `plain` marks the first step of a script without the library, which may have
    trained for long before it reported a step.
    """

    sequence: int
    at_us: int
    kind: str
    state: JobState
    reason: str = ""
    generation: int = 0
    pause_s: float = 0.0
    lost_s: float = 0.0
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """Period from `from_us` to `to_us` in which the job's slots had one category.

    `generation` is the generation that trained. Slots outside its members were being started or released. It
    is 0 where membership does not matter: every slot is part of a recovery.
    """

    from_us: int
    to_us: int
    category: Category
    generation: int = 0
    cause: str = ""


def phases_of(marks: Sequence[TimelineEvent]) -> tuple[Phase, ...]:
    """Return the job's phases without a gap from the first mark on. The last phase has no end."""
    marks = _in_order(marks)
    stepped = {mark.generation for mark in marks if mark.kind == FIRST_STEP}
    phases: list[Phase] = []
    for place, mark in enumerate(marks):
        before = phases[-1] if phases else None
        phase = _after(mark, marks[place + 1 :], before, stepped=mark.generation in stepped)
        if mark.kind == JobEvent.SWITCH and mark.pause_s > 0:
            pause = (Category.RESIZE, "")
            if before is not None and before.category is Category.LOST:
                pause = (Category.LOST, before.cause)
            _recategorise(phases, mark.at_us, mark.pause_s, *pause)
        if mark.kind in {FIRST_STEP, RESTORE} and mark.lost_s != 0:
            _recategorise(
                phases, mark.at_us, mark.lost_s, Category.LOST, _cause(phases), repeated_by=mark.generation
            )
        if phase is None:
            continue
        if before is not None:
            phases[-1] = replace(phases[-1], to_us=mark.at_us)
        phases.append(replace(phase, from_us=mark.at_us))
    return tuple(_merged([one for one in phases if one.from_us < one.to_us]))


def first_difference_us(before: Sequence[Phase], after: Sequence[Phase]) -> int | None:
    """Return the first moment at which two histories of one job differ, or None if they are the same."""
    for old, new in zip(before, after, strict=False):
        if old == new:
            continue
        if replace(old, to_us=0) == replace(new, to_us=0):
            return min(old.to_us, new.to_us)
        return min(old.from_us, new.from_us)
    if len(before) == len(after):
        return None
    longer = before if len(before) > len(after) else after
    return longer[min(len(before), len(after))].from_us


def _in_order(marks: Sequence[TimelineEvent]) -> list[TimelineEvent]:
    """Return the marks by sequence, with times that never decrease.

    A time from a node's clock is limited to the service's times around it.
    """
    ordered = sorted(marks, key=lambda mark: mark.sequence)
    latest = [mark.at_us for mark in ordered if mark.kind != FIRST_STEP]
    low, placed, seen = min(latest, default=0), [], 0
    for mark in ordered:
        if mark.kind == FIRST_STEP:
            high = latest[seen] if seen < len(latest) else max(mark.at_us, low)
            at_us = max(low, min(mark.at_us, high))
        else:
            seen += 1
            at_us = max(low, mark.at_us)
        low = at_us
        placed.append(replace(mark, at_us=at_us))
    return placed


def _after(
    mark: TimelineEvent, later: Sequence[TimelineEvent], before: Phase | None, *, stepped: bool
) -> Phase | None:
    """Return the phase that a mark begins, without its times, or None if the mark changes nothing.

    `stepped` is true if a step of the mark's generation is known.
    """
    if mark.kind == RESTORE:
        return None
    if mark.kind == FIRST_STEP:
        waits = before is not None and before.category in {Category.RESIZE, Category.UNKNOWN}
        trains = mark.state is JobState.RUNNING and waits
        return Phase(0, FOR_EVER, Category.USEFUL, mark.generation) if trains else None
    if mark.kind == JobEvent.START:
        return Phase(0, FOR_EVER, *_after_start(mark, later, stepped=stepped))
    if mark.state is JobState.RUNNING or mark.kind == JobEvent.PREPARE:
        return Phase(0, FOR_EVER, Category.USEFUL, mark.generation)
    if mark.state is JobState.RECOVERING:
        return Phase(0, FOR_EVER, Category.LOST, 0, mark.reason)
    return Phase(0, FOR_EVER, Category.RESIZE)


def _after_start(
    start: TimelineEvent, later: Sequence[TimelineEvent], *, stepped: bool
) -> tuple[Category, int]:
    """Return the category of the time after a start, and the generation.

    Until its first step, a script with the library imports and loads data. A script without it may have
    trained, and the activity of a script that reports no step at all is unknown.
    """
    first = _first_step_after(start, later)
    if first is not None and not first.plain:
        return Category.RESIZE, 0
    if first is None and stepped:
        return Category.USEFUL, start.generation
    return Category.UNKNOWN, start.generation


def _first_step_after(start: TimelineEvent, later: Sequence[TimelineEvent]) -> TimelineEvent | None:
    """Return the first step of the started processes, unless another event of the job precedes it."""
    for mark in later:
        if mark.kind == FIRST_STEP:
            return mark if mark.generation == start.generation else None
        if mark.kind != RESTORE:
            return None
    return None


def _recategorise(
    phases: list[Phase],
    at_us: int,
    seconds: float,
    category: Category,
    cause: str,
    *,
    repeated_by: int | None = None,
) -> None:
    """Change the category of the training within the last `seconds` before `at_us`.

    `repeated_by` is the generation that repeats lost work. With it, only training of earlier generations
    counts towards these seconds. If `seconds` is `UNKNOWN_RATE`, the last period of training changes.
    """
    if not phases:
        return
    now = phases.pop()
    left_us = FOR_EVER if seconds < 0 else round(min(seconds, 1e10) * 1e6)
    behind = [replace(now, from_us=max(now.from_us, at_us))]
    phases.append(replace(now, to_us=max(now.from_us, at_us)))
    while phases and left_us > 0:
        phase = phases.pop()
        length = phase.to_us - phase.from_us
        if phase.category is not Category.USEFUL or (
            repeated_by is not None and phase.generation >= repeated_by
        ):
            behind.append(phase)
            left_us -= length if repeated_by is None else 0
            continue
        middle = phase.to_us - min(length, left_us)
        behind.append(replace(phase, from_us=middle, category=category, cause=cause))
        if middle > phase.from_us:
            phases.append(replace(phase, to_us=middle))
        left_us = 0 if seconds < 0 else left_us - length
    phases += reversed(behind)


def _cause(phases: Sequence[Phase]) -> str:
    """Return the cause of the last failure, or RESTART if a checkpoint was older than a stop."""
    return next((one.cause for one in reversed(phases) if one.category is Category.LOST), "RESTART")


def _merged(phases: Sequence[Phase]) -> list[Phase]:
    """Return the phases with equal neighbours merged."""
    merged: list[Phase] = []
    for phase in phases:
        last = merged[-1] if merged else None
        if last is not None and replace(last, from_us=0, to_us=0) == replace(phase, from_us=0, to_us=0):
            merged[-1] = replace(last, to_us=phase.to_us)
        else:
            merged.append(phase)
    assert all(one.to_us == other.from_us for one, other in pairwise(merged)), "phases leave no gap"
    return merged
