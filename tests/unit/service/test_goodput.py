"""Goodput from measurements, believable or not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.cluster import Measurement
from service.domain.perf.goodput import (
    EXPLORE_FACTOR,
    PRIOR_EXPONENT,
    goodput_table,
    predict,
    throughput_by_size,
    worth_exploring,
)
from tests.unit.service.builders import wild_floats

sizes = st.integers(1, 4096)
speeds = st.floats(0.01, 1e6)
curves = st.dictionaries(sizes, speeds, min_size=1, max_size=5)


def measured(*points: tuple[int, float], kind: str = "cpu", steps: int = 20) -> tuple[Measurement, ...]:
    return tuple(Measurement(kind, slots, speed, steps) for slots, speed in points)


@pytest.mark.parametrize("speed", [math.nan, math.inf, -math.inf, -1.0, 0.0, 5e-324, 1e300])
def test_a_speed_that_cannot_be_is_left_out(speed: float) -> None:
    assert throughput_by_size(measured((1, speed), (2, 50.0)), "cpu") == {2: 50.0}


@pytest.mark.parametrize("steps", [0, -5])
def test_a_measurement_without_steps_is_left_out(steps: int) -> None:
    assert throughput_by_size(measured((1, 10.0), steps=steps), "cpu") == {}


def test_kinds_are_kept_apart() -> None:
    both = (*measured((1, 10.0)), *measured((1, 100.0), kind="a100"))
    assert throughput_by_size(both, "cpu") == {1: 10.0}
    assert throughput_by_size(both, "a100") == {1: 100.0}
    assert throughput_by_size(both, "h100") == {}


def test_several_measurements_of_one_size_are_weighted_by_steps() -> None:
    found = (*measured((2, 10.0), steps=30), *measured((2, 20.0), steps=10))
    assert throughput_by_size(found, "cpu") == {2: pytest.approx(12.5)}


@given(curves)
def test_prediction_passes_through_every_measured_point(curve: dict[int, float]) -> None:
    for slots, speed in curve.items():
        assert predict(curve, slots) == pytest.approx(speed)


@given(curves, sizes)
def test_prediction_lies_between_its_neighbours(curve: dict[int, float], slots: int) -> None:
    found = predict(curve, slots)
    assert found is not None
    below = [size for size in curve if size <= slots]
    above = [size for size in curve if size >= slots]
    if below and above:
        ends = curve[max(below)], curve[min(above)]
        assert min(ends) * (1 - 1e-9) <= found <= max(ends) * (1 + 1e-9)
    else:
        nearest = max(below) if below else min(above)
        assert found == pytest.approx(curve[nearest] * (slots / nearest) ** PRIOR_EXPONENT)


@given(curves, sizes, st.floats(1.0, 1e3), st.data())
def test_a_faster_measurement_never_lowers_a_prediction(
    curve: dict[int, float], slots: int, factor: float, data: st.DataObject
) -> None:
    faster = dict(curve)
    faster[data.draw(st.sampled_from(sorted(curve)))] *= factor
    before, after = predict(curve, slots), predict(faster, slots)
    assert before is not None
    assert after is not None
    assert after >= before * (1 - 1e-9)


def test_nothing_measured_nothing_predicted() -> None:
    assert predict({}, 4) is None


@given(
    st.lists(st.builds(Measurement, st.just("cpu"), sizes, wild_floats, st.integers(-1, 10**6)), max_size=6),
    st.lists(sizes, max_size=6),
)
def test_a_table_holds_finite_positive_numbers_whatever_was_reported(
    measurements: list[Measurement], asked: list[int]
) -> None:
    table = goodput_table(measurements, "cpu", asked)
    assert [entry.slots for entry in table] == asked
    for entry in table:
        assert math.isfinite(entry.speedup)
        assert entry.speedup > 0
        if entry.goodput_samples_per_s is not None:
            assert math.isfinite(entry.goodput_samples_per_s)
            assert entry.goodput_samples_per_s > 0
    assert all(entry.goodput_samples_per_s is not None for entry in table if entry.measured)


def test_speedup_is_against_one_slot() -> None:
    table = goodput_table(measured((1, 100.0), (4, 250.0)), "cpu", (1, 2, 4, 8))
    assert [entry.measured for entry in table] == [True, False, True, False]
    assert [round(entry.speedup, 2) for entry in table] == [1.0, 1.58, 2.5, 4.67]


def test_without_measurements_the_prior_alone_speaks() -> None:
    (two,) = goodput_table((), "cpu", (2,))
    assert (two.goodput_samples_per_s, two.speedup, two.measured) == (None, 2**PRIOR_EXPONENT, False)


allowed = st.lists(st.integers(1, 64), min_size=1, unique=True).map(lambda found: tuple(sorted(found)))


@given(allowed)
def test_an_unknown_job_starts_at_its_smallest_size(choices: tuple[int, ...]) -> None:
    assert worth_exploring((), "cpu", choices) == choices[:1]


@given(allowed, st.integers(1, 64))
def test_exploring_at_most_doubles_or_takes_the_next_size(choices: tuple[int, ...], largest: int) -> None:
    found = worth_exploring(measured((largest, 10.0)), "cpu", choices)
    beyond = [size for size in choices if size > largest]
    assert set(found) <= set(choices)
    assert found[0] == choices[0]
    assert {size for size in choices if size <= EXPLORE_FACTOR * largest} <= set(found)
    assert all(size <= EXPLORE_FACTOR * largest for size in set(found) - set(beyond[:1]) - {choices[0]})


@given(allowed)
def test_every_allowed_size_is_reached_in_the_end(choices: tuple[int, ...]) -> None:
    """A job of 2 or 16 slots must not stay at 2 because nothing lies between."""
    largest = choices[0]
    for _ in choices:
        largest = max(worth_exploring(measured((largest, 10.0)), "cpu", choices))
    assert largest == choices[-1]


def test_what_is_known_of_another_kind_does_not_count() -> None:
    assert worth_exploring(measured((8, 10.0), kind="a100"), "cpu", (1, 2, 4)) == (1,)


def test_no_sizes() -> None:
    assert worth_exploring((), "cpu", ()) == ()
