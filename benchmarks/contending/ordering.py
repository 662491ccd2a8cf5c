"""Measures of priorities: turns that were cut short, slots that went back to their job, and jobs that ran in the place of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.contending.history import Change, Held, Past, Span, at_time, spans_of

RETURN_S = 60.0
"""Seconds within which a stopped job may not have its own slots again, unless another job had them."""
CHANGES_S = 2.0
"""Duration of a change beyond its stop and start: a round and its reports."""


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
    """Period between two events of the stream, with the spans of all jobs."""

    from_s: float
    to_s: float
    spans: Mapping[str, Span]


def is_for_later_priority(change: Change, pasts: Sequence[Past], held: Sequence[Held]) -> bool:
    """Return True if slots of a stopped job go to a job of a higher priority that was submitted after the run began."""
    by_name = {past.name: past for past in pasts}
    own, began_s = by_name[change.name], change.at_s - change.ran_s
    heirs = [by_name[one.name] for one in _heirs(change, held)]
    return any(heir.priority > own.priority and heir.submitted_s > began_s for heir in heirs)


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


def order_violations(
    pasts: Sequence[Past], slots: int, min_run_s: float, change_s: float
) -> list[Precedence]:
    """Return the pairs in which the lower priority ran longer in the place of the higher one than that one ran.

    Twice the duration of a change, `change_s` and a round, is allowed: to come, and to stop.
    """
    moments = list(_moments(pasts))
    found = []
    for high in pasts:
        for low in pasts:
            if low.priority >= high.priority:
                continue
            both = [one for one in moments if one.spans[high.name].admitted and one.spans[low.name].admitted]
            high_s = sum(one.to_s - one.from_s for one in both if one.spans[high.name].holds)
            low_s = sum(
                one.to_s - one.from_s for one in both if _in_place(one, high, low, pasts, slots, min_run_s)
            )
            if low_s > high_s + 2.0 * (change_s + CHANGES_S):
                found.append(
                    Precedence(high=high.name, low=low.name, high_s=high_s, low_s=low_s, to_s=both[-1].to_s)
                )
    return found


def _moments(pasts: Sequence[Past]) -> Iterator[_Moment]:
    spans = {past.name: spans_of(past) for past in pasts}
    times = sorted({event.at_s for past in pasts for event in past.events})
    for from_s, to_s in pairwise(times):
        yield _Moment(from_s, to_s, {name: at_time(found, from_s) for name, found in spans.items()})


def _in_place(
    moment: _Moment, high: Past, low: Past, pasts: Sequence[Past], slots: int, min_run_s: float
) -> bool:
    """Return True if `low` runs while `high` waits and could run on slots of lower priorities and free ones."""
    if not moment.spans[high.name].waits or not _yields(moment, high, low, min_run_s):
        return False
    taken = sum(
        moment.spans[past.name].minimum
        for past in pasts
        if moment.spans[past.name].holds and not _yields(moment, high, past, min_run_s)
    )
    return slots - taken >= moment.spans[high.name].minimum


def _yields(moment: _Moment, high: Past, other: Past, min_run_s: float) -> bool:
    """Return True if a job holds slots that it owes to `high`: of a lower priority, and not within a turn of its own."""
    span = moment.spans[other.name]
    if not span.holds or other.priority >= high.priority:
        return False
    began_s = max(
        (one.at_s for one in other.events if one.kind == "allocate" and one.at_s <= moment.from_s),
        default=moment.from_s,
    )
    return began_s < high.submitted_s or moment.from_s - began_s >= min_run_s
