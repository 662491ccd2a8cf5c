"""Tests of the goodput table with numbers by hand: batches, bounds, intervals, and corrections by measurements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.domain.perf.tables import JobModels, goodput_table
from service.domain.perf.throughput import prior
from tests.unit.service.domain.perf.configurations import CONFIGURATIONS, observed

LOUD = {"adapts": np.array([True]), "noise_scale": np.array([math.inf])}


def fixed(*, samples: float = 100.0, **given: Any) -> JobModels:
    """A job of a fixed batch that takes 0.5 s and 5 ms a sample in each pass, and nothing to synchronise."""
    one = prior(compute_s=np.full((1, 2), 1.0), local_batch=np.full((1, 2), 100.0))
    none = np.zeros((1, 2))
    model = replace(one, alpha_r=none, beta_r=none, alpha_n=none, beta_n=none, beta_p=none, spread=none + 0.2)
    fields = {
        "throughput": replace(model, slots_tried=none + 64.0, nodes_tried=none + 16.0, batch_low=none + 1.0),
        "noise_scale": np.array([math.nan]),
        "reference_batch": np.array([samples]),
        "global_batch": np.array([samples]),
        "max_global": np.array([samples]),
        "max_local": np.full((1, 2), math.inf),
        "adapts": np.array([False]),
    }
    return JobModels(**{**fields, **given})


def test_a_table_by_hand() -> None:
    """100 samples on 1, 2, 3, 8 and 16 slots: each slot processes the samples of the longest rank."""
    table = goodput_table(fixed(), CONFIGURATIONS)
    local = [100, 50, 34, 13, 7, 100, 25, 2]
    assert table.local_batch[0].tolist() == local
    assert table.goodput[0].tolist() == pytest.approx([100 / (0.5 + 0.005 * one) for one in local])
    assert table.accumulation[0].tolist() == [1] * 8
    assert table.global_batch[0].tolist() == [100] * 8
    assert table.efficiency[0].tolist() == [1.0] * 8
    assert table.high[0] == pytest.approx(table.goodput[0] * math.exp(1.2816 * 0.2))
    assert table.low[0] == pytest.approx(table.goodput[0] / math.exp(1.2816 * 0.2))


def test_each_kind_has_its_own_bound_of_samples() -> None:
    table = goodput_table(fixed(max_local=np.array([[30.0, 60.0]])), CONFIGURATIONS)
    assert table.accumulation[0].tolist() == [4, 2, 2, 1, 1, 2, 1, 1]
    assert table.local_batch[0].tolist() == [25, 25, 17, 13, 7, 50, 25, 2]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, 100, id="reference"),
        pytest.param({"global_batch": np.array([400.0])}, 100, id="a fixed batch does not follow a report"),
        pytest.param({"reference_batch": np.array([math.nan])}, 100, id="the present batch is the reference"),
        pytest.param({"reference_batch": np.array([99.9])}, 99, id="whole samples"),
        pytest.param({"reference_batch": np.array([0.5])}, 100, id="less than a sample is unknown"),
        pytest.param({"reference_batch": np.array([math.inf])}, 100, id="infinite is unknown"),
        pytest.param(
            {**LOUD, "global_batch": np.array([300.0]), "max_global": np.array([200.0])},
            200,
            id="a present batch above its bound",
        ),
        pytest.param(
            {"adapts": np.array([True]), "max_global": np.array([math.nan])}, 100, id="no bound: the reference"
        ),
        pytest.param(
            {"adapts": np.array([True]), "max_global": np.array([50.0])}, 100, id="a bound below the reference"
        ),
        pytest.param(
            {"adapts": np.array([True]), "max_global": np.array([1600.0])}, 100, id="without noise none is larger"
        ),
    ],
)  # fmt: skip
def test_the_planned_batch_on_one_slot(fields: dict[str, Any], expected: int) -> None:
    assert goodput_table(fixed(**fields), CONFIGURATIONS).global_batch[0, 0] == expected


def corrected(*rows: tuple[float, ...], spread: float = 0.2) -> tuple[float, float]:
    """Ratio of goodput to the model's, and standard deviation of the logarithm, of the first column."""
    models = fixed()
    models = replace(models, throughput=replace(models.throughput, spread=np.full((1, 2), spread)))
    before = goodput_table(models, CONFIGURATIONS).goodput[0, 0]
    after = goodput_table(models, CONFIGURATIONS, observed(*rows))
    return after.goodput[0, 0] / before, math.log(after.high[0, 0] / after.goodput[0, 0]) / 1.2816


