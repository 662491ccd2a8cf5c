"""The checker of histories accepts every history that a correct service can produce, and finds planted anomalies."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.faulting.histories import Call, Operation, Seen, anomalies

SEEDS = st.integers(0, 2**32)


def op(call: Call, begin_s: float, end_s: float, seen: Seen | None, size: int | None = None) -> Operation:
    return Operation("job", call, begin_s, end_s, seen, size)


def seen(
    state: str = "RUNNING", pinned_size: int | None = None, generation: int = 1, job_id: str = "j1"
) -> Seen:
    return Seen(job_id, state, generation, pinned_size)


SUBMIT = op(Call.SUBMIT, 0, 1, seen("PENDING", generation=0))


def legal(seed: int, *, length: int = 40) -> list[Operation]:  # noqa: C901, PLR0912  # one branch per rule of the API
    """Return a history of a service that executes each operation at one moment between its start and its end."""
    dice = random.Random(seed)
    history: list[Operation] = []
    state, pinned, generation, now_s = "", None, 0, 10.0
    for _ in range(length):
        now_s += dice.random()
        begin_s, end_s = now_s - 2 * dice.random(), now_s + 2 * dice.random()
        unanswered, happens = dice.random() < 0.2, dice.random() < 0.5
        if not state:
            if unanswered:
                history.append(op(Call.SUBMIT, begin_s, math.inf, None))
            if not unanswered or happens:
                state = "PENDING"
            if unanswered:
                continue
            history.append(op(Call.SUBMIT, begin_s, end_s, seen(state, pinned, generation)))
            continue
        ended = state in {"SUCCEEDED", "CANCELLED"}
        if not ended and state != "CANCELLING" and dice.random() < 0.3:
            state, generation = dice.choice(["RUNNING", "RESIZING", "PAUSED"]), generation + dice.randrange(2)
        if not ended and dice.random() < 0.03:
            state = "CANCELLED" if state == "CANCELLING" else "SUCCEEDED"
        call = dice.choice([Call.READ, Call.READ, Call.RESIZE, Call.RESIZE, Call.SUBMIT])
        if dice.random() < 0.05:
            call = Call.CANCEL
        size = dice.choice([None, 1, 2, 3]) if call is Call.RESIZE else None
        steerable = state not in {"SUCCEEDED", "CANCELLED", "CANCELLING"}
        if call in {Call.RESIZE, Call.CANCEL} and not steerable:
            continue  # refused
        if unanswered and call is not Call.READ:
            history.append(op(call, begin_s, math.inf, None, size))
            if not happens:
                continue
        if call is Call.RESIZE:
            pinned = size
        if call is Call.CANCEL:
            state = "CANCELLING"
        if not unanswered:
            history.append(op(call, begin_s, end_s, seen(state, pinned, generation), size))
    dice.shuffle(history)
    return history


@given(SEEDS)
def test_legal_history_has_no_anomaly(seed: int) -> None:
    assert anomalies(legal(seed)) == []


@given(SEEDS)
def test_acknowledged_resize_that_is_not_there_later_is_found(seed: int) -> None:
    history = legal(seed)
    end_s = max((one.end_s for one in history if not math.isinf(one.end_s)), default=0.0) + 10
    last = max((one for one in history if one.seen), key=lambda one: one.end_s, default=None)
    if last is None or last.seen is None or last.seen.state in {"SUCCEEDED", "CANCELLED", "CANCELLING"}:
        return
    live = replace(last.seen, pinned_size=17, state="RUNNING", generation=10_000)
    history.append(op(Call.RESIZE, end_s, end_s + 1, live, 17))
    if any(math.isinf(one.end_s) and one.call in {Call.RESIZE, Call.CANCEL} for one in history):
        return  # its effect may come late, and explain the other size
    history.append(op(Call.READ, end_s + 2, end_s + 3, replace(live, pinned_size=None)))
    assert [one.promise for one in anomalies(history)] == ["anomalies"]


RESIZED = op(Call.RESIZE, 2, 3, seen(pinned_size=2), 2)
PLANTED = {
    "read_older_than_a_write": [SUBMIT, RESIZED, op(Call.READ, 4, 5, seen())],
    "write_lost_between_two_reads": [SUBMIT, RESIZED, op(Call.READ, 4, 5, seen(pinned_size=2)), op(Call.READ, 6, 7, seen())],
    "answer_without_its_own_write": [SUBMIT, op(Call.RESIZE, 2, 3, seen(pinned_size=1), 2)],
    "cancel_lost": [SUBMIT, op(Call.CANCEL, 2, 3, seen("CANCELLING")), op(Call.READ, 4, 5, seen("RUNNING"))],
    "cancelled_by_nobody": [SUBMIT, op(Call.READ, 4, 5, seen("CANCELLED"))],
    "ended_job_lives_again": [SUBMIT, op(Call.READ, 2, 3, seen("SUCCEEDED")), op(Call.READ, 4, 5, seen("RUNNING"))],
    "ended_otherwise_later": [SUBMIT, op(Call.READ, 2, 3, seen("SUCCEEDED")), op(Call.READ, 4, 5, seen("FAILED"))],
    "generation_falls": [SUBMIT, op(Call.READ, 2, 3, seen(generation=5)), op(Call.READ, 4, 5, seen(generation=4))],
    "second_id_for_one_key": [SUBMIT, op(Call.SUBMIT, 2, 3, seen("PENDING", generation=0, job_id="j2"))],
    "read_of_a_job_that_nobody_submitted": [op(Call.READ, 2, 3, seen())],
    "reads_of_two_clients_in_other_orders": [
        SUBMIT,
        op(Call.RESIZE, 2, 3, seen(pinned_size=1), 1),
        op(Call.RESIZE, 2, 9, None, 2),
        op(Call.READ, 4, 5, seen(pinned_size=2)),
        op(Call.READ, 6, 7, seen(pinned_size=1)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("history", PLANTED.values(), ids=PLANTED.keys())
def test_planted_anomaly_is_found(history: list[Operation]) -> None:
    assert [(one.promise, one.whom) for one in anomalies(history)] == [("anomalies", "job")]


def test_unanswered_write_may_happen_late_once_or_never() -> None:
    lost = op(Call.RESIZE, 2, math.inf, None, 3)
    never = [SUBMIT, lost, op(Call.READ, 50, 51, seen())]
    late = [SUBMIT, lost, op(Call.READ, 50, 51, seen()), op(Call.READ, 60, 61, seen(pinned_size=3))]
    twice = [
        *late,
        op(Call.RESIZE, 70, 71, seen(pinned_size=1), 1),
        op(Call.READ, 80, 81, seen(pinned_size=3)),
    ]
    assert anomalies(never) == anomalies(late) == []
    assert len(anomalies(twice)) == 1


def test_one_job_does_not_excuse_another() -> None:
    other = [replace(one, job="other") for one in PLANTED["cancel_lost"]]
    assert [one.whom for one in anomalies([SUBMIT, RESIZED, *other])] == ["other"]
