"""Periods of slots: grants, split where training starts, its members change or it is told to stop."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from service.usecases.ports.jobs import SizeChange
from service.usecases.ports.nodes import HeldSlot, JobTurn

_STOPS = frozenset({"cancel", "fail_rank", "vacate"})
_ENDS = _STOPS | {"give_up", "prepare", "succeed"}
"""Events whose message says why a job leaves slots."""
_SLACK = timedelta(seconds=1)
"""Tolerance between a release and the event that explains it. Agents report each slot separately."""


class SlotPhase(StrEnum):
    """The activity of a job on a slot."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class SlotPeriod:
    """A job on a slot, in one phase and one generation. `to_at` is None while it lasts, and an unknown `size`
    is 0.

    `why` is the reason for the end of the period. It is empty if the next phase of the same start follows, or
    if no reason is known.
    """

    job_id: str
    job_name: str
    generation: int
    size: int
    phase: SlotPhase
    from_at: datetime
    to_at: datetime | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class TrainingHistory:
    """The events and allocations of one job, oldest first."""

    turns: Sequence[JobTurn] = ()
    sizes: Sequence[SizeChange] = ()


_UNKNOWN = TrainingHistory()


def slot_periods(held: HeldSlot, since: datetime, history: TrainingHistory = _UNKNOWN) -> list[SlotPeriod]:
    """Return the periods of one grant, oldest first, without gaps.

    Args:
        held: the grant.
        since: time from which on `history` has every event, and before which it has none.
        history: events and allocations of the job that holds the slot.
    """
    begun = _began(held, since, history)
    if begun is None:
        return [_period(held, history, SlotPhase.STARTING, held.granted_at, held.released_at)]
    periods = []
    if begun > held.granted_at:
        periods.append(_period(held, history, SlotPhase.STARTING, held.granted_at, begun))
    stop = _told_to_stop(held, history, begun)
    running_to = held.released_at if stop is None else stop
    periods += _by_generation(held, history, begun, running_to)
    if stop is not None and (held.released_at is None or held.released_at > stop):
        periods.append(_period(held, history, SlotPhase.STOPPING, stop, held.released_at))
    return periods


def _began(held: HeldSlot, since: datetime, history: TrainingHistory) -> datetime | None:
    """Return the start of training on the slot, or None before it.

    A grant whose start is older than the known events counts as training since its grant.
    """
    if not held.job_id:
        return held.granted_at
    own = [
        one
        for one in history.turns
        if one.generation == held.generation and one.at >= held.granted_at and _until(one.at, held)
    ]
    for kind in ("switch", "first_step", "start"):
        for one in own:
            if one.kind == kind:
                return one.at if held.released_at is None else min(one.at, held.released_at)
    return held.granted_at if held.granted_at < since else None


def _until(at: datetime, held: HeldSlot) -> bool:
    return held.released_at is None or at <= held.released_at + _SLACK


def _told_to_stop(held: HeldSlot, history: TrainingHistory, begun: datetime) -> datetime | None:
    """Return the time at which the ranks on the slot were told to stop, if nothing started after it."""
    stop = None
    for one in history.turns:
        if one.at < begun or not _until(one.at, held):
            continue
        if one.kind in _STOPS:
            stop = one.at if stop is None else stop
        elif one.kind in {"start", "first_step", "switch"}:
            stop = None
    return stop if stop is None or held.released_at is None else min(stop, held.released_at)


def _by_generation(
    held: HeldSlot, history: TrainingHistory, begun: datetime, to_at: datetime | None
) -> list[SlotPeriod]:
    """Split the training time of the slot at every membership change of its job."""
    switches = [
        one
        for one in history.turns
        if one.kind == "switch" and one.at > begun and (to_at is None or one.at < to_at)
    ]
    edges = [begun, *(one.at for one in switches), to_at]
    periods = []
    for number, (start, end) in enumerate(pairwise(edges)):
        assert start is not None, "only the last edge may be open"
        period = _period(held, history, SlotPhase.RUNNING, start, end)
        why = _why_changed(history, switches[number]) if number < len(switches) else period.why
        generation = switches[number - 1].generation if number else period.generation
        size = _size_of(history, generation) or period.size
        periods.append(replace(period, why=why, generation=generation, size=size))
    return periods


def _why_changed(history: TrainingHistory, switch: JobTurn) -> str:
    """Return the message of the decision that led to a switch, or else that of the switch."""
    asked = [one for one in history.turns if one.kind == "prepare" and one.at <= switch.at]
    return asked[-1].message if asked else switch.message


def _period(
    held: HeldSlot, history: TrainingHistory, phase: SlotPhase, from_at: datetime, to_at: datetime | None
) -> SlotPeriod:
    generation = _generation_at(held, history, from_at)
    ends = to_at is not None and to_at == held.released_at
    return SlotPeriod(
        job_id=held.job_id,
        job_name=held.job_name,
        generation=generation,
        size=_size_of(history, generation),
        phase=phase,
        from_at=from_at,
        to_at=to_at,
        why=_why_left(held, history) if ends else "",
    )


def _why_left(held: HeldSlot, history: TrainingHistory) -> str:
    """Return the message of the latest event that explains why the job left the slot."""
    found = [
        one
        for one in history.turns
        if one.kind in _ENDS and one.at >= held.granted_at - _SLACK and _until(one.at, held)
    ]
    return found[-1].message if found else ""


def _generation_at(held: HeldSlot, history: TrainingHistory, at: datetime) -> int:
    """Return the generation that trains at a time: the grant's, or a later one to which the job has switched."""
    switches = [one for one in history.turns if one.kind == "switch" and one.generation > held.generation]
    passed = bisect_right([one.at for one in switches], at)
    if passed:
        return switches[passed - 1].generation
    older = [
        one.generation
        for one in history.sizes
        if one.generation >= held.generation
        and one.granted_at <= at
        and (one.ended_at is None or one.ended_at > at)
    ]
    return min(older, default=held.generation)


def _size_of(history: TrainingHistory, generation: int) -> int:
    return next((one.size for one in history.sizes if one.generation == generation), 0)


def histories(
    turns: Sequence[JobTurn], sizes: Mapping[str, Sequence[SizeChange]]
) -> dict[str, TrainingHistory]:
    """Group events and allocations by job."""
    by_job: dict[str, list[JobTurn]] = {}
    for one in turns:
        by_job.setdefault(one.job_id, []).append(one)
    return {
        job_id: TrainingHistory(by_job.get(job_id, ()), sizes.get(job_id, ())) for job_id in {*by_job, *sizes}
    }
