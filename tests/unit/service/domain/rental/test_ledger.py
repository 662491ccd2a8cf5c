"""The ledger: nothing that is paid for is lost, and nothing is counted twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobState
from headway.contract.views.money import Category
from service.domain.jobs.lifecycle import TRANSITIONS, JobEvent
from service.domain.rental.ledger import HOUR_US, ChargeKey, Held, JobHistory, Lease, split, write
from service.domain.rental.timeline import (
    FIRST_STEP,
    RESTORE,
    UNKNOWN_RATE,
    Phase,
    TimelineEvent,
    first_difference_us,
    phases_of,
)

S = 1_000_000
NODE = "n1"
_S, _E = JobState, JobEvent


def lease(*, slots: int = 1, begin: int = 0, end: int = 100 * S, usd: float | None = 1.0) -> Lease:
    return Lease(
        id="l1",
        node_id=NODE,
        machine_id=None,
        slots=tuple(range(slots)),
        device_kind="cpu",
        market=Market.ON_DEMAND,
        usd_per_slot_h=usd,
        from_us=begin,
        to_us=end,
        open=True,
    )


def held(slot: int, begin: int, end: int | None, job: str = "j1") -> Held:
    return Held(place=(NODE, slot), job_id=job, from_us=begin, to_us=end)


def mark(
    sequence: int, at_s: float, kind: str, state: JobState, generation: int = 1, **more: object
) -> TimelineEvent:
    return TimelineEvent(
        sequence=sequence,
        at_us=round(at_s * S),
        kind=kind,
        state=state,
        generation=generation,
        **more,  # type: ignore[arg-type]
    )


SILENT = (mark(1, 10, _E.ALLOCATE, _S.STARTING), mark(2, 12, _E.START, _S.RUNNING))
STARTED = (*SILENT, mark(2, 12, FIRST_STEP, _S.RUNNING))
"""It trains at once."""


def seconds(rows: Mapping[ChargeKey, int]) -> dict[tuple[str, str], float]:
    """By category and cause."""
    found: Counter[tuple[str, str]] = Counter()
    for row, slot_us in rows.items():
        found[str(row.category), row.cause] += slot_us
    return {key: slot_us / S for key, slot_us in found.items()}


def of(
    marks: Sequence[TimelineEvent],
    *grants: Held,
    members: Mapping[int, frozenset[tuple[str, int]]] | None = None,
    slots: int = 1,
) -> dict[tuple[str, str], float]:
    history = JobHistory("p1", phases_of(marks), members or {})
    return seconds(split(lease(slots=slots), grants, {"j1": history}, 0))


def test_a_lease_that_nobody_uses_is_idle() -> None:
    assert seconds(split(lease(slots=2), [], {}, 0)) == {("idle", ""): 200.0}


def test_starting_is_no_training() -> None:
    assert of(STARTED, held(0, 10 * S, None)) == {
        ("idle", ""): 10.0,
        ("resize", ""): 2.0,
        ("useful", ""): 88.0,
    }


def test_a_script_that_says_when_it_trains_is_believed() -> None:
    marks = (*SILENT, mark(3, 15, FIRST_STEP, _S.RUNNING))
    assert of(marks, held(0, 10 * S, None))["resize", ""] == 5.0


def test_a_stop_with_a_checkpoint_is_resize_until_the_slot_is_released() -> None:
    marks = (*STARTED, mark(3, 50, _E.VACATE, _S.RESIZING), mark(4, 54, _E.REQUEUE, _S.PENDING))
    assert of(marks, held(0, 10 * S, 54 * S)) == {
        ("idle", ""): 56.0,
        ("resize", ""): 6.0,
        ("useful", ""): 38.0,
    }


def test_newcomers_are_on_their_way_until_the_switch_and_all_pause_for_it() -> None:
    marks = (
        *STARTED,
        mark(3, 40, _E.PREPARE, _S.RESIZING),
        mark(4, 50, _E.SWITCH, _S.RUNNING, 2, pause_s=1.0),
    )
    members = {1: frozenset({(NODE, 0)}), 2: frozenset({(NODE, 0), (NODE, 1)})}
    found = of(marks, held(0, 10 * S, None), held(1, 40 * S, None), members=members, slots=2)
    assert found == {
        ("idle", ""): 50.0,
        ("resize", ""): 2.0 + 1.0 + 10.0,
        ("useful", ""): 27 + 10 + 50 + 50.0,
    }


def test_what_is_trained_again_was_lost_and_so_was_the_recovery() -> None:
    marks = (
        *STARTED,
        mark(3, 50, _E.FAIL_RANK, _S.RECOVERING, reason="NODE_LOST"),
        mark(4, 53, _E.ALLOCATE, _S.STARTING, 2),
        mark(5, 55, _E.START, _S.RUNNING, 2),
        mark(6, 56, RESTORE, _S.RUNNING, 2, lost_s=8.0),
        mark(7, 57, FIRST_STEP, _S.RUNNING, 2),
    )
    found = of(marks, held(0, 10 * S, 53 * S), held(0, 53 * S, None))
    assert found == {
        ("idle", ""): 10.0,
        ("resize", ""): 2.0 + 4.0,
        ("useful", ""): 38 - 8 + 43.0,
        ("lost", "NODE_LOST"): 8.0 + 3.0,
    }


def test_without_a_speed_all_training_since_the_start_was_lost() -> None:
    marks = (
        *STARTED,
        mark(3, 50, _E.FAIL_RANK, _S.RECOVERING, reason="HUNG"),
        mark(4, 53, _E.ALLOCATE, _S.STARTING, 2),
        mark(5, 55, _E.START, _S.RUNNING, 2),
        mark(6, 57, FIRST_STEP, _S.RUNNING, 2, lost_s=UNKNOWN_RATE),
    )
    found = of(marks, held(0, 10 * S, None))
    assert found["lost", "HUNG"] == 38 + 3.0
    assert found["useful", ""] == 43.0


def test_a_loss_in_place_costs_the_pause_back_to_the_last_step() -> None:
    marks = (
        *STARTED,
        mark(3, 50, _E.LOSE, _S.RECOVERING, reason="SPOT_RECLAIMED"),
        mark(4, 51, _E.SWITCH, _S.RUNNING, 2, pause_s=6.0),
    )
    found = of(marks, held(0, 10 * S, None))
    assert found["lost", "SPOT_RECLAIMED"] == 6.0
    assert found["useful", ""] == 33 + 49.0


def test_a_nodes_wrong_clock_moves_nothing_but_its_own_first_step() -> None:
    for at_s in (-1e9, 1e9):
        marks = (
            *SILENT,
            mark(3, at_s, FIRST_STEP, _S.RUNNING),
            mark(4, 20, _E.VACATE, _S.RESIZING),
            mark(5, 21, _E.REQUEUE, _S.PENDING),
        )
        found = of(marks, held(0, 10 * S, 21 * S))
        assert found["idle", ""] == 89.0
        assert found["resize", ""] == (3.0 if at_s < 0 else 11.0)


def test_a_services_clock_that_went_back_makes_no_time() -> None:
    marks = (mark(1, 10, _E.ALLOCATE, _S.STARTING), mark(2, 5, _E.START, _S.RUNNING))
    assert of(marks, held(0, 10 * S, None)) == {("idle", ""): 10.0, ("unknown", ""): 90.0}


def test_the_time_of_a_script_that_says_nothing_is_unknown_and_not_useful() -> None:
    grant = held(0, 10 * S, None)
    assert of(SILENT, grant) == {("idle", ""): 10.0, ("resize", ""): 2.0, ("unknown", ""): 88.0}
    stopped = (
        *SILENT,
        mark(3, 40, _E.VACATE, _S.RESIZING),
        mark(4, 45, _E.ALLOCATE, _S.STARTING, 2),
        mark(5, 46, _E.START, _S.RUNNING, 2),
        mark(6, 60, FIRST_STEP, _S.RUNNING, 2, plain=True),
    )
    found = of(stopped, grant)
    assert found["unknown", ""] == 28.0 + 14.0, "it may have trained before it reported a step, and after"
    assert (found["resize", ""], found["useful", ""]) == (2.0 + 6.0, 40.0)
    early = (SILENT[0], mark(2, 11, FIRST_STEP, _S.STARTING), mark(3, 12, _E.START, _S.RUNNING))
    assert of(early, grant)["useful", ""] == 88.0, "one node was late to say that it has started"


def test_overlapping_grants_are_charged_once() -> None:
    job = JobHistory("p1", phases_of(STARTED))
    grants = [held(0, 10 * S, 31 * S), held(0, 30 * S, 40 * S, "j2")]
    rows = split(lease(), grants, {"j1": job, "j2": job}, 0)
    by_job = Counter[str]()
    for row, slot_us in rows.items():
        by_job[row.job_id] += slot_us
    assert by_job == {"": 70 * S, "j1": 21 * S, "j2": 9 * S}


def test_rows_are_cut_at_hours() -> None:
    rows = split(lease(begin=HOUR_US - 10, end=2 * HOUR_US + 5), [], {}, 0)
    assert {row.hour_us: us for row, us in rows.items()} == {0: 10, HOUR_US: HOUR_US, 2 * HOUR_US: 5}


# Histories that a job may have, made by walking the lifecycle's table at random.

MOMENTS = st.integers(0, 3 * HOUR_US)
_KINDS = sorted(JobEvent)


@st.composite
def histories(draw: st.DrawFn) -> tuple[TimelineEvent, ...]:
    state, generation, marks = JobState.PENDING, 0, []
    for sequence in range(draw(st.integers(0, 12))):
        kinds = [kind for kind in _KINDS if (state, kind) in TRANSITIONS]
        kind: str = draw(st.sampled_from([*kinds, FIRST_STEP, RESTORE]))
        if kind in kinds:
            state = TRANSITIONS[state, JobEvent(kind)]
            generation += kind in {JobEvent.ALLOCATE, JobEvent.SWITCH}
        amounts = st.one_of(st.just(0.0), st.floats(0, 5000))
        marks.append(
            TimelineEvent(
                sequence=sequence,
                at_us=draw(MOMENTS),
                kind=kind,
                state=state,
                generation=generation,
                reason="HUNG",
                pause_s=draw(amounts),
                lost_s=draw(st.one_of(amounts, st.just(UNKNOWN_RATE)))
                if kind in {FIRST_STEP, RESTORE}
                else 0.0,
            )
        )
        if not kinds:
            break
    return tuple(marks)


@st.composite
def grants(draw: st.DrawFn) -> list[Held]:
    found = []
    for _ in range(draw(st.integers(0, 8))):
        begin = draw(MOMENTS)
        end = draw(st.none() | st.integers(begin, 3 * HOUR_US))
        found.append(held(draw(st.integers(0, 2)), begin, end, draw(st.sampled_from(["j1", "j2"]))))
    return found


@st.composite
def leases(draw: st.DrawFn) -> Lease:
    begin = draw(MOMENTS)
    return lease(slots=draw(st.integers(1, 3)), begin=begin, end=draw(st.integers(begin, 4 * HOUR_US)))


@settings(max_examples=40)
@given(leases(), grants(), histories(), histories(), st.booleans())
def test_rows_sum_to_the_lease_to_the_microsecond(
    paid: Lease,
    holders: list[Held],
    one: tuple[TimelineEvent, ...],
    other: tuple[TimelineEvent, ...],
    known: bool,
) -> None:
    members = {1: frozenset({(NODE, 0)})} if known else {}
    jobs = {
        "j1": JobHistory("p1", phases_of(one), members),
        "j2": JobHistory("p2", phases_of(other), members),
    }
    rows = split(paid, holders, jobs, 0)
    assert sum(rows.values()) == paid.slot_us
    assert all(slot_us > 0 for slot_us in rows.values())
    assert all((row.category is Category.IDLE) == (row.job_id == "") for row in rows)
    assert all(not row.cause or row.category is Category.LOST for row in rows)


@settings(max_examples=40)
@given(leases(), grants(), histories(), st.lists(MOMENTS, max_size=4))
def test_parts_add_up_to_the_whole(
    paid: Lease, holders: list[Held], marks: tuple[TimelineEvent, ...], cuts: list[int]
) -> None:
    """Accrual in random windows is accrual in one."""
    jobs = dict.fromkeys(("j1", "j2"), JobHistory("p1", phases_of(marks)))
    whole = Counter(split(paid, holders, jobs, 0))
    edges = sorted({paid.from_us, paid.to_us, *(cut for cut in cuts if paid.from_us <= cut <= paid.to_us)})
    parts: Counter[ChargeKey] = Counter()
    for begin, end in pairwise(edges):
        window = Lease(**{name: getattr(paid, name) for name in Lease.__dataclass_fields__} | {"to_us": end})
        parts.update(split(window, holders, jobs, begin))
    assert parts == whole


@settings(max_examples=40)
@given(
    leases(),
    grants(),
    histories(),
    st.lists(st.tuples(MOMENTS, MOMENTS), max_size=5),
    st.randoms(use_true_random=False),
)
def test_passes_that_settle_as_they_go_come_to_what_one_pass_does(
    paid: Lease,
    holders: list[Held],
    marks: tuple[TimelineEvent, ...],
    passes: list[tuple[int, int]],
    dice: Random,
) -> None:
    """Each goes on where the one before has settled, and takes back what that has left open."""
    jobs = dict.fromkeys(("j1", "j2"), JobHistory("p1", phases_of(marks)))
    total: Counter[ChargeKey] = Counter()
    settled: Counter[ChargeKey] = Counter()
    since_us, known = 0, paid.from_us
    for until, settle_us in (*sorted(passes), (paid.to_us, dice.choice([0, paid.to_us]))):
        known = min(max(known, until), paid.to_us)
        written = write(replace(paid, to_us=known), holders, jobs, since_us, settle_us)
        total = settled.copy()
        for row, share in written.rows.items():
            assert 0 <= share.settled_us <= share.slot_us
            total[row] += share.slot_us
            settled[row] += share.settled_us
        assert sum(total.values()) == written.lease.slot_us
        assert written.lease.settled_us is not None
        since_us = written.lease.settled_us
        assert +settled == Counter(split(replace(paid, to_us=since_us), holders, jobs, 0))
    assert +total == Counter(split(paid, holders, jobs, 0))


@settings(max_examples=40)
@given(histories())
def test_phases_leave_no_gap_and_take_no_time_twice(marks: tuple[TimelineEvent, ...]) -> None:
    phases = phases_of(marks)
    assert all(one.from_us < one.to_us for one in phases)
    assert all(one.to_us == after.from_us for one, after in pairwise(phases))


@settings(max_examples=40)
@given(histories(), st.integers(0, 12))
def test_before_the_first_difference_two_histories_are_the_same(
    marks: tuple[TimelineEvent, ...], known: int
) -> None:
    before, after = phases_of(marks[:known]), phases_of(marks)
    differs_us = first_difference_us(before, after)
    if differs_us is None:
        assert before == after
        return
    assert _until(before, differs_us) == _until(after, differs_us)


def _until(phases: Sequence[Phase], end: int) -> list[tuple[object, ...]]:
    return [
        (one.from_us, min(one.to_us, end), one.category, one.generation, one.cause)
        for one in phases
        if one.from_us < end
    ]
