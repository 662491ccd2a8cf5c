"""The ideal of benchmarks.contention, and its measures over recorded histories."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.contending.history import Happened, Past, changes_of, spans_of
from benchmarks.contending.ideal import FluidJob, equal_shares, ideal_ends
from benchmarks.contending.measures import GOALS, Moment, measures, waits_of, worst_of
from benchmarks.contending.streams import STEP_S, STREAMS
from benchmarks.scripts.sharing import factor
from headway.contract.views.jobs import Reason

SLOTS = 4


def fluid(submit_s: float, work_s: float, *pins: tuple[float, int | None], part: float = 0.2) -> FluidJob:
    return FluidJob(submit_s=submit_s, work_s=work_s, part=part, minimum=1, maximum=SLOTS, pins=pins)


def past(name: str, submitted_s: float, *events: tuple[Any, ...], minimum: int = 1) -> Past:
    """A job with the events (time, kind, reason, data) after its submit; the last one is its end."""
    happened = [
        Happened(at_s, kind, rest[0] if rest else None, "", rest[1] if len(rest) > 1 else {})
        for at_s, kind, *rest in events
    ]
    return Past(
        name=name,
        minimum=minimum,
        work_s=100.0,
        submitted_s=submitted_s,
        finished_s=happened[-1].at_s,
        succeeded=happened[-1].kind == "succeed",
        events=(Happened(submitted_s, "submit"), *happened),
    )


def vacate(at_s: float, before: int, to: int = 0, reason: Reason = Reason.PREEMPTED) -> tuple[Any, ...]:
    return at_s, "vacate", reason, {"from": before, "to": to}


def prepare(at_s: float, before: int, to: int, reason: Reason = Reason.BETTER_ALLOCATION) -> tuple[Any, ...]:
    return at_s, "prepare", reason, {"from": before, "to": to}


def switch(at_s: float, before: int, to: int) -> tuple[Any, ...]:
    return at_s, "switch", Reason.PROGRESSING, {"from": before, "to": to, "pause_s": 0.5}


def pin(at_s: float, slots: int | None) -> tuple[Any, ...]:
    return at_s, "resize_requested", None, {"slots": slots}


def measured(*pasts: Past, slots: int = SLOTS) -> dict[str, float]:
    return measures(pasts, slots, [one.completion_s for one in pasts])


def test_a_job_alone_has_all_slots_that_it_may_have() -> None:
    assert ideal_ends([fluid(5.0, 100.0)], SLOTS) == pytest.approx([5.0 + 100.0 * (0.2 + 0.8 / 4)])


def test_as_many_jobs_as_slots_have_one_each_until_one_has_ended() -> None:
    # On 4/3 slots a job does a third of the way from one slot's speed, 1, to that of two, 1 / 0.6.
    faster = 1.0 + (1 / 0.6 - 1.0) / 3
    ends = ideal_ends([fluid(0.0, 60.0), *[fluid(0.0, 100.0)] * 3], SLOTS)
    assert ends == pytest.approx([60.0, *[60.0 + 40.0 / faster] * 3])


def test_more_jobs_than_slots_take_turns() -> None:
    assert ideal_ends([fluid(0.0, 100.0)] * 8, SLOTS) == pytest.approx([200.0] * 8)


def test_a_job_of_a_fixed_size_takes_turns_with_others_as_a_whole() -> None:
    # Three times two slots do not fit: each job has a share of 4/3, which is two slots for two thirds of the time.
    jobs = [fluid(0.0, 100.0, (0.0, 2))] * 3
    assert ideal_ends(jobs, SLOTS) == pytest.approx([100.0 * 0.6 * 3 / 2] * 3)


def test_minimums_that_fill_the_slots_are_the_shares() -> None:
    assert equal_shares([(1, 1), (1, 1), (2, 3)], 4) == [1.0, 1.0, 2.0]


def test_a_later_job_takes_its_share_from_the_others() -> None:
    # NoPeers for 40 s at 2.5 times the speed, then on two slots each.
    first, second = ideal_ends([fluid(0.0, 200.0), fluid(40.0, 100.0)], SLOTS)
    assert (first, second) == pytest.approx((100.0, 100.0))


def test_a_fixed_size_is_kept_and_the_rest_is_shared() -> None:
    fixed, *others = ideal_ends([fluid(0.0, 300.0, (30.0, 2)), *[fluid(0.0, 30.0 + 60.0)] * 2], SLOTS)
    # On 4/3 slots each for 30 s, then the fixed one has two slots and the others one each.
    third = 1.0 + (1 / 0.6 - 1.0) / 3
    assert others == pytest.approx([30.0 + 90.0 - 30.0 * third] * 2)
    assert fixed == pytest.approx(30.0 + (300.0 - 30.0 * third) * 0.6)


def test_a_fixed_size_can_be_given_back() -> None:
    assert ideal_ends([fluid(0.0, 100.0, (0.0, 1), (50.0, None))], SLOTS) == pytest.approx(
        [50.0 + 50.0 * 0.4]
    )


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)).map(lambda two: (two[0], sum(two))), min_size=1),
    st.integers(1, 16),
)
def test_shares_fill_the_slots_within_bounds(bounds: list[tuple[int, int]], slots: int) -> None:
    shares = equal_shares(bounds, slots)
    assert sum(shares) == pytest.approx(min(slots, sum(most for _, most in bounds)))
    fit = sum(least for least, _ in bounds) <= slots
    for share, (least, most) in zip(shares, bounds, strict=True):
        assert (least if fit else 0) - 1e-9 <= share <= most + 1e-9
    inner = [
        one for one, (least, most) in zip(shares, bounds, strict=True) if (least if fit else 0) < one < most
    ]
    assert inner == pytest.approx(inner[:1] * len(inner))


@given(st.lists(st.tuples(st.floats(0.0, 300.0), st.floats(1.0, 300.0)), min_size=1, max_size=9))
def test_the_ideal_does_no_more_work_than_the_slots_can(jobs: list[tuple[float, float]]) -> None:
    ends = ideal_ends([fluid(*job) for job in jobs], SLOTS)
    for end_s, (submit_s, work_s) in zip(ends, jobs, strict=True):
        assert end_s >= submit_s + work_s * 0.4 - 1e-6
    assert max(ends) >= sum(work_s for _, work_s in jobs) / SLOTS


def test_a_wait_while_all_minimums_fit_is_starvation() -> None:
    waiting = past("bob", 0.0, (7.0, "allocate"), (100.0, "succeed"))
    other = past("ada", 0.0, (0.1, "allocate"), (90.0, "succeed"))
    assert measured(waiting, other)["starved_s"] == pytest.approx(7.0)
    assert measured(waiting, other, slots=1)["starved_s"] == 0.0


def test_starvation_begins_when_the_minimums_fit_again() -> None:
    others = [past(f"ada-{i}", 0.0, (0.0, "allocate"), (40.0 + i, "succeed")) for i in range(4)]
    waiting = past("bob", 5.0, (43.5, "allocate"), (90.0, "succeed"))
    found = measured(*others, waiting)
    assert found["starved_s"] == pytest.approx(3.5)
    assert found["longest_wait_s"] == pytest.approx(38.5)


def test_a_wait_beside_the_surplus_of_others_is_told_apart() -> None:
    """Six minimums do not fit into four slots; one of the three jobs that run could give up its second slot."""
    running = [past(f"ada-{i}", 0.0, (0.0, "allocate"), (80.0, "succeed")) for i in range(3)]
    waiting = [past(f"bob-{i}", 0.0, (30.0, "allocate"), (80.0, "succeed")) for i in range(3)]
    found = measured(*running, *waiting)
    assert found["starved_s"] == 0.0
    assert found["surplus_wait_s"] == pytest.approx(30.0)


def test_a_stopped_job_waits_from_the_order_to_stop() -> None:
    stopped = past(
        "bob",
        0.0,
        (0.0, "allocate"),
        vacate(70.0, 1),
        (71.0, "requeue"),
        (80.0, "allocate"),
        (99.0, "succeed"),
    )
    wait = max(waits_of([stopped], SLOTS, Moment.all_fit), key=lambda wait: wait.wait_s)
    assert (wait.from_s, wait.to_s) == (70.0, 80.0)


def test_a_job_that_its_user_pauses_does_not_wait() -> None:
    paused = past(
        "bob",
        0.0,
        (0.0, "allocate"),
        vacate(10.0, 1, reason=Reason.USER_REQUEST),
        (15.0, "pause"),
        (50.0, "resume"),
        (51.0, "allocate"),
        (99.0, "succeed"),
    )
    found = measured(paused)
    assert (found["starved_s"], found["changes"]) == (1.0, 0)


def test_a_job_whose_ranks_fail_does_not_wait_for_slots_until_it_is_to_start_again() -> None:
    failed = past(
        "bob",
        0.0,
        (0.0, "allocate"),
        vacate(70.0, 1),
        (71.0, "fail_rank", Reason.USER_ERROR),
        (72.0, "recover"),
        (90.0, "allocate"),
        (99.0, "succeed"),
    )
    assert measured(failed)["starved_s"] == pytest.approx(1.0)


def test_a_fixed_size_is_the_minimum() -> None:
    fixed = past("ada", 0.0, (0.0, "allocate"), pin(1.0, 4), (60.0, "succeed"))
    waiting = past("bob", 2.0, (60.0, "allocate"), (90.0, "succeed"))
    assert measured(fixed, waiting)["starved_s"] == 0.0
    given_back = past("ada", 0.0, (0.0, "allocate"), pin(1.0, 4), pin(40.0, None), (60.0, "succeed"))
    assert measured(given_back, waiting)["starved_s"] == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("change", "early"),
    [
        (vacate(59.0, 1), 1),
        (vacate(61.0, 1), 0),
        (vacate(59.0, 2, 1, Reason.BETTER_ALLOCATION), 1),
        (vacate(59.0, 1, 1, Reason.BETTER_ALLOCATION), 1),
        (vacate(59.0, 1, 2, Reason.BETTER_ALLOCATION), 0),
        (vacate(59.0, 1, reason=Reason.NODE_DRAINED), 0),
        (vacate(59.0, 1, reason=Reason.BUDGET), 0),
        (vacate(59.0, 2, 1, Reason.USER_REQUEST), 0),
    ],
)
def test_only_stops_for_others_within_the_minimum_run_time_are_early(
    change: tuple[Any, ...], early: int
) -> None:
    then = (63.0, "requeue"), (64.0, "allocate"), (99.0, "succeed")
    assert measured(past("bob", 0.0, (0.0, "allocate"), change, *then))["early_vacates"] == early


def test_the_minimum_run_time_grows_with_the_cost_of_a_stop_and_a_start() -> None:
    slow = past(
        "bob",
        0.0,
        (0.0, "allocate"),
        (5.0, "first_step"),
        vacate(105.0, 1),
        (106.0, "requeue"),
        (107.0, "allocate"),
        (112.0, "first_step"),
        (200.0, "succeed"),
    )
    found = measured(slow)
    assert found["min_run_s"] == pytest.approx(20.0 * (5.0 + 1.0))
    assert (found["early_vacates"], found["shortest_run_s"]) == (1, 105.0)
    assert found["changes_cost"] == pytest.approx((5.0 + 1.0) / (106.0 + 93.0))


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        (vacate(200.0, 2), 1),
        (vacate(200.0, 2, 2, Reason.BETTER_ALLOCATION), 1),
        (prepare(200.0, 2, 1), 1),
        (prepare(200.0, 2, 2), 0),
        (prepare(200.0, 4, 2), 0),
        (vacate(200.0, 2, reason=Reason.NODE_DRAINED), 0),
    ],
)
def test_slots_of_a_fixed_size_are_not_to_be_taken_for_others(change: tuple[Any, ...], taken: int) -> None:
    begin, end = (0.0, "allocate"), (switch(201.0, 2, 2), (300.0, "succeed"))
    assert measured(past("bob", 0.0, begin, pin(1.0, 2), change, *end))["pinned_vacates"] == taken
    assert measured(past("bob", 0.0, begin, change, *end))["pinned_vacates"] == 0
    assert measured(past("bob", 0.0, begin, pin(1.0, 2), pin(2.0, None), change, *end))["pinned_vacates"] == 0


def test_changes_are_counted_for_each_hour_on_slots() -> None:
    job = past(
        "bob",
        0.0,
        (10.0, "allocate"),
        prepare(100.0, 1, 2),
        switch(101.0, 1, 2),
        prepare(200.0, 2, 4),
        (210.0, "abandon"),
        prepare(300.0, 2, 1, Reason.USER_REQUEST),
        switch(301.0, 2, 1),
        prepare(400.0, 1, 2),
        (401.0, "succeed"),
        (1810.0, "vanish"),
    )
    assert [change.at_s for change in changes_of(job)] == [100.0]
    assert measured(job)["changes_cost"] == pytest.approx(0.5 / 391.0)
    ended = past(
        "bob", 0.0, (10.0, "allocate"), prepare(100.0, 1, 2), switch(101.0, 1, 2), (1810.0, "succeed")
    )
    assert measured(ended)["changes_per_job_hour"] == pytest.approx(2.0)


def test_completion_is_compared_by_the_mean_of_all_jobs() -> None:
    jobs = [
        past("ada", 0.0, (0.0, "allocate"), (60.0, "succeed")),
        past("bob", 10.0, (11.0, "allocate"), (60.0, "succeed")),
    ]
    assert measures(jobs, SLOTS, [50.0, 50.0])["time_ratio"] == pytest.approx(110.0 / 100.0)


def test_a_job_that_was_cancelled_because_it_took_too_long_is_unfinished() -> None:
    jobs = [
        past(f"ada-{i}", 0.0, (0.0, "allocate"), (60.0, end)) for i, end in enumerate(("succeed", "vanish"))
    ]
    assert measured(*jobs)["unfinished"] == 1


def test_the_worst_stream_counts_and_early_stops_of_all() -> None:
    keys = tuple(GOALS)
    counts = {"early_vacates", "self_evictions", "order_violations", "pinned_vacates", "unfinished"}
    found = worst_of({"four": dict.fromkeys(keys, 1.0), "six": dict.fromkeys(keys, 3.0)})
    assert found == {key: 4.0 if key in counts else 3.0 for key in keys}


def test_streams_of_several_priorities_are_left_out_of_the_worst_ratio() -> None:
    equal = dict.fromkeys(GOALS, 1.0)
    several = {key: 2.0 for key in GOALS if key != "time_ratio"}
    found = worst_of({"four": equal, "minimums": several})
    assert (found["time_ratio"], found["starved_s"]) == (1.0, 2.0)


def test_spans_follow_each_other() -> None:
    spans = spans_of(past("bob", 1.0, (2.0, "allocate"), (3.0, "succeed")))
    assert all(before.to_s == after.from_s for before, after in pairwise(spans))
    assert [(one.admitted, one.waits, one.holds) for one in spans[1:]] == [
        (True, True, False),
        (True, False, True),
        (False, False, False),
    ]


def test_steps_take_as_long_as_the_law_says_on_average() -> None:
    drawn = [factor(step, 0.3, seed) for seed in range(20) for step in range(1000)]
    assert statistics.mean(drawn) == pytest.approx(1.0, abs=0.05)
    assert statistics.stdev(drawn) == pytest.approx(0.3, abs=0.04)


def test_every_request_of_a_stream_is_about_a_job_that_is_there() -> None:
    for stream in STREAMS.values():
        submits = {job.name: job.at_s for job in stream.jobs}
        assert len(submits) == len(stream.jobs)
        assert all(submits[one.name] < one.at_s for one in stream.pins)
        assert stream.work_s(stream.jobs[0]) == pytest.approx(stream.jobs[0].steps * STEP_S, rel=0.15)
