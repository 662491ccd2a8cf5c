"""Tests of the speed of a job on machines that it may never have used."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobProgress
from service.domain.cluster.snapshot import Measurement
from service.domain.rental.catalogue import tflops_of
from service.domain.rental.speeds import POWER, REFERENCE, Basis, Given, Shape, relative_tflops, speeds_at
from service.usecases.jobs.planned import planned

JOB = planned(JobSpec(name="gpt-1", run="python train.py"), datetime(2026, 11, 21, tzinfo=UTC))
KINDS = ("cpu", "t4", "a10g", "v100", "h100", "none-such")
MOST_RATIO = 30


def measured(kind: str, slots: int, samples_per_s: float) -> Measurement:
    return Measurement(
        device_kind=kind,
        slots=slots,
        samples_per_s=samples_per_s,
        steps=500,
        global_batch=64,
        local_batch=64 // slots,
        step_s=64 / samples_per_s,
    )


def test_without_measurements_speed_is_by_tflops_and_a_law() -> None:
    found = speeds_at(JOB, (), [Shape(REFERENCE, 1, 1), Shape(REFERENCE, 8, 8), Shape("h100", 1, 1)])
    assert [one.basis for one in found.values()] == [Basis.ASSUMED] * 3
    assert [one.goodput for one in found.values()] == pytest.approx([1, 8**POWER, 989 / 65])
    assert all(one.low < one.goodput / 2 for one in found.values())


def test_what_was_measured_counts_on_its_kind_and_is_carried_over_to_others() -> None:
    shapes = [Shape("t4", 1, 1), Shape("t4", 2, 1), Shape("v100", 1, 1), Shape("v100", 2, 1)]
    found = speeds_at(JOB, [measured("t4", 1, 100.0), measured("t4", 2, 180.0)], shapes, Given("t4", 9.0))
    own, double, other, other_double = (found[shape] for shape in shapes)
    assert (own.basis, other.basis) == (Basis.MEASURED, Basis.TRANSFERRED)
    assert own.goodput == pytest.approx(100, rel=0.1)
    assert double.goodput == pytest.approx(180, rel=0.1)
    assert other.goodput / own.goodput == pytest.approx(125 / 65, rel=0.05)
    assert other_double.goodput / double.goodput == pytest.approx(125 / 65, rel=0.05)
    assert other.low / other.goodput < own.low / own.goodput


def test_a_measurement_that_cannot_be_true_counts_for_nothing() -> None:
    found = speeds_at(JOB, [measured("t4", 1, 1e300)], [Shape("t4", 1, 1)])
    assert found[Shape("t4", 1, 1)].basis is Basis.ASSUMED


def test_a_job_seen_on_cpus_is_not_taken_to_be_hundreds_of_times_as_fast_elsewhere() -> None:
    shapes = [Shape("cpu", 1, 1), Shape("h100", 1, 1)]
    found = speeds_at(JOB, [measured("cpu", 1, 10.0)], shapes)
    assert found[shapes[1]].goodput / found[shapes[0]].goodput == pytest.approx(30, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "to", "ratio"),
    [
        ("t4", "t4", 1.0),
        ("v100", "t4", 125 / 65),
        ("t4", "v100", 65 / 125),
        ("h100", "a100", 989 / 312),
        ("h100", "cpu", MOST_RATIO),
        ("cpu", "h100", 1 / MOST_RATIO),
        ("h100", "m60", MOST_RATIO),
        ("none-such", "t4", 1.0),
        ("t4", "none-such", 1.0),
    ],
)
def test_kinds_compare_by_tflops_within_a_bound(kind: str, to: str, ratio: float) -> None:
    assert relative_tflops(kind, to) == pytest.approx(ratio)


@settings(max_examples=60)
@given(st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_ratios_of_kinds_are_inverse_and_bounded(one: str, other: str) -> None:
    ratio = relative_tflops(one, other)
    assert ratio * relative_tflops(other, one) == pytest.approx(1.0)
    assert 1 / MOST_RATIO <= ratio <= MOST_RATIO
    if tflops_of(one) > tflops_of(other) > 0:
        assert ratio > 1


def test_no_shapes_have_no_speeds() -> None:
    assert speeds_at(JOB, [measured("t4", 1, 100.0)], []) == {}


@pytest.mark.parametrize(
    ("shape", "samples_per_s"),
    [
        (Shape("t4", 1, 1), 50.0),
        (Shape("t4", 4, 1), 50.0 * 4**POWER),
        (Shape("t4", 4, 4), 50.0 * 4**POWER),
        (Shape("v100", 1, 1), 50.0 * 125 / 65),
        (Shape("none-such", 2, 1), 50.0 * 2**POWER),
    ],
)
def test_a_speed_of_the_user_is_extended_by_the_law(shape: Shape, samples_per_s: float) -> None:
    (found,) = speeds_at(JOB, (), [shape], Given("t4", 50.0)).values()
    assert found.basis is Basis.GIVEN
    assert found.goodput == pytest.approx(samples_per_s)


def test_the_tenth_percentile_of_a_guess_is_by_a_spread_of_seven_tenths() -> None:
    """P10 = P50 * exp(-1.2816 * 0.7) for a log-normal distribution."""
    (found,) = speeds_at(JOB, (), [Shape(REFERENCE, 1, 1)]).values()
    assert found.low / found.goodput == pytest.approx(math.exp(-1.2816 * 0.7))


@settings(max_examples=40)
@given(st.sampled_from(KINDS), st.integers(1, 64), st.integers(1, 64), st.none() | st.floats(1e-3, 1e6))
def test_by_the_law_more_slots_are_faster_but_less_than_in_proportion(
    kind: str, slots: int, more: int, given_rate: float | None
) -> None:
    given_speed = None if given_rate is None else Given("t4", given_rate)
    small, large = Shape(kind, slots, 1), Shape(kind, slots + more, 1)
    found = speeds_at(JOB, (), [small, large], given_speed)
    ratio = found[large].goodput / found[small].goodput
    assert 1 < ratio < (slots + more) / slots
    assert all(0 < one.low < one.goodput for one in found.values())


def test_a_measurement_precedes_a_speed_of_the_user() -> None:
    shape = Shape("t4", 1, 1)
    found = speeds_at(JOB, [measured("t4", 1, 100.0)], [shape], Given("t4", 5000.0))[shape]
    assert found.basis is Basis.MEASURED
    assert found.goodput == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize("samples_per_s", [0.0, -5.0, math.nan, math.inf, 1e300])
def test_only_believable_measurements_count(samples_per_s: float) -> None:
    broken = Measurement("t4", 1, samples_per_s, 500)
    shape = Shape("t4", 1, 1)
    assert speeds_at(JOB, [broken], [shape]) == speeds_at(JOB, [], [shape])
    mixed = speeds_at(JOB, [broken, measured("t4", 1, 100.0)], [shape])[shape]
    assert (mixed.basis, mixed.goodput) == (Basis.MEASURED, pytest.approx(100, rel=0.1))


def test_a_model_is_borrowed_from_the_kind_that_was_tried_on_most_slots() -> None:
    """The V100 was measured up to four slots, where it scales well, and the T4 on one."""
    on_v100 = [measured("v100", slots, 200.0 * slots) for slots in (1, 2, 4)]
    shapes = [Shape("a10g", 1, 1), Shape("a10g", 4, 1), Shape("v100", 1, 1)]
    found = speeds_at(JOB, [*on_v100, measured("t4", 1, 400.0)], shapes)
    borrowed, wide, own = (found[shape] for shape in shapes)
    assert (borrowed.basis, own.basis) == (Basis.TRANSFERRED, Basis.MEASURED)
    assert borrowed.goodput / own.goodput == pytest.approx(70 / 125, rel=0.05)
    assert wide.goodput / borrowed.goodput == pytest.approx(4, rel=0.1)


def test_a_model_of_several_nodes_precedes_one_of_more_slots() -> None:
    """Measurements on 8 slots of one node do not show what a second node costs."""
    one_node = [measured("t4", slots, 100.0 * slots) for slots in (1, 8)]
    two_nodes = [
        Measurement(
            "v100", slots, 150.0 * slots, 500, global_batch=64, local_batch=64 // slots,
            step_s=64 / (150.0 * slots), nodes=slots,
        )
        for slots in (1, 2)
    ]  # fmt: skip
    shapes = [Shape("a10g", 1, 1), Shape("v100", 1, 1)]
    found = speeds_at(JOB, [*one_node, *two_nodes], shapes)
    assert found[shapes[0]].goodput / found[shapes[1]].goodput == pytest.approx(70 / 125, rel=0.05)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["t4", "v100"]), st.sampled_from([1, 2, 4]), st.floats(1, 1e4)), max_size=4
    )
)
def test_every_shape_has_a_finite_speed_with_a_lower_tenth_percentile(
    rates: list[tuple[str, int, float]],
) -> None:
    shapes = [Shape(kind, slots, 1) for kind in ("t4", "v100", "h100") for slots in (1, 2, 8)]
    found = speeds_at(JOB, [measured(*one) for one in rates], shapes)
    assert list(found) == shapes
    for shape, one in found.items():
        assert 0 < one.low <= one.goodput < math.inf
        tried = any(kind == shape.kind for kind, _, _ in rates)
        expected = Basis.MEASURED if tried else Basis.TRANSFERRED if rates else Basis.ASSUMED
        assert one.basis is expected


def test_an_adaptive_batch_counts_in_the_unit_of_the_job_s_work() -> None:
    """Four slots take 64 samples in 0.29 s, mostly overhead. With so much gradient noise (a scale of 6,400) a
    batch of 512 pays: it takes more samples a second, each of which makes less progress.
    """
    spec = {"batch": {"global": 64, "policy": "adaptive", "max_global": 512}}
    adaptive = planned(JobSpec.model_validate({"name": "gpt-1", "run": "true", **spec}), JOB.submitted_at)
    rates = {1: 100.0, 2: 160.0, 4: 220.0}
    noisy = [
        replace(measured("t4", slots, rate), gradient_sqr=1.0, gradient_var=6400.0)
        for slots, rate in rates.items()
    ]
    shape = Shape("t4", 4, 1)
    told = replace(adaptive, progress=JobProgress(total_samples=10**6))
    plain, adapted, as_read = (speeds_at(job, noisy, [shape])[shape] for job in (JOB, adaptive, told))
    assert plain.goodput == pytest.approx(220, rel=0.02)
    assert as_read.goodput == pytest.approx(465, rel=0.05), "its script counts samples as read"
    assert adapted.goodput == pytest.approx(465 * (6400 + 64) / (6400 + 512), rel=0.05)
    assert adapted.low / adapted.goodput == pytest.approx(plain.low / plain.goodput, rel=0.05)
