"""The recorded history of a job, and the job's state at any time of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from headway.contract.views.jobs import Reason

EXEMPT = frozenset(
    {
        Reason.USER_REQUEST,
        Reason.NODE_DRAINED,
        Reason.SPOT_RECLAIMED,
        Reason.NODE_LOST,
        Reason.RANK_LOST,
        Reason.BAD_DEVICE,
        Reason.BUDGET,
        Reason.QUOTA,
        Reason.DEADLINE,
    }
)
"""Reasons of changes that are not made for the gain of a job: commands, drains, failures, money and quotas."""
_ENDS = frozenset({"succeed", "cancel", "vanish", "give_up"})
_NOTHING = {"admitted": False, "waits": False, "holds": False}
_AFTER: Mapping[str, Mapping[str, bool]] = {
    "submit": {"admitted": True, "waits": True},
    "resume": {"admitted": True, "waits": True},
    "allocate": {"waits": False, "holds": True},
    "requeue": {"waits": True, "holds": False},
    "fail_rank": {"waits": False},
    "recover": {"holds": False},
    "pause": _NOTHING,
    **dict.fromkeys(_ENDS, _NOTHING),
}
"""Changes that an event makes to the span of its job."""


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of a job. Times are seconds since the stream's first submit."""

    at_s: float
    kind: str
    reason: Reason | None = None
    message: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Finished job with its events in order.

    Attributes:
        minimum: fewest slots.
        priority: priority in the job file.
        work_s: seconds of work on one slot.
        succeeded: True if it did all of its work; False if it was cancelled because it took too long.
    """

    name: str
    minimum: int
    work_s: float
    submitted_s: float
    finished_s: float
    succeeded: bool
    events: tuple[Happened, ...]
    priority: int = 50

    @property
    def completion_s(self) -> float:
        """Seconds from submit to end."""
        return self.finished_s - self.submitted_s


@dataclass(frozen=True, slots=True)
class Held:
    """Slot that a job held, in seconds since the stream's first submit."""

    slot: int
    name: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Period between two events of a job.

    Attributes:
        admitted: True if the job is neither paused nor ended.
        waits: True if it needs slots from a round, also while its ranks are being stopped so that it waits again.
        holds: True if slots are granted to it.
        minimum: fewest slots, or the pinned size.
        pinned: size that a user has fixed, if any.
    """

    from_s: float
    to_s: float
    admitted: bool
    waits: bool
    holds: bool
    minimum: int
    pinned: int | None = None


def spans_of(past: Past) -> list[Span]:
    """Return the periods between the events of a job, in order. The last one begins with the job's end."""
    now = Span(from_s=-math.inf, to_s=0.0, admitted=False, waits=False, holds=False, minimum=past.minimum)
    found = []
    for event in past.events:
        found.append(replace(now, to_s=event.at_s))
        now = replace(_after(now, event, past.minimum), from_s=event.at_s)
    return [*found, replace(now, to_s=math.inf)]


def _after(now: Span, event: Happened, minimum: int) -> Span:
    if event.kind == "vacate":
        return replace(now, waits=event.data["to"] == 0 and event.reason is not Reason.USER_REQUEST)
    if event.kind == "resize_requested":
        size = event.data["slots"]
        return replace(now, pinned=size, minimum=minimum if size is None else size)
    return replace(now, **_AFTER.get(event.kind, {}))


def turn_began_s(past: Past, at_s: float) -> float:
    """Return the time at which a job that holds slots at `at_s` got slots after it had none; `at_s` if it never did.

    A restart to another size continues the turn.
    """
    spans = [span for span in spans_of(past) if span.from_s <= at_s]
    starts = (after.from_s for before, after in pairwise(spans) if after.holds and not before.holds)
    return max(starts, default=at_s)


def at_time(spans: Sequence[Span], at_s: float) -> Span:
    """Return the span that contains a time."""
    return next(span for span in reversed(spans) if span.from_s <= at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change of a job's slots that no user requested. `to` is 0 if the job waits afterwards.

    Attributes:
        stops: True if its ranks were stopped; False for a live change.
        ran_s: seconds since slots were granted to its present ranks.
        trained_s: seconds since their first step; None before it.
        pinned: size that its user had fixed, if any.
        cost_s: seconds without training: the pause of a live change, or stop and start.
    """

    name: str
    at_s: float
    before: int
    to: int
    stops: bool
    ran_s: float
    trained_s: float | None
    pinned: int | None
    message: str
    cost_s: float = 0.0

    @property
    def for_others(self) -> bool:
        """True if the change takes the job's ranks or slots for the gain of another job."""
        return self.to < self.before or (self.stops and self.to == self.before)


def changes_of(past: Past) -> Iterator[Change]:
    """Yield the changes of a job that no user requested, except abandoned ones."""
    spans = spans_of(past)
    granted_s, first_s = math.inf, None
    for index, event in enumerate(past.events):
        if event.kind == "allocate":
            granted_s, first_s = event.at_s, None
        elif event.kind == "first_step":
            first_s = event.at_s
        if event.kind not in {"prepare", "vacate"} or event.reason in EXEMPT:
            continue
        later = past.events[index + 1 :]
        done = next((one for one in later if one.kind in {"switch", "abandon", "allocate", *_ENDS}), None)
        stops = event.kind == "vacate"
        if not stops and (done is None or done.kind != "switch"):
            continue
        yield Change(
            name=past.name,
            at_s=event.at_s,
            before=int(event.data["from"]),
            to=int(event.data["to"]),
            stops=stops,
            ran_s=event.at_s - granted_s,
            trained_s=None if first_s is None else event.at_s - first_s,
            pinned=at_time(spans, event.at_s).pinned,
            message=event.message,
            cost_s=_restart_s([event, *later]) if stops else float(done.data["pause_s"]) if done else 0.0,
        )


def _restart_s(events: Sequence[Happened]) -> float:
    """Return the seconds that ranks take to stop and to start again, without the wait in between."""
    return sum(stops_s(events)[:1]) + sum(starts_s(events)[:1])


def starts_s(events: Sequence[Happened]) -> list[float]:
    """Return the seconds from each grant to the first step."""
    return _between(events, "allocate", frozenset({"first_step"}))


def stops_s(events: Sequence[Happened]) -> list[float]:
    """Return the seconds from each order to stop until every rank is gone."""
    return _between(events, "vacate", frozenset({"requeue", "allocate"}))


def _between(events: Sequence[Happened], first: str, then: frozenset[str]) -> list[float]:
    kinds = [event for event in events if event.kind == first or event.kind in then]
    return [
        after.at_s - before.at_s
        for before, after in pairwise(kinds)
        if before.kind == first and after.kind in then
    ]
