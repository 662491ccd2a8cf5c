"""Tests of models learned from measurements: units, references, noise, and the class as a prior."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.contract.views.jobs import JobProgress, JobState
from service.domain.cluster.snapshot import Measurement
from service.domain.jobs.job import Job, class_of
from service.domain.perf.learned import LearnedModels, batch_of, job_classes, learn
from service.domain.perf.tables import goodput_table
from service.domain.perf.throughput import GUESS_SPREAD, step_time
from tests.unit.service.builders import job_of, spec_of
from tests.unit.service.domain.perf.configurations import CONFIGURATIONS

NAN = math.nan


def measured(slots: int = 1, samples_per_s: float = 64.0, steps: int = 100, **fields: Any) -> Measurement:
    """Steps of 64 samples on CPUs."""
    return Measurement(
        **{
            "device_kind": "cpu",
            "slots": slots,
            "samples_per_s": samples_per_s,
            "steps": steps,
            "global_batch": 64,
            **fields,
        }
    )


def job(name: str = "job-1", progress: JobProgress | None = None, **spec: Any) -> Job:
    """A running job. The class is the name without its number."""
    return job_of(
        name,
        JobState.RUNNING,
        spec=spec_of(name, **spec),
        progress=progress or JobProgress(),
    )


PER_RANK = job_of("job-1", spec=spec_of("job-1", progress={"batch": "per-rank"}))


def learned(
    *measurements: Measurement,
    of: Job | None = None,
    kinds: tuple[str, ...] = ("cpu",),
    shared: tuple[Measurement, ...] = (),
) -> LearnedModels:
    """Models of one job with these measurements, of a class with the measurements `shared`."""
    one = of or job()
    return learn([one], kinds, {one.id: measurements}, {class_of(one.spec): shared})


def speed(models: LearnedModels, slots: int, *, row: int = 0, kind: int = 0, batch: float = 64.0) -> float:
    """Samples per second of a global batch in one pass, on one node."""
    seconds, _ = step_time(
        models.models.throughput[row : row + 1, kind],
        slots=np.array([slots]),
        nodes=np.array([1]),
        local_batch=np.array([batch / slots]),
    )
    return float(batch / seconds.item())


def test_a_measured_size_is_met() -> None:
    found = learned(measured(1, 64.0), measured(2, 110.0), measured(4, 180.0))
    assert [speed(found, slots) for slots in (1, 2, 4)] == pytest.approx([64.0, 110.0, 180.0], rel=0.05)
    assert found.measured.tolist() == [True]
    assert found.related.tolist() == [False]


@pytest.mark.parametrize(
    "unbelievable",
    [
        measured(samples_per_s=NAN),
        measured(samples_per_s=0.0),
        measured(samples_per_s=math.inf),
        measured(steps=0),
    ],
)
def test_a_measurement_that_cannot_be_true_is_none(unbelievable: Measurement) -> None:
    found = learned(unbelievable, shared=(unbelievable,))
    assert found.measured.tolist() == [False]
    assert found.related.tolist() == [False]
    assert np.isnan(found.models.reference_batch).all()


def test_a_job_without_measurements_has_a_guess_of_its_own() -> None:
    found = learned()
    assert found.models.throughput.spread.tolist() == [[GUESS_SPREAD]]
    assert found.models.throughput.slots_tried.tolist() == [[0.0]]
    assert found.measured.tolist() == [False]


def test_the_class_stands_for_a_job_without_measurements() -> None:
    shared = (measured(1, 64.0), measured(2, 110.0), measured(4, 180.0))
    found = learned(shared=shared)
    assert [speed(found, slots) for slots in (1, 4)] == pytest.approx([64.0, 180.0], rel=0.05)
    assert found.measured.tolist() == [False]
    assert found.related.tolist() == [True]
    assert found.models.throughput.slots_tried.tolist() == [[4.0]]


def test_a_slower_job_scales_as_its_class_does() -> None:
    shared = (measured(1, 64.0), measured(2, 110.0), measured(4, 180.0))
    found = learned(measured(1, 32.0), shared=shared)
    assert speed(found, 1) == pytest.approx(32.0, rel=0.05)
    assert speed(found, 4) == pytest.approx(90.0, rel=0.1)
    # Without its class, half of the 2 s of a step are assumed not to depend on the batch.
    assert speed(learned(measured(1, 32.0)), 4) == pytest.approx(64 / (1.0 + 0.25), rel=0.01)


def test_measurements_of_another_kind_or_of_none_in_the_round_do_not_count_here() -> None:
    found = learned(measured(1, 64.0), measured(1, 640.0, device_kind="h100"), kinds=("cpu", "a100"))
    assert speed(found, 1, kind=0) == pytest.approx(64.0, rel=0.01)
    assert speed(found, 1, kind=1) == pytest.approx(64.0, rel=0.01), "taken over from the known kind"
    assert found.models.throughput.slots_tried.tolist() == [[1.0, 0.0]]


def test_each_job_and_kind_has_its_own_model() -> None:
    first, second = job("first"), job("second")
    found = learn(
        [first, second],
        ("cpu", "h100"),
        {
            "first": (measured(1, 64.0), measured(1, 640.0, device_kind="h100")),
            "second": (measured(1, 16.0), measured(1, 32.0, device_kind="h100")),
        },
        {},
    )
    speeds = [[speed(found, 1, row=row, kind=kind) for kind in (0, 1)] for row in (0, 1)]
    assert np.array(speeds) == pytest.approx(np.array([[64.0, 640.0], [16.0, 32.0]]), rel=0.01)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"local_batch": 16}, 16.0),
        ({"local_batch": 0}, 64.0),
        ({"slots": 4}, 16.0),
        ({"slots": 4, "accumulation": 4}, 4.0),
        ({"slots": 4, "accumulation": 0}, 16.0),
        ({"slots": 128}, 1.0),  # a slot processes at least one sample
        ({"global_batch": 0}, 64.0),  # without a batch, that of a usual one
    ],
)
def test_the_samples_of_a_slot_in_one_pass(fields: dict[str, Any], expected: float) -> None:
    found = learned(measured(**fields)).models.throughput
    assert found.batch_low.tolist() == found.batch_high.tolist() == [[pytest.approx(expected)]]


def test_a_step_of_several_passes_is_longer_than_its_passes() -> None:
    """Four passes of 16 samples in 1 s: a pass takes a quarter of a second."""
    found = learned(measured(1, 64.0, accumulation=4))
    assert speed(found, 1, batch=16.0) == pytest.approx(64.0, rel=0.01)


def test_measured_synchronisation_is_told_from_compute() -> None:
    """Synchronisation takes 0.6 s of a step of 1 s on two slots."""
    known = learned(measured(2, 64.0, sync_s=0.6)).models.throughput
    unknown = learned(measured(2, 64.0)).models.throughput
    compute = known.alpha_c + 32 * known.beta_c
    assert compute.item() < 0.7 < (unknown.alpha_c + 32 * unknown.beta_c).item()


@pytest.mark.parametrize(
    ("measurement", "batch"),
    [(measured(), 64), (measured(global_batch=0), 64), (measured(global_batch=7), 7)],
)
def test_the_samples_of_a_step(measurement: Measurement, batch: int) -> None:
    assert batch_of(measurement) == batch


def test_goodput_of_a_job_of_unknown_batch_is_in_steps_at_every_size() -> None:
    """A step takes 2 s on two slots, of which 1.2 s are synchronisation; the other sizes were never tried."""
    kinds = tuple(CONFIGURATIONS.kinds)
    on = {"device_kind": kinds[0], "sync_s": 1.2}
    unknown = learned(measured(2, 0.5, global_batch=0, **on), kinds=kinds).models
    known = learned(measured(2, 32.0, **on), kinds=kinds).models
    in_steps, in_samples = (goodput_table(one, CONFIGURATIONS).goodput for one in (unknown, known))
    assert in_steps == pytest.approx(in_samples / 64)
    two = CONFIGURATIONS.slots.tolist().index(2)
    assert in_steps[0, two] == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    ("of", "own", "shared", "expected"),
    [
        pytest.param(job(batch={"global": 96}), (measured(),), (), 96.0, id="job file"),
        pytest.param(PER_RANK, (measured(),), (), NAN, id="each rank has its own"),
        pytest.param(job(), (measured(),), (), 64.0, id="measured"),
        pytest.param(
            job(), (measured(generation=3), measured(generation=1, global_batch=32)), (), 32.0, id="oldest measured"
        ),
        pytest.param(job(), (), (measured(global_batch=48),), 48.0, id="class"),
        pytest.param(job(), (measured(),), (measured(global_batch=48),), 64.0, id="own before the class"),
        pytest.param(job(progress=JobProgress(global_batch=24)), (), (), 24.0, id="reported"),
        pytest.param(job(progress=JobProgress(global_batch=24)), (measured(),), (), 64.0, id="measured before reported"),
        pytest.param(job(), (), (), NAN, id="unknown"),
    ],
)  # fmt: skip
def test_the_reference_batch(
    of: Job, own: tuple[Measurement, ...], shared: tuple[Measurement, ...], expected: float
) -> None:
    found = learned(*own, of=of, shared=shared)
    assert found.models.reference_batch.tolist() == pytest.approx([expected], nan_ok=True)


@pytest.mark.parametrize(
    ("max_global", "reported", "expected"),
    [(512, 256, 256.0), (128, 256, 128.0), (512, None, 512.0), (None, 256, 256.0), (None, None, NAN)],
)
def test_the_largest_batch_is_the_smaller_of_both_bounds(
    max_global: int | None, reported: int | None, expected: float
) -> None:
    batch = {"global": 64} | ({} if max_global is None else {"policy": "adaptive", "max_global": max_global})
    of = job(batch=batch, progress=JobProgress(global_batch=64, max_global_batch=reported))
    found = learned(of=of).models
    assert found.max_global.tolist() == pytest.approx([expected], nan_ok=True)
    assert found.global_batch.tolist() == [64.0]
    assert found.adapts.tolist() == [of.adapts]


def test_a_bound_of_the_job_file_holds_on_every_kind() -> None:
    bounded, free = job("a", batch={"max_local": 8}), job("b")
    found = learn([bounded, free], ("cpu", "h100"), {}, {}).models
    assert found.max_local.tolist() == [[8.0, 8.0], [math.inf, math.inf]]


def noisy(sqr: float | None, var: float | None) -> Measurement:
    return measured(gradient_sqr=sqr, gradient_var=var)


@pytest.mark.parametrize(
    ("own", "shared", "expected"),
    [
        ((noisy(2.0, 600.0),), (), 300.0),
        ((noisy(2.0, 600.0), noisy(2.0, 800.0)), (), 400.0),  # the newest one
        ((noisy(2.0, 600.0), noisy(None, None)), (), 300.0),
        ((noisy(2.0, 600.0), noisy(-1.0, 5.0)), (), 300.0),
        ((), (noisy(1.0, 50.0),), 50.0),
        ((noisy(2.0, 600.0),), (noisy(1.0, 50.0),), 300.0),
        ((noisy(None, 5.0),), (noisy(1.0, 50.0),), 50.0),
        ((noisy(0.0, 5.0),), (), math.inf),
        ((measured(),), (), NAN),
    ],
)
def test_the_noise_scale_is_the_newest_known_of_the_job_else_of_its_class(
    own: tuple[Measurement, ...], shared: tuple[Measurement, ...], expected: float
) -> None:
    found = learned(*own, shared=shared).models.noise_scale
    assert found.tolist() == pytest.approx([expected], nan_ok=True)


@pytest.mark.parametrize(
    ("own", "progress", "expected"),
    [
        ((), JobProgress(), 80.0),
        ((noisy(2.0, 600.0),), JobProgress(), 300.0),  # how much is left is not known
        ((noisy(1.0, 20.0),), JobProgress(samples=0, total_samples=1000), 80.0),
        ((noisy(1.0, 20.0),), JobProgress(samples=500, total_samples=1000), 40.0),
        ((noisy(1.0, 20.0),), JobProgress(samples=1000, total_samples=1000), 20.0),
        ((noisy(0.0, 20.0),), JobProgress(samples=0, total_samples=1000), 80.0),
        ((noisy(1.0, 0.0),), JobProgress(samples=1000, total_samples=1000), 1e-12),
    ],
)
def test_the_mean_noise_of_the_class_counts_for_the_work_that_is_left(
    own: tuple[Measurement, ...], progress: JobProgress, expected: float
) -> None:
    early = replace(noisy(1.0, 40.0), noise_steps=30, log_noise_sum=30 * math.log(20.0))
    late = replace(noisy(1.0, 9000.0), noise_steps=10, log_noise_sum=10 * math.log(5120.0))
    one = job(
        progress=progress, batch={"policy": "adaptive", "global": 64, "max_global": 512, "lr_rule": "sqrt"}
    )
    found = learned(*own, shared=(early, late), of=one).models.noise_scale
    assert found.tolist() == pytest.approx([expected])


def test_classes_are_numbered_by_name() -> None:
    jobs = [job("z-1"), job("c-7"), job("z-2")]
    assert job_classes(jobs).tolist() == [1, 0, 1]
    assert job_classes([]).tolist() == []


@pytest.mark.parametrize("kinds", [(), ("cpu", "h100")])
def test_no_jobs_and_no_kinds(kinds: tuple[str, ...]) -> None:
    assert learn([], kinds, {}, {}).models.throughput.shape == (0, len(kinds))
    assert learned(measured(), kinds=kinds).models.throughput.shape == (1, len(kinds))


@pytest.mark.parametrize(
    ("said", "reported", "expected"),
    [("auto", None, 10.0), ("auto", "none", NAN), ("none", None, NAN), ("none", "sqrt", 10.0)],
)
def test_without_a_rule_for_the_learning_rate_the_noise_predicts_nothing(
    said: str, reported: str | None, expected: float
) -> None:
    one = job(
        progress=JobProgress(lr_rule=reported),
        batch={"policy": "adaptive", "global": 64, "max_global": 512, "lr_rule": said},
    )
    found = learned(measured(gradient_sqr=1.0, gradient_var=10.0), of=one)
    assert found.models.noise_scale.tolist() == pytest.approx([expected], nan_ok=True)
