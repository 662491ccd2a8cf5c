"""The present reason of a job: what holds now, not what happened last."""

from __future__ import annotations

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from service.domain.jobs.status import LastDecision, present_reason

EVENT = "the last event"
KEEP = LastDecision("keep", "2 cpu slots is the best choice now; 4 slots: less than 5% faster than now")
WAIT = LastDecision("wait", "needs at least 2 slots; 0 of 4 are left; held by other (4)")


def present(
    state: JobState,
    *,
    size: int = 2,
    last: LastDecision | None = KEEP,
    pinned: int | None = None,
    **elastic: object,
) -> str:
    spec = JobSpec.model_validate({"name": "j", "run": "true", "elastic": {"min": 1, "max": 4, **elastic}})
    return present_reason(spec=spec, state=state, size=size, pinned=pinned, message=EVENT, last=last)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (present(JobState.RUNNING), KEEP.message),
        (present(JobState.RUNNING, size=1, pinned=1), "1 slot, fixed by you"),
        (present(JobState.RUNNING, size=2, pinned=2, last=None), "2 slots, fixed by you"),
        (present(JobState.RUNNING, size=1, pinned=2, last=LastDecision("keep", "on its way")), "on its way"),
        (present(JobState.RUNNING, size=2, min=2, max=2), "2 slots, the only size in its job file"),
        (present(JobState.RUNNING, size=4), "4 slots, the most that its job file allows"),
        (present(JobState.RUNNING, resize="never"), "2 slots: its size never changes while it runs (elastic.resize: never)"),
        (present(JobState.RUNNING, last=WAIT), EVENT),
        (present(JobState.RUNNING, last=None), EVENT),
        (present(JobState.PENDING, size=0, last=WAIT), WAIT.message),
        (present(JobState.PENDING, size=0, last=KEEP), EVENT),
        (present(JobState.PENDING, size=0, last=None), EVENT),
        *((present(state, last=KEEP, pinned=2), EVENT) for state in JobState if state is not JobState.RUNNING),
    ],
)  # fmt: skip
def test_the_reason_that_holds_now(said: str, expected: str) -> None:
    assert said == expected
