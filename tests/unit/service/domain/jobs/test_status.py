"""The present reason of a job: what holds now, not what happened last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from service.domain.jobs.status import LastDecision, UntakenCommands, present_reason, untaken_text

EVENT = "the last event"
KEEP = LastDecision("keep", "2 cpu slots is the best choice now; 4 slots: less than 5% faster than now")
WAIT = LastDecision("wait", "needs at least 2 slots, and 0 of 4 are left; held by other (4)")


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


def test_commands_that_do_not_arrive_are_told_with_the_nodes_and_their_age() -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    said = untaken_text(UntakenCommands(("a", "b"), since), since + timedelta(seconds=42))
    assert said.startswith(
        "no command about it has reached a, b for 42s: the command queue (Redis) refuses writes"
    )


ALL_SETTLED = (JobState.RESIZING, JobState.RECOVERING, JobState.STARTING, JobState.SUCCEEDED)


@pytest.mark.parametrize("action", ["keep", "start", "resize", "move", "vacate"])
def test_only_a_decision_to_wait_explains_a_waiting_job(action: str) -> None:
    assert present(JobState.PENDING, size=0, last=LastDecision(action, "old")) == EVENT


@pytest.mark.parametrize(
    ("action", "shown"),
    [("keep", True), ("start", True), ("resize", True), ("wait", False), ("vacate", False)],
)
def test_which_decisions_explain_a_running_job(action: str, *, shown: bool) -> None:
    said = present(JobState.RUNNING, last=LastDecision(action, "the decision"))
    assert said == ("the decision" if shown else EVENT)


@pytest.mark.parametrize("state", ALL_SETTLED)
def test_a_pinned_size_does_not_explain_another_state(state: JobState) -> None:
    assert present(state, size=2, pinned=2) == EVENT


@pytest.mark.parametrize(
    ("size", "pinned", "elastic", "said"),
    [
        (4, 2, {}, KEEP.message),
        (4, None, {"max": 8}, KEEP.message),
        (4, None, {"max": 8, "sizes": [1, 4]}, "4 slots, the most that its job file allows"),
        (2, None, {"min": 2, "max": 2, "resize": "never"}, "2 slots, the only size in its job file"),
        (2, 2, {"resize": "never"}, "2 slots, fixed by you"),
        (2, 3, {"resize": "never"}, KEEP.message),
    ],
)
def test_the_strongest_reason_for_a_size_is_given(
    size: int, pinned: int | None, elastic: dict[str, object], said: str
) -> None:
    assert present(JobState.RUNNING, size=size, pinned=pinned, **elastic) == said
