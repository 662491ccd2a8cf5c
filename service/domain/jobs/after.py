"""Rules of chains: whether a job that waits for others may start, goes on waiting, or can never start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from headway.contract.spec_after import AfterEnd
from headway.contract.views.jobs import JobState, Reason

_WANTED = {
    AfterEnd.SUCCEEDED: frozenset({JobState.SUCCEEDED}),
    AfterEnd.FAILED: frozenset({JobState.FAILED}),
    AfterEnd.ENDED: frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}),
}
_WORDS = {
    AfterEnd.SUCCEEDED: "the success",
    AfterEnd.FAILED: "the failure",
    AfterEnd.ENDED: "the end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """A job that another one waits for. `ended` is its terminal state with the reason; None while it has not ended.

    `key` is the name or id by which the job file names it.
    """

    id: str
    key: str
    name: str
    on: AfterEnd = AfterEnd.SUCCEEDED
    files: bool = True
    ended: JobState | None = None
    reason: Reason | None = None

    @property
    def meets(self) -> bool | None:
        """True if it ended as wanted, False if it ended in another way, None while it has not ended."""
        return None if self.ended is None else self.ended in _WANTED[self.on]

    @property
    def text(self) -> str:
        """The end that is waited for, such as `the success of prep`."""
        return f"{_WORDS[self.on]} of {self.name}"


class Chance(Enum):
    """Chance of a job that waits for others."""

    WAITS = auto()
    STARTS = auto()
    NEVER = auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The chance of a job that waits for others, with the reason as a message for users."""

    chance: Chance
    message: str


def judge(predecessors: Sequence[Predecessor]) -> Verdict:
    """Return the verdict on a job that waits for all of these jobs.

    One that ended in another way than wanted decides at once, whatever the others do.
    """
    for one in predecessors:
        if one.meets is False:
            return Verdict(Chance.NEVER, f"waited for {one.text}, which is {one.ended} ({one.reason})")
    left = [one.text for one in predecessors if one.meets is None]
    if left:
        return Verdict(Chance.WAITS, f"waits for {', '.join(left)}")
    return Verdict(Chance.STARTS, f"after {', '.join(one.text for one in predecessors)}")
