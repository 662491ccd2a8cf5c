"""Losses of jobs of unknown length, and the work at which their curve has converged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from headway.contract.runtime import Message, Metrics, Restored
from headway.contract.views.jobs import JobProgress
from headway.contract.views.progress import LossProgress
from service.domain.perf.convergence import CONVERGED, WINDOW, after_loss, converged_work, epoch_samples
from service.domain.policies.framework.loss_curve import MAX_POINTS

EPOCH = 1_000
"""Samples of an epoch, with one report of the loss in each."""


def loss_at(samples: float) -> float:
    return 1.0 / (samples / 4_000 + 0.5)


def metrics(samples: int, value: float, name: str = "loss", rank: int = 0) -> Metrics:
    return Metrics(rank=rank, generation=1, at_s=0.0, epoch=0, samples=samples, values={name: value})


def after(progress: JobProgress, message: Message, samples: int) -> JobProgress:
    return after_loss(progress, progress.model_copy(update={"samples": samples}), message)


def reported(
    progress: JobProgress, values: Sequence[float], name: str = "loss", rank: int = 0
) -> JobProgress:
    for value in values:
        samples = progress.samples + EPOCH
        progress = after(progress, metrics(samples, value, name, rank), samples)
    return progress


def unknown(**fields: object) -> JobProgress:
    return JobProgress(dataset_samples=EPOCH, **fields)


def losses(progress: JobProgress) -> LossProgress:
    assert progress.loss_curve is not None
    return progress.loss_curve


def test_at_the_converged_work_an_epoch_lowers_the_loss_by_the_threshold() -> None:
    points = [[float(work), loss_at(work)] for work in range(0, 9_000, 1_000)]
    found = converged_work(points, EPOCH)
    assert found is not None
    assert loss_at(found) - loss_at(found + EPOCH) == pytest.approx(CONVERGED * loss_at(0), rel=1e-6)


@pytest.mark.parametrize("epoch", [math.nan, 0.0, math.inf])
def test_without_the_length_of_an_epoch_nothing_converges(epoch: float) -> None:
    assert converged_work([[float(work), loss_at(work)] for work in range(0, 9_000, 1_000)], epoch) is None


@pytest.mark.parametrize(
    "points", [[], [[0.0, 3.0], [1.0, 2.0], [2.0, 1.5]], [[float(k), 2.0] for k in range(9)]]
)
def test_too_few_losses_and_a_level_loss_have_no_curve(points: list[list[float]]) -> None:
    assert converged_work(points, 1.0) is None


def test_a_job_of_unknown_length_has_a_curve_of_few_points() -> None:
    curve = losses(reported(unknown(), [loss_at(EPOCH * epoch) for epoch in range(1, 200)]))
    assert len(curve.points) <= MAX_POINTS
    found = curve.converged_work
    assert found is not None
    # Medians lag behind the values by one report, and the largest one is the first.
    lowered = loss_at(found - EPOCH) - loss_at(found)
    assert lowered == pytest.approx(CONVERGED * curve.points[0][1], rel=0.01)


def test_one_outlier_has_no_effect() -> None:
    values = [loss_at(EPOCH * epoch) for epoch in range(1, 30)]
    smooth = losses(reported(unknown(), values)).converged_work
    assert smooth is not None
    values[10] = 50.0
    assert losses(reported(unknown(), values)).converged_work == pytest.approx(smooth, rel=0.1)


@pytest.mark.parametrize(
    ("progress", "name", "rank"),
    [(unknown(total_samples=90_000), "loss", 0), (unknown(), "accuracy", 0), (unknown(), "loss", 1)],
    ids=["declared length", "another metric", "another rank"],
)
def test_what_is_not_the_loss_of_a_job_of_unknown_length_is_not_kept(
    progress: JobProgress, name: str, rank: int
) -> None:
    assert reported(progress, [3.0, 2.0, 1.0, 0.5], name, rank).loss_curve is None


def test_values_that_are_no_numbers_are_ignored() -> None:
    assert losses(reported(unknown(), [3.0, math.nan, math.inf, 2.0])).recent == [3.0, 2.0]


def test_a_restored_checkpoint_forgets_the_losses_beyond_it() -> None:
    progress = reported(unknown(), [loss_at(EPOCH * epoch) for epoch in range(1, 9)])
    restored = Restored(rank=0, generation=2, at_s=0.0, samples=4_000, from_generation=1)
    curve = losses(after(progress, restored, 4_000))
    assert [one[0] for one in curve.points] == [3_000.0, 4_000.0]
    assert curve.recent == []
    assert curve.converged_work == losses(progress).converged_work
    assert len(losses(reported(JobProgress(loss_curve=curve, samples=4_000), [1.0])).recent) < WINDOW


def test_the_samples_of_an_epoch_follow_from_the_epoch_where_the_script_does_not_say() -> None:
    assert epoch_samples(unknown()) == EPOCH
    assert epoch_samples(JobProgress(samples=350, epoch=3)) == 100.0
    assert math.isnan(epoch_samples(JobProgress(samples=350)))
