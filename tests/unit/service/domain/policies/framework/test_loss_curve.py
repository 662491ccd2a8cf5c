"""Tests of the loss curve of Optimus: hand calculations, known curves with and without noise, and odd losses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.policies.framework.loss_curve import (
    MAX_POINTS,
    MIN_POINTS,
    LossCurve,
    fit_loss,
    with_point,
)


def test_the_curve_is_the_published_one() -> None:
    curve = LossCurve(slope=1e-3, offset=1.0, floor=0.2)
    assert curve.at(0) == pytest.approx(1.2)
    assert curve.at(1000) == pytest.approx(0.7)
    assert curve.at(3000) == pytest.approx(0.45)


def test_convergence_by_hand() -> None:
    """u * (u + 1) = 1 / 0.01 gives u = 9.5125, hence 8,512.5 samples."""
    curve = LossCurve(slope=1e-3, offset=1.0, floor=0.2)
    assert curve.converged_at(1000, 0.01) == pytest.approx(8512.49, abs=0.01)


@pytest.mark.parametrize("threshold", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("epoch", [100.0, 5000.0])
def test_an_epoch_after_convergence_lowers_the_loss_by_the_threshold(epoch: float, threshold: float) -> None:
    curve = LossCurve(slope=2e-3, offset=0.3, floor=0.1)
    end = curve.converged_at(epoch, threshold)
    assert end > 0
    assert curve.at(end) - curve.at(end + epoch) == pytest.approx(threshold)


def test_a_curve_that_starts_flat_has_converged_at_once() -> None:
    curve = LossCurve(slope=1e-6, offset=1.0, floor=0.0)
    assert curve.at(0) - curve.at(1000) < 0.01
    assert curve.converged_at(1000, 0.01) == 0.0


def losses(slope: float, offset: float, floor: float, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    samples = np.linspace(500, 16_000, MAX_POINTS)
    factor = np.exp(noise * np.random.default_rng(0).standard_normal(MAX_POINTS))
    return samples, (1 / (slope * samples + offset) + floor) * factor


@pytest.mark.parametrize(
    ("slope", "offset", "floor"), [(1e-3, 0.5, 0.2), (1e-3, 1.0, 0.0), (1e-4, 0.4, 0.5), (5e-3, 0.5, 0.05)]
)
@pytest.mark.parametrize(("noise", "error"), [(0.0, 0.01), (0.01, 0.03), (0.03, 0.1)])
def test_the_fit_finds_the_curve_and_its_end(
    slope: float, offset: float, floor: float, noise: float, error: float
) -> None:
    samples, loss = losses(slope, offset, floor, noise)
    curve = fit_loss(samples, loss)
    assert curve is not None
    largest = loss.max()
    true = LossCurve(slope * largest, offset * largest, floor / largest)
    assert curve.at(30_000) == pytest.approx(true.at(30_000), rel=0.1)
    assert curve.converged_at(1000, 0.01) == pytest.approx(true.converged_at(1000, 0.01), rel=error)
    assert curve.floor == pytest.approx(true.floor, abs=0.15)


def test_the_fit_is_relative_to_the_largest_loss() -> None:
    samples, loss = losses(1e-3, 0.5, 0.2)
    once, scaled = fit_loss(samples, loss), fit_loss(samples, 1000 * loss)
    assert once is not None
    assert scaled is not None
    assert scaled.slope == pytest.approx(once.slope)
    assert (scaled.offset, scaled.floor) == pytest.approx((once.offset, once.floor))
    assert once.at(samples[0]) == pytest.approx(1.0, rel=0.01)


def test_too_few_points_give_no_fit() -> None:
    samples, loss = losses(1e-3, 0.5, 0.2)
    assert fit_loss(samples[: MIN_POINTS - 1], loss[: MIN_POINTS - 1]) is None
    assert fit_loss(samples[:MIN_POINTS], loss[:MIN_POINTS]) is not None
    assert fit_loss(np.zeros(0), np.zeros(0)) is None


@pytest.mark.parametrize(
    ("samples", "loss"),
    [
        ([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0]),
        ([1, 2, 3, 4], [2.0, 2.0, 2.0, 2.0]),
        ([1, 2, 3, 4], [2.0, 1.0, 0.0, 1.0]),
        ([1, 2, 3, 4], [2.0, 1.0, -1.0, 1.0]),
        ([5, 5, 5, 5], [4.0, 3.0, 2.0, 1.0]),
        ([0, 0, 0, 0], [4.0, 3.0, 2.0, 1.0]),
    ],
    ids=["rising", "flat", "zero", "negative", "one point", "nothing done"],
)
def test_a_loss_that_is_no_falling_positive_one_gives_no_fit(samples: list[int], loss: list[float]) -> None:
    assert fit_loss(np.array(samples, dtype=float), np.array(loss)) is None


@given(st.lists(st.floats(1e-300, 1e300), min_size=4, max_size=MAX_POINTS))
@settings(deadline=None)
def test_whatever_the_losses_a_fit_has_finite_positive_parameters(loss: list[float]) -> None:
    curve = fit_loss(np.arange(1.0, len(loss) + 1), np.array(loss))
    if curve is not None:
        assert curve.slope > 0
        assert curve.offset > 0
        assert 0 <= curve.floor < 1
        assert curve.converged_at(1.0, 0.01) >= 0


def test_points_are_kept_in_order() -> None:
    points: list[list[float]] = []
    for samples, loss in ((100, 3.0), (200, 2.0), (300, 1.5)):
        points = with_point(points, samples, loss)
    assert points == [[100, 3.0], [200, 2.0], [300, 1.5]]


@pytest.mark.parametrize("loss", [0.0, -1.0, float("nan"), float("inf")])
def test_a_loss_that_no_curve_has_is_ignored(loss: float) -> None:
    assert with_point([[100, 3.0]], 200, loss) == [[100, 3.0]]


def test_a_repeated_report_is_ignored() -> None:
    assert with_point([[100, 3.0]], 100, 2.0) == [[100, 3.0]]


def test_a_fallback_to_a_checkpoint_drops_later_points() -> None:
    assert with_point([[100, 3.0], [200, 2.0], [300, 1.0]], 150, 2.5) == [[100, 3.0], [150, 2.5]]
    assert with_point([[100, 3.0], [200, 2.0]], 150, float("nan")) == [[100, 3.0]]


def test_many_points_are_thinned_to_every_second() -> None:
    points: list[list[float]] = []
    for step in range(1, MAX_POINTS + 2):
        points = with_point(points, 10.0 * step, 1.0 / step)
    assert [one[0] for one in points] == [*(10.0 * step for step in range(1, MAX_POINTS, 2)), 170.0]
    for step in range(MAX_POINTS + 2, 500):
        points = with_point(points, 10.0 * step, 1.0 / step)
        assert len(points) <= MAX_POINTS
    assert points[0][0] == 10.0
