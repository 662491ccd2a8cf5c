"""Early ends of trials by asynchronous successive halving."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.runtime import Metrics
from headway.contract.spec_sweep import Asha
from headway.contract.views.jobs import JobProgress
from service.domain.jobs.halving import (
    Halving,
    RungValues,
    ends,
    progress_at,
    progress_of,
    rungs_reached,
)

VALUES = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0]) | st.floats(-1e6, 1e6)
TRIALS = st.lists(st.lists(VALUES, max_size=4), max_size=30)


def rule(reduction: int = 3, *, minimise: bool = True, **fields: Any) -> Halving:
    asha = Asha.model_validate({"min_progress": 1, "reduction": reduction, **fields})
    return Halving(metric="loss", minimise=minimise, asha=asha)


def trials(*values: list[float]) -> list[RungValues]:
    return [RungValues(number, found) for number, found in enumerate(values, start=1)]


def better_there(found: list[RungValues], one: RungValues, *, minimise: bool = True) -> tuple[int, int]:
    """Numbers of the trials that are better at the highest rung of a trial, and of all that are there."""
    rung = len(one.values) - 1
    there = [other for other in found if len(other.values) > rung]
    sign = 1 if minimise else -1
    key = (sign * one.values[rung], one.number)
    return sum((sign * other.values[rung], other.number) < key for other in there), len(there)


@given(TRIALS, st.integers(2, 10), st.booleans())
def test_exactly_the_trials_outside_the_best_share_of_their_rung_end(
    values: list[list[float]], reduction: int, minimise: bool
) -> None:
    found = trials(*values)
    ended = ends(rule(reduction, minimise=minimise), found)
    for one in found:
        better, there = better_there(found, one, minimise=minimise) if one.values else (0, 0)
        outside = there >= reduction and better * reduction >= there
        assert (one.number in ended) == outside, (one, ended)


@given(TRIALS, st.integers(2, 10))
def test_maximise_mirrors_minimise(values: list[list[float]], reduction: int) -> None:
    mirrored = [[-value for value in found] for found in values]
    lower = ends(rule(reduction), trials(*values))
    higher = ends(rule(reduction, minimise=False), trials(*mirrored))
    assert lower.keys() == higher.keys()


@given(st.integers(3, 30), st.integers(2, 5))
def test_equal_values_keep_the_lower_numbers(count: int, reduction: int) -> None:
    ended = ends(rule(reduction), trials(*[[1.0]] * count))
    kept = -(-count // reduction)
    assert sorted(ended) == (list(range(kept + 1, count + 1)) if count >= reduction else [])


@given(st.lists(VALUES, min_size=3, max_size=20), st.randoms(use_true_random=False), st.integers(2, 5))
def test_order_of_reports_never_saves_a_trial_outside_the_best_share_of_all(
    values: list[float], random: Random, reduction: int
) -> None:
    order = list(range(len(values)))
    random.shuffle(order)
    arrived: dict[int, float] = {}
    ended: set[int] = set()
    for index in order:
        arrived[index] = values[index]
        found = [
            RungValues(number + 1, [value], judged=number + 1 not in ended)
            for number, value in sorted(arrived.items())
        ]
        ended |= ends(rule(reduction), found).keys()
    at_once = ends(rule(reduction), trials(*[[value] for value in values])).keys()
    assert at_once <= ended
    assert len(ended) < len(values)


@given(TRIALS, st.randoms(use_true_random=False))
def test_order_of_the_trials_changes_nothing(values: list[list[float]], random: Random) -> None:
    found = trials(*values)
    shuffled = random.sample(found, len(found))
    assert dict(ends(rule(), shuffled)) == dict(ends(rule(), found))


@given(TRIALS)
def test_unjudged_trials_count_and_do_not_end(values: list[list[float]]) -> None:
    found = trials(*values)
    half = [RungValues(one.number, one.values, judged=one.number % 2 == 0) for one in found]
    expected = {number: why for number, why in ends(rule(), found).items() if number % 2 == 0}
    assert ends(rule(), half) == expected


def test_a_trial_is_judged_by_its_highest_rung_alone() -> None:
    found = trials([9.0, 1.0], [1.0], [2.0], [3.0])
    assert sorted(ends(rule(), found)) == [4]  # trial 1 is the worst at rung 0, and has passed it


def test_reasons_name_progress_value_bound_and_count() -> None:
    losses = [[2.0], [1.0], [1.2], [1.1], [3.0], [4.0], [1.9], [5.0], [6.0]]
    why = ends(rule(min_progress=3), trials(*losses))
    assert why[7] == (
        "trial 7 ends at 3 epochs: its loss 1.9 is not among the best third (1.2 or lower) of 9 trials there"
    )
    tied = ends(rule(2, minimise=False, unit="steps"), trials([0.5], [0.5]))
    assert tied == {
        2: "trial 2 ends at 1 step: its loss 0.5 is not among the best half (0.5, of equal values the first) of 2 trials there"
    }


@given(st.integers(1, 10**6), st.integers(2, 10), st.integers(0, 2**53))
def test_rungs_reached_are_those_at_or_below_the_progress(first: int, reduction: int, progress: int) -> None:
    asha = Asha(min_progress=first, reduction=reduction)
    reached = rungs_reached(asha, progress)
    assert all(progress_at(asha, rung) <= progress for rung in range(reached))
    assert progress_at(asha, reached) > progress


@pytest.mark.parametrize(
    ("unit", "progress", "expected"),
    [
        ("epochs", {}, 2),
        ("epochs", {"epochs_audited": 3}, 3),
        ("samples", {}, 640),
        ("samples", {"unit": "steps"}, None),
        ("steps", {"unit": "steps"}, 640),
        ("steps", {"unit": "batches"}, 640),
        ("steps", {"train_step": 10}, 10),
        ("steps", {}, None),
    ],
)
def test_progress_is_counted_in_the_unit_of_the_rule(
    unit: Any, progress: dict[str, Any], expected: int | None
) -> None:
    told = Metrics(rank=0, generation=1, at_s=0.0, epoch=2, samples=640, values={"loss": 1.0})
    asha = Asha(min_progress=1, unit=unit)
    assert progress_of(asha, JobProgress(**progress), told) == expected
