"""Histories of clients, and the check of them against a model of the API: each job must be linearisable.

A history is linearisable if each operation can be thought of as happening at one moment between its start and its end, so that
all answers fit one sequence (Herlihy and Wing, "Linearizability", 1990). Then no acknowledged write is lost, and no read is
older than a write that was acknowledged before it began. The search follows Wing and Gong (1993), with a memory of dead ends
(Lowe, 2017). Jobs are independent objects, so each has a search of its own.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from benchmarks.faulting.evidence import Finding
from headway.client.client import ApiError
from headway.contract.views.jobs import JobView
from headway.errors import HeadwayError

ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})
MOST_STATES = 200_000
"""Limit of visited states of one search. Beyond it the history counts as not judged."""


class Call(StrEnum):
    """Kind of operation on one job."""

    SUBMIT = "submit"
    RESIZE = "resize"
    CANCEL = "cancel"
    READ = "read"


@dataclass(frozen=True, slots=True)
class Seen:
    """The parts of an answer that the model explains."""

    job_id: str
    state: str
    generation: int
    pinned_size: int | None


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client. `end_s` is infinite, and `seen` None, if it got no answer: it may have happened, or may yet.

    Times are seconds of one clock. `size` is the size that a resize wanted; None lets the service choose.
    """

    job: str
    call: Call
    begin_s: float
    end_s: float = math.inf
    seen: Seen | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class _Model:
    """State of a job by the model. `job_id` is empty before its submit."""

    job_id: str = ""
    pinned_size: int | None = None
    cancelled: bool = False
    ended: str = ""
    generation: int = 0


def _after(model: _Model, operation: Operation) -> _Model | None:
    """Return the model after an operation, or None if its answer does not fit.

    A job may end by itself at any time, and its generation may grow; nothing else changes without a client.
    """
    seen = operation.seen
    match operation.call:
        case Call.SUBMIT if not model.job_id:
            model = replace(model, job_id=seen.job_id if seen else "unknown")
        case Call.RESIZE if model.job_id and not model.ended:
            model = replace(model, pinned_size=operation.size)
        case Call.CANCEL if model.job_id and not model.ended:
            model = replace(model, cancelled=True)
    return model if seen is None else _explained(model, seen)


def _explained(model: _Model, seen: Seen) -> _Model | None:
    """Return the model after an answer that shows these values, or None if it cannot show them."""
    if model.job_id == "unknown":  # an unanswered submit had happened, and its id is learnt now
        model = replace(model, job_id=seen.job_id)
    wrong = (
        model.job_id != seen.job_id
        or model.pinned_size != seen.pinned_size
        or seen.generation < model.generation
        or (model.ended not in {"", seen.state})
        or (seen.state == "CANCELLED" and not model.cancelled)
        or (model.cancelled and seen.state not in {*ENDED, "CANCELLING"})
    )
    if wrong:
        return None
    ended = seen.state if seen.state in ENDED else ""
    return replace(model, generation=seen.generation, ended=ended)


def anomalies(history: Iterable[Operation]) -> list[Finding]:
    """Return a finding for each job whose history is not linearisable, with the first operation that fits no sequence."""
    by_job: dict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        by_job[operation.job].append(operation)
    return [
        Finding("anomalies", job, found)
        for job, operations in sorted(by_job.items())
        if (found := _misfit(operations)) is not None
    ]


def _misfit(operations: Sequence[Operation]) -> str | None:
    """Return a sentence about the first operation that no sequence explains, or None if one explains all."""
    ordered = sorted(operations, key=lambda one: (one.begin_s, one.end_s))
    seen: set[tuple[frozenset[int], int, _Model]] = set()
    stack: list[tuple[int, frozenset[int], _Model]] = [(0, frozenset(), _Model())]
    furthest = -1
    while stack:
        first, done, model = stack.pop()
        while first in done:
            done -= {first}
            first += 1
        rest_s = min(
            (one.end_s for at, one in enumerate(ordered[first:], first) if at not in done), default=math.inf
        )
        if math.isinf(rest_s):
            return None  # only unanswered operations are left, which need not have happened
        furthest = max(furthest, first)
        if (done, first, model) in seen:
            continue
        if len(seen) >= MOST_STATES:
            return f"not judged within {MOST_STATES} states of the search"
        seen.add((done, first, model))
        for at in range(first, len(ordered)):
            if ordered[at].begin_s > rest_s:
                break
            if at not in done and (then := _after(model, ordered[at])) is not None:
                stack.append((first, done | {at}, then))
    return f"no order of its operations explains {ordered[furthest]}"


Answer = TypeVar("Answer")


@dataclass
class History:
    """Record of operations that several threads append to.

    Args:
        clock_s: a clock that all threads share, in seconds.
    """

    clock_s: Callable[[], float]
    operations: list[Operation] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *operations: Operation) -> None:
        """Append operations."""
        with self._lock:
            self.operations.extend(operations)

    def asked(self, job: str, call: Call, ask: Callable[[], Answer], size: int | None = None) -> Answer:
        """Send a request, record it with its answer, and return the answer.

        A refusal is not recorded, since it changes nothing. After any other error the operation is one without an answer.

        Raises:
            HeadwayError: as `ask` does.
        """
        begun = Operation(job, call, self.clock_s(), size=size)
        try:
            answer = ask()
        except HeadwayError as error:
            if not is_refusal(error):
                self.add(begun)
            raise
        end_s = self.clock_s()
        seen = seen_of(answer) if isinstance(answer, JobView) else None
        self.add(replace(begun, end_s=end_s, seen=seen))
        return answer


def seen_of(view: JobView) -> Seen:
    """Return the parts of a job's view that the model explains."""
    return Seen(view.id, str(view.state), view.generation, view.pinned_size)


def is_refusal(error: HeadwayError) -> bool:
    """Return True if the service refused the request. After any other error it may have been executed, and a retry may succeed."""
    return isinstance(error, ApiError) and error.problem.status not in _TRY_AGAIN
