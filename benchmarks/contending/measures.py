"""The measures of contention, from the recorded histories of a stream's jobs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contending.history import (
    Change,
    Held,
    Past,
    Span,
    at_time,
    changes_of,
    spans_of,
    starts_s,
    stops_s,
)
from benchmarks.contending.ordering import (
    LEAST_RUN_S,
    LEAST_RUN_TIMES,
    Precedence,
    forced_stops,
    is_for_later_priority,
    order_violations,
    self_evictions,
)

SUMMED = frozenset({"early_vacates", "self_evictions", "order_violations", "pinned_vacates", "unfinished"})
GOALS: Mapping[str, float] = {
    "starved_s": 2.0,
    "early_vacates": 0,
    "self_evictions": 0,
    "order_violations": 0,
    "pinned_vacates": 0,
    "changes_per_job_hour": 12.0,
    "time_ratio": 1.05,
    "unfinished": 0,
}
"""Maximum of each measure."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Continuous period for which a job waited under some condition."""

    name: str
    from_s: float
    to_s: float

    @property
    def wait_s(self) -> float:
        """Length of the period in seconds."""
        return self.to_s - self.from_s


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of all jobs between two events of the stream."""

    spans: Mapping[str, Span]
    slots: int

    def waits(self, name: str) -> bool:
        """Return True if a job waits for slots."""
        return self.spans[name].waits

    def all_fit(self, name: str) -> bool:
        """Return True if a job waits although the minimums of all admitted jobs fit into the slots."""
        admitted = sum(span.minimum for span in self.spans.values() if span.admitted)
        return self.waits(name) and admitted <= self.slots

    def surplus_fits(self, name: str) -> bool:
        """Return True if a job waits although its minimum would fit beside the minimums of the jobs that hold slots."""
        held = sum(span.minimum for one, span in self.spans.items() if span.holds and one != name)
        return self.waits(name) and held + self.spans[name].minimum <= self.slots


def waits_of(pasts: Sequence[Past], slots: int, condition: Callable[[Moment, str], bool]) -> Iterator[Wait]:
    """Yield the continuous periods in which `condition` held for a job."""
    spans = {past.name: spans_of(past) for past in pasts}
    times = sorted({event.at_s for past in pasts for event in past.events})
    since: dict[str, float] = {}
    for at_s in times:
        moment = Moment({name: at_time(found, at_s) for name, found in spans.items()}, slots)
        for name in spans:
            if condition(moment, name):
                since.setdefault(name, at_s)
            elif name in since:
                yield Wait(name, since.pop(name), at_s)


def measures(
    pasts: Sequence[Past], slots: int, ideal_s: Sequence[float], held: Sequence[Held] = ()
) -> dict[str, float]:
    """Return all measures of a stream.

    `ideal_s` are the completion times of the jobs in the ideal, which knows no priorities: a stream of several priorities
    has no `time_ratio`. `held` are the slots that the jobs held.
    """
    changes = [change for past in pasts for change in changes_of(past)]
    least_s = min_run_s(pasts)
    held_s = [_held_s(past) for past in pasts]
    starved, surplus, any_wait = (
        max((wait.wait_s for wait in waits_of(pasts, slots, condition)), default=0.0)
        for condition in (Moment.all_fit, Moment.surplus_fits, Moment.waits)
    )
    vacates = [change for change in changes if change.stops and change.for_others]
    mean_s, mean_ideal_s = statistics.mean(past.completion_s for past in pasts), statistics.mean(ideal_s)
    found = {
        "starved_s": starved,
        "early_vacates": len(early_of(changes, least_s, pasts, held)),
        "self_evictions": len(self_evictions(changes, held)),
        "order_violations": len(violations_of(pasts, slots)),
        "pinned_vacates": len(pinned_of(changes)),
        "changes_per_job_hour": len(changes) / (sum(held_s) / 3600.0),
        "forced_per_job_hour": len(forced_stops(changes, pasts, held)) / (sum(held_s) / 3600.0),
        "time_ratio": mean_s / mean_ideal_s,
        "unfinished": sum(not past.succeeded for past in pasts),
        "completion_s": mean_s,
        "ideal_completion_s": mean_ideal_s,
        "surplus_wait_s": surplus,
        "longest_wait_s": any_wait,
        "start_s": _median([one for past in pasts for one in starts_s(past.events)]),
        "stop_s": _median([one for past in pasts for one in stops_s(past.events)]),
        "min_run_s": least_s,
        "shortest_run_s": min((change.ran_s for change in vacates), default=0.0),
        "vacates": len(vacates),
        "changes": len(changes),
        "changes_cost": max(
            sum(change.cost_s for change in changes if change.name == past.name) / seconds
            for past, seconds in zip(pasts, held_s, strict=True)
        ),
        "job_hours": sum(held_s) / 3600.0,
        "jobs": len(pasts),
    }
    if len({past.priority for past in pasts}) > 1:
        del found["time_ratio"]
    return found


def min_run_s(pasts: Sequence[Past]) -> float:
    """Return the minimum run time before others may take slots, from the stops and starts of this stream."""
    start_s = _median([one for past in pasts for one in starts_s(past.events)])
    stop_s = _median([one for past in pasts for one in stops_s(past.events)])
    return max(LEAST_RUN_S, LEAST_RUN_TIMES * (start_s + stop_s))


def early_of(
    changes: Sequence[Change], least_s: float, pasts: Sequence[Past], held: Sequence[Held]
) -> list[Change]:
    """Return the stops for the gain of others of ranks that had slots for less than `least_s` seconds.

    A higher priority that was submitted after the run began may take its slots at any time.
    """
    return [
        change
        for change in changes
        if change.stops
        and change.for_others
        and change.ran_s < least_s
        and not is_for_later_priority(change, pasts, held)
    ]


def violations_of(pasts: Sequence[Past], slots: int) -> list[Precedence]:
    """Return the jobs that ran less than one of a lower priority with which they could trade places."""
    start_s = _median([one for past in pasts for one in starts_s(past.events)])
    stop_s = _median([one for past in pasts for one in stops_s(past.events)])
    return order_violations(pasts, slots, start_s + stop_s)


def pinned_of(changes: Sequence[Change]) -> list[Change]:
    """Return the changes that take slots or ranks of a job with a pinned size, for the gain of others."""
    return [
        change
        for change in changes
        if change.pinned is not None and change.for_others and (change.stops or change.to < change.pinned)
    ]


def worst_of(streams: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the measures that have goals: the worst value of all streams, or the sum for counts."""
    return {
        key: sum(one[key] for one in streams.values())
        if key in SUMMED
        else max((one[key] for one in streams.values() if _is_judged(one, key)), default=0.0)
        for key in GOALS
    }


def _is_judged(stream: Mapping[str, float], key: str) -> bool:
    """Return True if a measure of a stream has to reach its goal.

    Changes do not where higher priorities that come later already demand more of them than the goal allows.
    """
    forced = stream.get("forced_per_job_hour", 0.0) > GOALS["changes_per_job_hour"]
    return key in stream and not (forced and key == "changes_per_job_hour")


def _held_s(past: Past) -> float:
    return sum(
        min(span.to_s, past.finished_s) - span.from_s
        for span in spans_of(past)
        if span.holds and span.from_s < past.finished_s
    )


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0
