"""Retries: their budgets and backoff, failures that no longer count, jobs that must not be retried."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.contract.spec import Retry
from headway.contract.views.jobs import Reason
from service.domain.jobs.failures import Ending
from service.domain.jobs.retries import (
    ALIKE_FAILURES,
    FORGIVEN_RAN_S,
    KEPT_FAILURES,
    TAKEN_DOWN_WITHIN_S,
    Failure,
    decide_retry,
    gist,
    has_progressed,
    poison,
    storage_retry,
    with_failure,
)
from tests.unit.service.builders import NOW


def failure(reason: Reason = Reason.RANK_LOST, **fields: Any) -> Failure:
    values: dict[str, Any] = {"said": "x", "ran_s": 5.0, "samples": 0, "checkpoint_samples": None, **fields}
    return Failure(reason=reason, **values)


def at(samples: int, checkpoint: int | None = None) -> Failure:
    return failure(samples=samples, checkpoint_samples=checkpoint)


def lost(*nodes: str, **fields: Any) -> Failure:
    return failure(Reason.NODE_LOST, nodes=nodes, **fields)


@pytest.mark.parametrize(
    ("before", "now", "got_on"),
    [
        ([], at(500, 400), False),
        ([at(100, 50)], at(500, 400), True),
        ([at(100, 50)], at(500, 100), False),
        ([at(100, 50)], at(100, 50), False),
        ([at(100)], at(500), False),
        ([at(500, 400), at(100, 50)], at(450, 420), False),
        ([at(500, 400), at(100, 50)], at(600, 501), True),
        ([failure()], failure(ran_s=FORGIVEN_RAN_S), True),
        ([failure()], failure(ran_s=FORGIVEN_RAN_S - 1), False),
        ([at(7)], failure(samples=7, ran_s=FORGIVEN_RAN_S), False),
    ],
)
def test_only_a_checkpoint_beyond_all_failures_is_getting_on(
    before: list[Failure], now: Failure, *, got_on: bool
) -> None:
    assert has_progressed(before, now) is got_on


@example([(0, 1), *[(0, 0)] * KEPT_FAILURES, (0, 1)])
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30))
def test_a_job_that_dies_at_the_same_place_runs_out_and_one_that_gets_on_does_not(
    tries: list[tuple[int, int]],
) -> None:
    """Whatever it does: between two forgivenesses it has saved more than it ever had when it failed."""
    failures: tuple[Failure, ...] = ()
    furthest_saved = -1
    for samples, saved in tries:
        this = at(max(samples, saved), saved)
        if has_progressed(failures, this):
            assert saved > furthest_saved
            failures = ()
        failures = with_failure(failures, this)
        furthest_saved = max(furthest_saved, saved)
        assert len(failures) <= KEPT_FAILURES


def test_three_nodes_in_a_row_are_enough() -> None:
    assert poison([lost("a"), lost("b")]) is None
    assert poison([lost("a"), lost("a"), lost("b"), lost("a")]) is None
    said = poison([lost("c"), lost("a"), lost("b")])
    assert said is not None
    assert "nodes a, b and c were lost" in said
    assert poison([lost("a", "b"), lost("c")]) is not None


@pytest.mark.parametrize(
    "harmless",
    [
        [lost("a"), failure(), lost("b"), lost("c")],
        [lost("a"), lost("b", ran_s=TAKEN_DOWN_WITHIN_S + 1), lost("c")],
        [lost("a"), lost("b", samples=10), lost("c", samples=20)],
        [lost("a"), lost("b"), lost("c"), failure(Reason.USER_ERROR)],
    ],
)
def test_nodes_are_not_held_against_a_job_that_ran_trained_or_failed_otherwise(
    harmless: list[Failure],
) -> None:
    assert poison(harmless) is None


def test_ranks_that_differ_alike_from_one_checkpoint_on_are_not_started_again() -> None:
    first, second = [
        failure(Reason.REPLICAS_DIFFER, samples=at_, checkpoint_samples=80) for at_ in (160, 120)
    ]
    assert poison([first]) is None
    assert poison([first, second]) is not None
    assert poison([first, failure(samples=90, checkpoint_samples=80), second]) is None
    assert poison([first, replace(second, said="another parameter")]) is None
    assert poison([first, replace(second, checkpoint_samples=90)]) is None


@pytest.mark.parametrize("reason", [Reason.USER_ERROR, Reason.OUT_OF_MEMORY, Reason.START_FAILED])
def test_what_fails_in_the_same_way_for_long_is_stopped(reason: Reason) -> None:
    alike = [failure(reason)] * ALIKE_FAILURES
    assert poison(alike[1:]) is None
    said = poison(alike)
    assert said is not None
    assert f"{ALIKE_FAILURES} times in a row" in said
    assert poison([*alike[1:], failure(reason, said="another")]) is None
    assert poison([*alike[1:], failure(reason, samples=1)]) is None


@pytest.mark.parametrize("reason", [Reason.RANK_LOST, Reason.RETRY_REQUESTED, Reason.HUNG])
def test_what_others_do_to_a_job_has_its_budget_alone(reason: Reason) -> None:
    assert poison([failure(reason)] * KEPT_FAILURES) is None


@settings(max_examples=50)
@given(st.lists(st.sampled_from([failure(Reason.USER_ERROR), lost("a"), lost("b"), at(3, 2)]), max_size=20))
def test_poison_depends_on_the_kept_failures_alone(failures: list[Failure]) -> None:
    kept: tuple[Failure, ...] = ()
    for one in failures:
        kept = with_failure(kept, one)
    assert poison(kept) == poison(failures[-KEPT_FAILURES:])


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("rank 0 failed:\nKeyError: 'x'", "rank 3 failed:\nKeyError: 'x'\n\n", True),
        ("object at 0x7f00ab", "object at 0x55cc", True),
        ("pid 17", "pid 4242", True),
        ("KeyError: 'x'", "KeyError: 'y'", False),
        ("", " \n ", True),
    ],
)
def test_the_gist_of_a_message_is_its_last_line_without_numbers(one: str, other: str, *, alike: bool) -> None:
    assert (gist(one) == gist(other)) is alike


@settings(max_examples=50)
@given(st.text())
def test_any_message_has_a_short_gist(text: str) -> None:
    assert len(gist(text)) <= 200


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("", ""),
        ("\n \n", ""),
        ("ValueError: 12 of 40", "ValueError: # of #"),
        ("a\nb 7\n\n", "b #"),
        ("at 0xDEADbeef", "at #"),
        ("rank0: 1.5e3", "rank#: #.#e#"),
        ("x" * 500, "x" * 200),
        ("1" * 500, "#"),
    ],
)
def test_the_gist_by_examples(message: str, said: str) -> None:
    assert gist(message) == said


@given(st.text(alphabet="ab 01x\n", max_size=60))
@settings(max_examples=50)
def test_a_gist_has_no_numbers_and_is_its_own_gist(message: str) -> None:
    said = gist(message)
    assert not any(mark.isdigit() for mark in said)
    assert gist(said) == said


def test_the_furthest_point_outlives_the_failures_that_are_kept() -> None:
    failures: tuple[Failure, ...] = ()
    for samples in (900, *[10] * (KEPT_FAILURES + 3)):
        failures = with_failure(failures, at(samples))
    assert [one.samples for one in failures] == [10] * KEPT_FAILURES
    assert {one.furthest_samples for one in failures} == {900}
    assert not has_progressed(failures, at(800, 700))
    assert has_progressed(failures, at(950, 901))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=20))
def test_the_furthest_point_is_the_maximum_of_all_failures(samples: list[int]) -> None:
    failures: tuple[Failure, ...] = ()
    for number, one in enumerate(samples, start=1):
        failures = with_failure(failures, at(one))
        assert failures[-1].furthest_samples == max(samples[:number])
        assert failures[-1].samples == one
        assert len(failures) == min(number, KEPT_FAILURES)


@pytest.mark.parametrize(
    ("losses", "poisoned"),
    [
        ([lost("a", ran_s=TAKEN_DOWN_WITHIN_S), lost("b"), lost("c")], True),
        ([lost("a", "b", "c")], True),
        ([lost("a", "b")], False),
        ([lost("a"), lost("b"), lost("c"), lost("d")], True),
        ([lost("a"), lost("b"), lost("c"), failure(nodes=("c",))], True),
        ([lost("a", samples=20), lost("b", samples=10), lost("c", samples=10)], True),
        ([lost("a", samples=10), lost("b", samples=20), lost("c", samples=20)], False),
    ],
    ids=["in time", "at once", "two", "four", "any reason", "fell back", "trained between"],
)
def test_a_job_that_takes_three_nodes_down_is_not_retried(losses: list[Failure], *, poisoned: bool) -> None:
    assert (poison(losses) is not None) is poisoned


def test_no_failures_are_no_poison() -> None:
    assert poison([]) is None
    assert not has_progressed([], at(1, 1))


@pytest.mark.parametrize(
    ("reason", "differs"),
    [(Reason.RANK_LOST, {}), (Reason.USER_ERROR, {"said": "y"}), (Reason.USER_ERROR, {"samples": -1})],
    ids=["other reason", "other message", "trained in between"],
)
def test_one_failure_of_another_kind_in_the_row_is_enough_for_a_retry(
    reason: Reason, differs: dict[str, Any]
) -> None:
    alike = [failure(Reason.USER_ERROR)] * (ALIKE_FAILURES - 1)
    other = failure(reason, **differs)
    assert poison([other, *alike]) is None
    assert poison([failure(Reason.USER_ERROR), *alike]) is not None


counts = st.integers(0, 1001)


@settings(max_examples=30)
@given(st.sampled_from(Ending), counts, counts, st.integers(0, 1000), st.integers(0, 100))
def test_retries_keep_to_their_own_budget(
    ending: Ending, infrastructure: int, user: int, allowed: int, allowed_user: int
) -> None:
    decision = decide_retry(
        ending,
        Retry(infrastructure=allowed, user_errors=allowed_user),
        infrastructure_failures=infrastructure,
        user_errors=user,
        now=NOW,
    )
    expected = {
        Ending.INFRASTRUCTURE: infrastructure <= allowed,
        Ending.USER_ERROR: user <= allowed_user,
    }.get(ending, False)
    assert decision.again is expected
    assert timedelta(0) <= decision.not_before - NOW <= timedelta(seconds=120)


@pytest.mark.parametrize(
    ("failures", "wait_s"), [(1, 0), (2, 1), (3, 2), (4, 4), (8, 64), (9, 120), (10, 120), (1000, 120)]
)
def test_the_first_retry_is_immediate_and_later_ones_wait_twice_as_long(failures: int, wait_s: int) -> None:
    decision = decide_retry(
        Ending.INFRASTRUCTURE,
        Retry(infrastructure=1000),
        infrastructure_failures=failures,
        user_errors=0,
        now=NOW,
    )
    assert decision.not_before - NOW == timedelta(seconds=wait_s)


def test_by_default_a_user_error_is_final_and_infrastructure_is_tried_three_times() -> None:
    def again(ending: Ending, failures: int) -> bool:
        return decide_retry(
            ending, Retry(), infrastructure_failures=failures, user_errors=failures, now=NOW
        ).again

    assert not again(Ending.USER_ERROR, 1)
    assert [again(Ending.INFRASTRUCTURE, failures) for failures in (1, 2, 3, 4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("ending", "spent", "budget"),
    [
        (Ending.INFRASTRUCTURE, 2, 3),
        (Ending.USER_ERROR, 5, 1),
        (Ending.HOPELESS, 1, 0),
        (Ending.STOPPED, 1, 0),
        (Ending.DONE, 1, 0),
    ],
)
def test_a_decision_explains_itself_by_its_budget(ending: Ending, spent: int, budget: int) -> None:
    decision = decide_retry(
        ending,
        Retry(infrastructure=3, user_errors=1),
        infrastructure_failures=2,
        user_errors=5,
        now=NOW,
    )
    assert (decision.spent, decision.budget, decision.again) == (spent, budget, spent <= budget)


@pytest.mark.parametrize(("in_a_row", "wait_s"), [(1, 1), (2, 2), (3, 4), (7, 64), (8, 120)])
def test_start_without_storage_waits_twice_as_long_each_time(in_a_row: int, wait_s: int) -> None:
    away = [failure(Reason.STORAGE_UNAVAILABLE)] * in_a_row
    count, not_before = storage_retry([failure(Reason.USER_ERROR), *away], NOW)
    assert (count, not_before - NOW) == (in_a_row, timedelta(seconds=wait_s))
