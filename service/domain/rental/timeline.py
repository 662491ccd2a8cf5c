"""What a job did when: its phases, from the marks that its history leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headway.contract.jobs import JobState
from headway.contract.money import Category
from service.domain.lifecycle import JobEvent

FIRST_STEP = "first_step"
RESTORE = "restore"
PHASE_MARKS = tuple(sorted(JobEvent))
"""Kinds of events that begin a phase."""
MARKS = (*PHASE_MARKS, FIRST_STEP, RESTORE)
"""Kinds of events that a timeline is made from."""

FOR_EVER = 1 << 62
UNKNOWN_RATE = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An event of a job, as far as it tells what the job's slots did. Times are microseconds since 1970.

    `sequence` orders them. `at_us` of a first step is the node's clock, which may be wrong; of all others it is the
    service's. `pause_s` is how long training stood still before a switch. `lost_s` is how much training has to be done
    again after going back to a checkpoint: samples lost over the speed before, `UNKNOWN_RATE` if that was not known.
    """

    sequence: int
    at_us: int
    kind: str
    state: JobState
    reason: str = ""
    generation: int = 0
    pause_s: float = 0.0
    lost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Phase:
    """From `from_us` until `to_us` the job's slots were of this category. `generation` is the one that trained; slots that are
    not its members were on their way. It is 0 where membership says nothing: of a recovery every slot is a part.
    """

    from_us: int
    to_us: int
    category: Category
    generation: int = 0
    cause: str = ""


def phases_of(marks: Sequence[Mark]) -> tuple[Phase, ...]:
    """The job's phases without a gap from the first mark on, the last one for ever."""
    marks = _in_order(marks)
    phases: list[Phase] = []
    for place, mark in enumerate(marks):
        before = phases[-1] if phases else None
        phase = _after(mark, marks[place + 1 :], before)
        if mark.kind == JobEvent.SWITCH and mark.pause_s > 0:
            was_lost = before is not None and before.category is Category.LOST
            stood = (Category.LOST, before.cause) if was_lost and before else (Category.RESIZE, "")
            _turn_last(phases, mark.at_us, mark.pause_s, *stood)
        if mark.kind in {FIRST_STEP, RESTORE} and mark.lost_s != 0:
            _turn_last(phases, mark.at_us, mark.lost_s, Category.LOST, _cause(phases), again=mark.generation)
        if phase is None:
            continue
        if before is not None:
            phases[-1] = replace(phases[-1], to_us=mark.at_us)
        phases.append(replace(phase, from_us=mark.at_us))
    return tuple(_joined([one for one in phases if one.from_us < one.to_us]))


def first_difference_us(before: Sequence[Phase], after: Sequence[Phase]) -> int | None:
    """The first moment at which two histories of one job differ; None if they are the same."""
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


def _in_order(marks: Sequence[Mark]) -> list[Mark]:
    """By sequence, with times that never go back. What a node's clock says lies between the service's marks around it."""
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


def _after(mark: Mark, later: Sequence[Mark], before: Phase | None) -> Phase | None:
    """The phase that a mark begins (its times are set by the caller); None where it changes nothing."""
    if mark.kind == RESTORE:
        return None
    if mark.kind == FIRST_STEP:
        trains = mark.state is JobState.RUNNING and before is not None and before.category is Category.RESIZE
        return Phase(0, FOR_EVER, Category.USEFUL, mark.generation) if trains else None
    if mark.kind == JobEvent.START and _starts_later(mark, later):
        return Phase(0, FOR_EVER, Category.RESIZE)
    if mark.state is JobState.RUNNING or mark.kind == JobEvent.PREPARE:
        return Phase(0, FOR_EVER, Category.USEFUL, mark.generation)
    if mark.state is JobState.RECOVERING:
        return Phase(0, FOR_EVER, Category.LOST, 0, mark.reason)
    return Phase(0, FOR_EVER, Category.RESIZE)


def _starts_later(start: Mark, later: Sequence[Mark]) -> bool:
    """Whether the script said after the start of its processes when it took its first step: until then it imports, and
    loads data. A script that does not use the library says nothing.
    """
    for mark in later:
        if mark.kind == FIRST_STEP:
            return mark.generation == start.generation
        if mark.kind != RESTORE:
            return False
    return False


def _turn_last(
    phases: list[Phase],
    at_us: int,
    seconds: float,
    category: Category,
    cause: str,
    *,
    again: int | None = None,
) -> None:
    """Turn what was training of the last `seconds` before `at_us` into another category.

    With `again`, the generation that does it again, only training of those before it counts towards these seconds; where
    it is not known how many they were, its last stretch does.
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
        if phase.category is not Category.USEFUL or (again is not None and phase.generation >= again):
            behind.append(phase)
            left_us -= length if again is None else 0
            continue
        middle = phase.to_us - min(length, left_us)
        behind.append(replace(phase, from_us=middle, category=category, cause=cause))
        if middle > phase.from_us:
            phases.append(replace(phase, to_us=middle))
        left_us = 0 if seconds < 0 else left_us - length
    phases += reversed(behind)


def _cause(phases: Sequence[Phase]) -> str:
    """Of the last failure; a checkpoint that was older than a stop has none."""
    return next((one.cause for one in reversed(phases) if one.category is Category.LOST), "RESTART")


def _joined(phases: Sequence[Phase]) -> list[Phase]:
    """Without breaks where nothing changes."""
    joined: list[Phase] = []
    for phase in phases:
        last = joined[-1] if joined else None
        if last is not None and replace(last, from_us=0, to_us=0) == replace(phase, from_us=0, to_us=0):
            joined[-1] = replace(last, to_us=phase.to_us)
        else:
            joined.append(phase)
    assert all(one.to_us == other.from_us for one, other in pairwise(joined)), "phases leave no gap"
    return joined
