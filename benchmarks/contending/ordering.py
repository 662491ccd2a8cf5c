"""Measures of priorities: turns that were cut short, slots that went back to their job, and jobs that ran in the place of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from benchmarks.contending.history import (
    Change,
    Happened,
    Held,
    Past,
    Span,
    at_time,
    spans_of,
    starts_s,
    stops_s,
    turn_began_s,
)

RETURN_S = 60.0
"""Seconds within which a stopped job may not have its own slots again, unless another job had them."""
CHANGES_S = 2.0
"""Duration of a change beyond its stop and start: a round and its reports."""
LEAST_RUN_S = 60.0
LEAST_RUN_TIMES = 20.0
"""Minimum run time before others may take a job's slots, in multiples of the cost of its stop and start."""
STOP_S, START_S = 1.0, 2.0
"""Durations of a stop and a start that count before any was measured; the service counts them so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precedence:
    """Pair of jobs: seconds that the higher priority ran, and seconds that the lower one ran in its place."""

    high: str
    low: str
    high_s: float
    low_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class _Moment:
    """Period between two events of the stream, with the spans and the minimum run times of all jobs."""

    from_s: float
    to_s: float
    spans: Mapping[str, Span]
    turns_s: Mapping[str, float]


def is_for_later_priority(change: Change, pasts: Sequence[Past], held: Sequence[Held]) -> bool:
    """Return True if slots of a stopped job go to a job of a higher priority that was submitted after the turn began.

    A job of a still higher priority that came before the slots were free may have taken its place.
    """
    by_name = {past.name: past for past in pasts}
    own = by_name[change.name]
    began_s = turn_began_s(own, change.at_s)
    next_held = list(_heirs(change, held))
    heirs = [by_name[one.name] for one in next_held]
    if any(heir.priority > own.priority and heir.submitted_s > began_s for heir in heirs):
        return True
    free_s = min((one.from_s for one in next_held), default=change.at_s)
    came = [past for past in pasts if began_s < past.submitted_s <= change.at_s < past.finished_s]
    later = [past.priority for past in pasts if change.at_s < past.submitted_s <= free_s]
    return any(own.priority < past.priority < max(later, default=0) for past in came)


def forced_stops(changes: Sequence[Change], pasts: Sequence[Past], held: Sequence[Held]) -> list[Change]:
    """Return the stops that a higher priority demands which came after the turn of the stopped job had begun."""
    return [change for change in changes if change.stops and is_for_later_priority(change, pasts, held)]


def turn_s(past: Past, pasts: Sequence[Past], at_s: float) -> float:
    """Return the minimum run time in seconds that the service gives a job at a time.

    It is `LEAST_RUN_TIMES` times the latest start and stop of this job, at least `LEAST_RUN_S`. Before its first stop, the
    median of the present jobs' stops counts.
    """
    start_s = starts_s(_until(past, at_s))[-1:] or [START_S]
    stop_s = stops_s(_until(past, at_s))[-1:]
    if not stop_s:
        present = (one for one in pasts if one.submitted_s <= at_s < one.finished_s)
        stops = [one for other in present for one in stops_s(_until(other, at_s))[-1:]]
        stop_s = [max(STOP_S, median(stops)) if stops else STOP_S]
    return max(LEAST_RUN_S, LEAST_RUN_TIMES * (start_s[0] + stop_s[0]))


def _until(past: Past, at_s: float) -> Sequence[Happened]:
    return [event for event in past.events if event.at_s <= at_s]


def self_evictions(changes: Sequence[Change], held: Sequence[Held]) -> list[Change]:
    """Return the stops for others that served nobody: the job had a slot again within a minute, and no other job had any.

    A job that was stopped for one which has ended since is right to start again: its slots are free, and leaving them idle
    would serve nobody either.
    """
    return [change for change in changes if change.stops and change.to == 0 and _serves_nobody(change, held)]


def _serves_nobody(change: Change, held: Sequence[Held]) -> bool:
    heirs = list(_heirs(change, held))
    own = [heir for heir in heirs if heir.name == change.name and heir.from_s - change.at_s < RETURN_S]
    return bool(own) and all(
        heir.name == change.name or heir.from_s >= min(one.from_s for one in own) for heir in heirs
    )


def _heirs(change: Change, held: Sequence[Held]) -> Iterator[Held]:
    """Yield the next grant of every slot that a job held when it was stopped."""
    for one in held:
        if one.name == change.name and one.from_s <= change.at_s <= one.to_s:
            later = [other for other in held if other.slot == one.slot and other.from_s >= one.to_s]
            yield from sorted(later, key=lambda other: other.from_s)[:1]


def order_violations(pasts: Sequence[Past], slots: int, change_s: float) -> list[Precedence]:
    """Return the pairs in which the lower priority ran longer in the place of the higher one than that one ran.

    A turn that began after the submit of the higher one counts once it has lasted its minimum run time (`turn_s`). Twice
    the duration of a change, `change_s` and a round, is allowed: to come, and to stop.
    """
    moments = list(_moments(pasts))
    found = []
    for high in pasts:
        for low in pasts:
            if low.priority >= high.priority:
                continue
            both = [one for one in moments if one.spans[high.name].admitted and one.spans[low.name].admitted]
            high_s = sum(one.to_s - one.from_s for one in both if one.spans[high.name].holds)
            low_s = sum(one.to_s - one.from_s for one in both if _in_place(one, high, low, pasts, slots))
            if low_s > high_s + 2.0 * (change_s + CHANGES_S):
                found.append(
                    Precedence(high=high.name, low=low.name, high_s=high_s, low_s=low_s, to_s=both[-1].to_s)
                )
    return found


def _moments(pasts: Sequence[Past]) -> Iterator[_Moment]:
    spans = {past.name: spans_of(past) for past in pasts}
    times = sorted({event.at_s for past in pasts for event in past.events})
    for from_s, to_s in pairwise(times):
        now = {name: at_time(found, from_s) for name, found in spans.items()}
        turns_s = {past.name: turn_s(past, pasts, from_s) for past in pasts if now[past.name].holds}
        yield _Moment(from_s, to_s, now, turns_s)


def _in_place(moment: _Moment, high: Past, low: Past, pasts: Sequence[Past], slots: int) -> bool:
    """Return True if `low` runs while `high` waits and could run on slots of lower priorities and free ones."""
    if not moment.spans[high.name].waits or not _yields(moment, high, low):
        return False
    taken = sum(
        moment.spans[past.name].minimum
        for past in pasts
        if moment.spans[past.name].holds and not _yields(moment, high, past)
    )
    return slots - taken >= moment.spans[high.name].minimum


def _yields(moment: _Moment, high: Past, other: Past) -> bool:
    """Return True if a job holds slots that it owes to `high`: of a lower priority, and not within a turn of its own."""
    span = moment.spans[other.name]
    if not span.holds or other.priority >= high.priority:
        return False
    began_s = turn_began_s(other, moment.from_s)
    return began_s < high.submitted_s or moment.from_s - began_s >= moment.turns_s[other.name]