@pytest.mark.parametrize(
    ("rows", "spread", "weights"),
    [
        # Weights are inverse variances: of the model, and 0.05^2 + 0.3^2 / steps (+ 0.1^2 a doubling, squared).
        pytest.param([(200.0, 100.0, 36.0)], 0.2, (25.0, [1 / 0.005]), id="one measurement"),
        pytest.param([(200.0, 100.0, 1.0)], 0.2, (25.0, [1 / 0.0925]), id="one step"),
        pytest.param([(200.0, 100.0, 36.0)], 0.01, (400.0, [1 / 0.005]), id="a model is at most so sure"),
        pytest.param([(200.0, 100.0, 36.0)] * 2, 0.2, (25.0, [1 / 0.005] * 2), id="two measurements"),
    ],
)
def test_corrections_by_hand(
    rows: list[tuple[float, ...]], spread: float, weights: tuple[float, list[float]]
) -> None:
    """The model expects 100 samples per second in the first column, and 200 were measured."""
    model, measured = weights
    ratio, after = corrected(*((0, 0, *row) for row in rows), spread=spread)
    assert ratio == pytest.approx(math.exp(math.log(2) * sum(measured) / (model + sum(measured))))
    assert after == pytest.approx(min(spread, 1 / math.sqrt(model + sum(measured))))


def test_a_measurement_with_twice_the_batch_is_compared_with_the_model_there() -> None:
    """200 samples take 1.5 s by the model; measured were 2 s. A doubling adds 0.1 squared to the variance."""
    ratio, _ = corrected((0, 0, 100.0, 200.0, 36.0))
    weight = 1 / (0.005 + 0.01)
    assert ratio == pytest.approx(math.exp(math.log(1.5 / 2) * weight / (25.0 + weight)))


def test_a_measurement_as_expected_only_narrows_the_interval() -> None:
    ratio, spread = corrected((0, 0, 100.0, 100.0, 36.0))
    assert ratio == pytest.approx(1.0)
    assert spread < 0.2


def test_a_batch_of_one_sample_fits_one_slot() -> None:
    table = goodput_table(fixed(samples=1.0), CONFIGURATIONS)
    assert table.global_batch[0].tolist() == [1, 0, 0, 0, 0, 1, 0, 0]
    assert table.goodput[0, 0] == pytest.approx(1 / 0.505)


@pytest.mark.parametrize("samples_per_s", [1e-9, 1e15])
def test_the_limits_of_a_measured_speed_are_believed(samples_per_s: float) -> None:
    ratio, _ = corrected((0, 0, samples_per_s, 100.0, 36.0))
    assert (ratio > 1) == (samples_per_s > 1)


def test_measurements_of_several_cells_correct_each_its_own() -> None:
    before = goodput_table(fixed(), CONFIGURATIONS).goodput[0]
    rows = ((0, 0, 200.0, 100.0, 36.0), (0, 7, before[7], 100.0, 36.0), (0, 2, 1.0, 100.0, 36.0))
    after = goodput_table(fixed(), CONFIGURATIONS, observed(*rows)).goodput[0]
    changes = after / before
    assert changes[0] > 1.5
    assert changes[2] < 0.1
    assert changes[[1, 3, 4, 5, 6, 7]] == pytest.approx(np.ones(6))


def test_a_measurement_of_a_cell_that_cannot_run_changes_nothing() -> None:
    """Fifty samples are too few for 64 slots."""
    before = goodput_table(fixed(samples=50.0), CONFIGURATIONS)
    after = goodput_table(fixed(samples=50.0), CONFIGURATIONS, observed((0, 7, 10.0, 50.0, 36.0)))
    assert after.goodput.tolist() == before.goodput.tolist()
    assert (before.goodput[0, 7], after.high[0, 7]) == (0.0, 0.0)
