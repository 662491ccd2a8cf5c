"""Tests of Scavenger's models: recovery from their own data, a small grid by hand, and missing data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.domain.perf.scavenger import (
    Goal,
    Grid,
    LinearModel,
    Profile,
    ScavengerModel,
    choose,
    fit,
    predict,
)
from tests.unit.service.builders import wild_floats

TRUE = ScavengerModel(
    compute_s=LinearModel(0.02, 0.001),
    sync_s=LinearModel(0.03, 0.004),
    noise=LinearModel(0.3, 9.0),
    epochs=LinearModel(2.0, 10.0),
)
WORKERS, BATCHES = np.array([1.0, 2.0, 8.0, 16.0]), np.array([64.0, 256.0, 1024.0])
NONE = np.array([])


def profile_of(model: ScavengerModel, workers: list[float], batches: list[float]) -> Profile:
    count, batch = np.array(workers), np.array(batches)
    return Profile(
        workers=count,
        global_batch=batch,
        compute_s=model.compute_s.at(batch / count),
        sync_s=model.sync_s.at(count),
        noise=model.noise.at(1 / np.sqrt(batch)),
    )


def test_extreme_points_are_enough() -> None:
    noises = np.array([0.8, 1.4])
    got = fit(profile_of(TRUE, [2, 16], [64, 1024]), noises, TRUE.epochs.at(noises))
    for name in ("compute_s", "sync_s", "noise", "epochs"):
        line, true = getattr(got, name), getattr(TRUE, name)
        assert (line.base, line.slope) == pytest.approx((true.base, true.slope)), name


def test_the_grid_is_the_formulas() -> None:
    got = predict(TRUE, workers=WORKERS, global_batch=BATCHES, dataset_samples=50_000, usd_per_worker_h=0.5)
    for row, workers in enumerate(WORKERS):
        for column, batch in enumerate(BATCHES):
            compute = 0.02 + 0.001 * batch / workers
            sync = 0.03 + 0.004 * workers if workers > 1 else 0.0
            epochs = 2.0 + 10.0 * (0.3 + 9.0 / math.sqrt(batch))
            time_s = epochs * 50_000 / batch * (compute + sync)
            assert got.time_s[row, column] == pytest.approx(time_s)
            assert got.cost_usd[row, column] == pytest.approx(time_s * workers * 0.5 / 3600)


def test_the_sign_of_the_batch_effect_is_the_one_that_was_seen() -> None:
    measured = profile_of(TRUE, [2, 16], [64, 1024])
    small, large = TRUE.noise.at(1 / np.sqrt(np.array([64.0, 1024.0])))
    for epochs, rises in (([5.0, 9.0], True), ([9.0, 5.0], False)):
        model = fit(measured, np.array([small, large]), np.array(epochs))
        at = model.epochs.at(model.noise.at(1 / np.sqrt(BATCHES)))
        assert (np.diff(at) > 0).all() == rises
        assert at[[0, -1]] == pytest.approx(epochs)
    one_run = fit(measured, np.array([1.0]), np.array([7.0]))
    assert one_run.epochs == LinearModel(7.0, 0.0)


def test_one_measurement_predicts_in_proportion_and_none_predicts_nothing() -> None:
    one = fit(profile_of(TRUE, [4], [256]), NONE, NONE)
    assert one.compute_s.base == 0.0
    assert one.compute_s.at(np.array(64.0)) == pytest.approx(TRUE.compute_s.at(np.array(64.0)))
    assert one.sync_s.at(np.array(4.0)) == pytest.approx(TRUE.sync_s.at(np.array(4.0)))
    assert one.epochs == LinearModel(1.0, 0.0)
    none = fit(Profile(workers=NONE, global_batch=NONE, compute_s=NONE, sync_s=NONE, noise=NONE), NONE, NONE)
    grid = predict(none, workers=WORKERS, global_batch=BATCHES, dataset_samples=1.0, usd_per_worker_h=1.0)
    assert np.isinf(grid.time_s).all()
    assert choose(grid, Goal.TIME) is None


def test_what_does_not_fit_is_no_choice() -> None:
    got = predict(
        TRUE,
        workers=np.array([1.0, 128.0, 0.0, math.nan]),
        global_batch=np.array([64.0, 256.0, math.nan]),
        dataset_samples=1.0,
        usd_per_worker_h=1.0,
        max_local=64.0,
    )
    assert np.isfinite(got.time_s).tolist() == [
        [True, False, False],
        [False, True, False],
        [False] * 3,
        [False] * 3,
    ]


def test_choices() -> None:
    grid = Grid(
        time_s=np.array([[100.0, 90.0], [20.0, 20.0], [18.0, math.inf]]),
        cost_usd=np.array([[1.0, 1.0], [1.3, 1.2], [9.0, math.inf]]),
    )
    assert choose(grid, Goal.TIME) == (2, 0)
    assert choose(grid, Goal.TIME, max_cost_usd=2.0) == (1, 1)
    assert choose(grid, Goal.COST) == (0, 1)
    assert choose(grid, Goal.COST, max_time_s=50.0) == (1, 1)
    assert choose(grid, Goal.KNEE) == (1, 1)
    assert choose(grid, Goal.KNEE, max_time_s=19.0) == (2, 0)
    assert choose(grid, Goal.COST, max_time_s=1.0) is None


@settings(max_examples=60)
@example([], [(1.0, 5e-324)])
@given(
    st.lists(st.tuples(*[wild_floats] * 5), max_size=4),
    st.lists(st.tuples(wild_floats, wild_floats), max_size=3),
)
def test_wild_measurements_never_raise(
    rows: list[tuple[float, ...]], runs: list[tuple[float, float]]
) -> None:
    columns = np.array(rows, float).reshape(-1, 5).T
    noise, epochs = np.array(runs, float).reshape(-1, 2).T
    names = ("workers", "global_batch", "compute_s", "sync_s", "noise")
    model = fit(Profile(**dict(zip(names, columns, strict=True))), noise, epochs)
    grid = predict(model, workers=WORKERS, global_batch=BATCHES, dataset_samples=1e6, usd_per_worker_h=1.0)
    assert (grid.time_s > 0).all()
    for goal in Goal:
        chosen = choose(grid, goal)
        assert (chosen is None) == (not np.isfinite(grid.time_s).any())
