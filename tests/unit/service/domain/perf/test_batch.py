"""Tests of the choice of the global batch from measured speed and noise, including implausible measurements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.views.jobs import JobProgress, JobState, Reason
from service.domain.allocation.decision.plan import Action, Decision, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Measurement
from service.domain.jobs.job import Job
from service.domain.perf.batch import (
    ENOUGH_STEPS,
    EXPLORE_FACTOR,
    MIN_GAIN,
    TRIAL_STEPS,
    BatchChoice,
    BatchSpeed,
    Noise,
    choose_batch,
    next_batch,
    noise_of,
    speeds_of,
)
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of, wild_floats

LOUD, QUIET = Noise(sqr=1.0, var=1e6), Noise(sqr=1.0, var=1.0)


def chosen(present: int, speeds: dict[int, float], noise: Noise | None = LOUD, **fields: Any) -> BatchChoice:
    """Return the choice for these samples per second by batch, each measured over `steps`."""
    steps = fields.pop("steps", TRIAL_STEPS)
    return next_batch(
        present,
        **{
            "reference": 64,
            "most": 1024,
            "fresh_steps": TRIAL_STEPS,
            "speeds": {batch: BatchSpeed(speed, steps) for batch, speed in speeds.items()},
            "noise": noise,
            **fields,
        },
    )


def test_a_policy_that_keeps_batches_takes_a_job_back_to_its_own() -> None:
    spec = spec_of(batch={"policy": "adaptive", "global": 64, "max_global": 512}, elastic={"max": 1})
    progress = JobProgress(global_batch=256, max_global_batch=512)
    job = job_of("j", JobState.RUNNING, spec=spec, live=True, progress=progress)
    snapshot = snapshot_of([node_of("n", 1)], [job], {"j": [("n", 0)]})
    assert choose_batch(job, snapshot) == BatchChoice(256, "not measured yet")
    keeps = replace(snapshot, keeps_batch=True)
    assert choose_batch(job, keeps) == BatchChoice(64, "the policy keeps the batch of the job file")
    small = replace(job, progress=JobProgress(global_batch=256, max_global_batch=32))
    assert choose_batch(small, keeps) == BatchChoice(32, "the policy keeps the batch of the job file")
    (decision,) = decide(build_round(keeps), Goodput(), solve).decisions
    assert (decision.action, decision.reason, decision.global_batch) == (
        Action.ADAPT,
        Reason.BETTER_BATCH,
        64,
    )
    fixed = replace(job, spec=spec_of(batch={"global": 64}))
    assert choose_batch(fixed, keeps) is None


def test_noise_makes_a_larger_batch_worth_a_try() -> None:
    choice = chosen(64, {64: 1000.0})
    assert choice.global_batch == 128
    assert "noise scale is 1,000,000 samples" in choice.reason


def test_without_noise_a_larger_batch_is_not_tried() -> None:
    assert chosen(64, {64: 1000.0}, QUIET).global_batch == 64


@pytest.mark.parametrize("noise", [None, Noise(0.0, 0.0), Noise(math.nan, 1.0), Noise(1.0, math.inf)])
def test_never_without_an_estimate_of_the_noise(noise: Noise | None) -> None:
    choice = chosen(64, {64: 1.0, 128: 100.0}, noise)
    assert (choice.global_batch, choice.reason) == (64, "the gradient noise is unknown")


def test_never_before_enough_was_measured_since_the_last_change() -> None:
    choice = chosen(64, {64: 1.0, 128: 100.0}, fresh_steps=ENOUGH_STEPS - 1)
    assert (choice.global_batch, choice.reason) == (64, "measured for 99 of 100 steps")


def test_a_trial_that_is_no_more_than_five_percent_better_is_ended() -> None:
    choice = chosen(128, {64: 1000.0, 128: 1040.0}, steps=ENOUGH_STEPS)
    assert (choice.global_batch, choice.reason) == (
        64,
        "128 was tried and is 4% better, but must be 5% better",
    )
    worse = chosen(128, {64: 1000.0, 128: 900.0}, steps=ENOUGH_STEPS)
    assert (worse.global_batch, "10% worse" in worse.reason) == (64, True)


def test_a_trial_that_is_better_goes_on_to_the_next_size() -> None:
    assert chosen(128, {64: 1000.0, 128: 1900.0}, steps=ENOUGH_STEPS).global_batch == 256
    assert chosen(128, {64: 1000.0, 128: 1900.0}, steps=ENOUGH_STEPS, most=128).global_batch == 128
    assert chosen(128, {64: 1000.0, 128: 1900.0}, steps=ENOUGH_STEPS, most=200).global_batch == 200


def test_what_was_tried_in_vain_is_not_tried_again() -> None:
    choice = chosen(64, {64: 1000.0, 128: 1040.0})
    assert (choice.global_batch, choice.reason) == (64, "no other batch promises more goodput")


def test_after_its_trial_a_batch_stays_until_another_is_five_percent_better() -> None:
    assert chosen(128, {64: 1000.0, 128: 1040.0, 256: 900.0}).global_batch == 128
    assert chosen(128, {64: 1000.0, 128: 960.0, 256: 900.0}).global_batch == 128
    assert chosen(128, {64: 1000.0, 128: 940.0, 256: 900.0}).global_batch == 64


def test_returns_to_the_best_known_however_far() -> None:
    choice = chosen(64, {64: 1000.0, 128: 1500.0, 256: 2000.0})
    assert (choice.global_batch, "100% better, as measured" in choice.reason) == (256, True)


def test_a_smaller_batch_is_tried_when_the_noise_is_gone() -> None:
    """The members have changed, so only the present batch was measured at this size."""
    assert chosen(512, {512: 1000.0}, Noise(1.0, 100.0)).global_batch == 256
    assert chosen(100, {100: 1000.0}, QUIET).global_batch == 64


def test_efficiency_is_that_of_the_paper() -> None:
    noise = Noise(sqr=2.0, var=600.0)
    assert noise.scale == 300.0
    assert noise.efficiency(128, 64) == pytest.approx((300 + 64) / (300 + 128))
    assert Noise(0.0, 1.0).efficiency(1024, 64) == 1.0


numbers = st.one_of(st.floats(0.0, 1e12), wild_floats)
batches = st.integers(1, 4096)
noises = st.none() | st.builds(Noise, sqr=numbers, var=numbers)
speed_tables = st.dictionaries(
    batches,
    st.builds(BatchSpeed, samples_per_s=st.floats(1e-9, 1e15), steps=st.integers(1, 1000)),
    max_size=6,
)


@settings(max_examples=50)
@given(batches, batches, st.integers(0, 4096), st.integers(0, 300), speed_tables, noises)
def test_any_input_gives_a_batch_within_the_bounds_and_a_reason(
    present: int, reference: int, more: int, fresh: int, speeds: dict[int, BatchSpeed], noise: Noise | None
) -> None:
    most = reference + more
    choice = next_batch(
        present, reference=reference, most=most, fresh_steps=fresh, speeds=speeds, noise=noise
    )
    assert choice.reason
    if choice.global_batch == present:
        return
    assert reference <= choice.global_batch <= most
    assert fresh >= ENOUGH_STEPS
    assert noise is not None
    known = choice.global_batch in speeds and speeds[choice.global_batch].steps >= ENOUGH_STEPS
    explores = present >= reference and not known
    assert not explores or choice.global_batch <= max(EXPLORE_FACTOR * present, reference)


@settings(max_examples=40)
@given(
    st.floats(0.01, 1e6),
    st.floats(1e-6, 1.0),
    st.floats(0.1, 1e5),
    st.integers(1, 64),
    st.integers(0, 10),
)
def test_with_any_machine_and_noise_it_settles_on_a_good_batch(
    step_s: float, sample_s: float, scale: float, reference: int, doublings: int
) -> None:
    """Steps take a fixed time and a time per sample, and every chosen batch is measured."""
    most, noise = reference * 2**doublings, Noise(1.0, scale)
    speeds: dict[int, BatchSpeed] = {}
    present, changes = reference, 0
    for _ in range(3 * doublings + 10):
        steps = speeds[present].steps if present in speeds else 0
        speeds[present] = BatchSpeed(present / (step_s + present * sample_s), steps + ENOUGH_STEPS)
        wanted = next_batch(
            present,
            reference=reference,
            most=most,
            fresh_steps=ENOUGH_STEPS,
            speeds=speeds,
            noise=noise,
        ).global_batch
        changes += wanted != present
        present = wanted
    assert changes <= doublings + 1, "to and fro"
    goodput = {batch: one.samples_per_s * noise.efficiency(batch, reference) for batch, one in speeds.items()}
    assert goodput[present] * MIN_GAIN >= max(goodput.values()) * (1 - 1e-9)


def measurement(batch: int, speed: float = 1000.0, steps: int = 200, **fields: Any) -> Measurement:
    return Measurement(
        **{
            "device_kind": "cpu",
            "slots": 1,
            "samples_per_s": speed,
            "steps": steps,
            "generation": 3,
            "global_batch": batch,
            "gradient_sqr": 1.0,
            "gradient_var": 1e6,
            **fields,
        }
    )


def test_speeds_of_one_size_and_kind_by_batch() -> None:
    found = speeds_of(
        (
            measurement(64, 100.0, 100),
            measurement(64, 300.0, 100, generation=1),
            measurement(128, 500.0),
            measurement(64, 900.0, slots=2),
            measurement(64, 900.0, nodes=2),
            measurement(64, 900.0, device_kind="a100"),
            measurement(64, math.nan),
            measurement(64, 900.0, steps=0),
        ),
        device_kind="cpu",
        slots=1,
        nodes=1,
    )
    assert found == {64: BatchSpeed(pytest.approx(150.0), 200), 128: BatchSpeed(pytest.approx(500.0), 200)}


def test_noise_that_was_not_measured_is_not_known() -> None:
    assert noise_of(measurement(192, gradient_sqr=None)) is None


@pytest.mark.parametrize(
    ("samples_per_s", "steps", "true"),
    [
        (100.0, 1, True),
        (math.nan, 9, False),
        (math.inf, 9, False),
        (-1.0, 9, False),
        (0.0, 9, False),
        (1.0, 0, False),
    ],
)
def test_what_cannot_be_true_is_not_believed(samples_per_s: float, steps: int, true: bool) -> None:
    assert Measurement("cpu", 1, samples_per_s, steps).believable is true


def adaptive(**fields: Any) -> Job:
    batch = {"policy": "adaptive", "global": 64, "max_global": 512}
    spec = spec_of("job", batch={**batch, **fields.pop("batch", {})}, elastic=fields.pop("elastic", {}))
    progress = JobProgress(global_batch=64, max_global_batch=512)
    defaults = {"age_s": 60.0, "generation": 3, "live": True, "progress": progress}
    return job_of("job", JobState.RUNNING, spec=spec, **{**defaults, **fields})


def decision_about(job: Job, *measured: Measurement) -> Decision:
    snapshot = snapshot_of(
        [node_of("a", 1)], [job], held={"job": [("a", 0)]}, measurements={"job": measured or ()}
    )
    (decision,) = decide(build_round(snapshot), Goodput(), solve).decisions
    return decision


def test_a_round_changes_the_batch_of_a_job_that_keeps_its_slots() -> None:
    decision = decision_about(adaptive(), measurement(64))
    assert (decision.action, decision.global_batch) == (Action.ADAPT, 128)
    assert decision.reason is Reason.BETTER_BATCH
    assert decision.message.startswith("takes 128 samples a step instead of 64: tried, since the noise scale")
    assert decision.allocation == {"a": (0,)}


@pytest.mark.parametrize(
    "job",
    [
        adaptive(batch={"policy": "fixed", "max_global": None}),
        adaptive(elastic={"resize": "restart"}),
        adaptive(live=False),
        adaptive(state_since=adaptive().state_since, progress=JobProgress(global_batch=64)),
        adaptive(progress=JobProgress(max_global_batch=512)),
        adaptive(generation=4),
        adaptive(progress=JobProgress(global_batch=128, max_global_batch=512)),
        adaptive(progress=JobProgress(global_batch=64, max_global_batch=64)),
    ],
    ids=["fixed", "restarts", "not live", "fixed ranks", "silent", "new members", "new batch", "small data"],
)
def test_it_leaves_the_batch_alone(job: Job) -> None:
    decision = decision_about(job, measurement(64))
    assert (decision.action, decision.global_batch) == (Action.KEEP, None)


def test_a_job_that_changes_is_not_asked() -> None:
    job = replace(adaptive(), state=JobState.RESIZING)
    assert choose_batch(job, snapshot_of(jobs=[job], measurements={"job": (measurement(64),)})) is None


@pytest.mark.parametrize(
    ("sqr", "var", "known"),
    [
        (1.0, 1.0, True),
        (0.0, 1.0, True),
        (1.0, 0.0, True),
        (0.0, 0.0, False),
        (-1.0, 5.0, False),
        (5.0, -1.0, False),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (math.inf, 1.0, False),
        (1e201, 1.0, False),
        (1e-201, 1e-201, False),
    ],
)
def test_noise_is_known_where_it_defines_a_scale(sqr: float, var: float, known: bool) -> None:
    assert Noise(sqr, var).known is known


@pytest.mark.parametrize(
    ("sqr", "var", "scale", "efficiency"),
    [
        (2.0, 600.0, 300.0, 364 / 428),
        (0.0, 1.0, math.inf, 1.0),
        (1.0, 0.0, 0.0, 0.5),
        (0.0, 0.0, math.inf, 0.5),
    ],
)
def test_the_scale_and_efficiency_of_noise(sqr: float, var: float, scale: float, efficiency: float) -> None:
    """Efficiency of 128 samples, relative to 64."""
    noise = Noise(sqr, var)
    assert noise.scale == scale
    assert noise.efficiency(128, 64) == pytest.approx(efficiency)


@pytest.mark.parametrize(
    ("present", "speeds", "fields", "expected"),
    [
        pytest.param(64, {}, {}, 64, id="present batch not measured at this size"),
        pytest.param(32, {}, {}, 64, id="below the reference"),
        pytest.param(2048, {}, {}, 1024, id="above the bound"),
        pytest.param(64, {64: 1000.0}, {"steps": ENOUGH_STEPS - 1}, 64, id="too few steps"),
        pytest.param(64, {64: 1000.0}, {"most": 64}, 64, id="no room"),
        pytest.param(64, {64: 1000.0}, {"most": 100}, 100, id="at most the bound"),
        pytest.param(64, {64: 1000.0, 2048: 1e9}, {}, 128, id="a measurement beyond the bound"),
        pytest.param(64, {64: 1000.0, 128: 1049.0}, {}, 64, id="gain below 5 %"),
        pytest.param(64, {64: 1000.0, 128: 1051.0}, {}, 128, id="gain above 5 %"),
        pytest.param(128, {64: 1000.0, 128: 900.0}, {}, 64, id="back to the smaller batch"),
        pytest.param(256, {64: 1000.0, 128: 1100.0, 256: 1120.0, 512: 1.0}, {}, 256, id="2 % are not worth a change"),
        pytest.param(256, {64: 1000.0, 128: 1200.0, 256: 1120.0, 512: 1.0}, {}, 128, id="7 % are"),
    ],
)  # fmt: skip
def test_the_next_batch(
    present: int, speeds: dict[int, float], fields: dict[str, Any], expected: int
) -> None:
    """Noise is so loud that efficiency is about 1 throughout."""
    assert chosen(present, speeds, **fields).global_batch == expected


@pytest.mark.parametrize(
    ("scale", "present", "expected"),
    [
        # Upper bound of doubling: 2 * (phi + 128) / (phi + 256); of halving: (phi + 128) / (phi + 64).
        (1e6, 128, 256),
        (13.0, 128, 64),
        (1200.0, 1024, 512),
        (1e6, 1024, 1024),
    ],
)
def test_the_neighbour_of_the_better_upper_bound_is_tried(scale: float, present: int, expected: int) -> None:
    assert chosen(present, {present: 1000.0}, Noise(1.0, scale)).global_batch == expected


def test_the_mean_speed_of_a_batch_is_that_of_all_its_steps() -> None:
    """A hundred steps at 100/s and three hundred at 300/s: 400 in 2 s per sample of a step."""
    rows = (measurement(64, 100.0, 100), measurement(64, 300.0, 300))
    found = speeds_of(rows, device_kind="cpu", slots=1, nodes=1)
    assert found[64].samples_per_s == pytest.approx(200.0)
    assert found[64].steps == 400


def test_a_measurement_without_a_batch_has_no_speed_of_one() -> None:
    assert speeds_of((measurement(0),), device_kind="cpu", slots=1, nodes=1) == {}


@pytest.mark.parametrize(("sqr", "var"), [(None, 1.0), (1.0, None), (None, None)])
def test_noise_needs_both_values(sqr: float | None, var: float | None) -> None:
    assert noise_of(measurement(64, gradient_sqr=sqr, gradient_var=var)) is None
    assert noise_of(measurement(64, gradient_sqr=2.0, gradient_var=6.0)) == Noise(2.0, 6.0)
