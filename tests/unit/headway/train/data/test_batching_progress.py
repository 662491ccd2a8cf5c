"""The progress of steps of any batch, by the learning-rate rule and the measured noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.contract.orders import BatchPlan
from headway.train.data.batching import Batching, Bounds
from headway.train.gradients.noise import Measurement
from tests.unit.headway.train.data.test_batching import ADAPTIVE, FIXED, ranks_of


@pytest.mark.parametrize("rule", ["adascale", "sqrt", "linear"])
def test_efficiency_follows_the_noise(rule: Any) -> None:
    for batching in ranks_of(replace(ADAPTIVE, rule=rule), 2):
        assert batching.efficiency == 1.0
        batching.follow(BatchPlan(global_batch=256))
        assert batching.efficiency == 0.25, "without an estimate a step counts as one"
        batching.add_noise(Measurement(1.0, 128.0))
        assert batching.efficiency == pytest.approx((128 + 64) / (128 + 256))
        batching.follow(BatchPlan(global_batch=64))
        assert batching.efficiency == 1.0


def test_a_step_at_an_unscaled_rate_counts_as_one() -> None:
    (batching,) = ranks_of(replace(ADAPTIVE, rule="none"), 1)
    batching.add_noise(Measurement(1.0, 1e9))
    batching.follow(BatchPlan(global_batch=256))
    assert batching.efficiency == 0.25
    batching.follow(BatchPlan(global_batch=32))
    assert batching.efficiency == 1.0


def test_adascale_multiplies_the_rate_by_the_steps_that_a_step_counts_as() -> None:
    (batching,) = ranks_of(replace(ADAPTIVE, rule="adascale"), 1)
    for noise in (None, Measurement(1.0, 300.0)):
        batching.add_noise(noise)
        for batch in (16, 64, 100, 256):
            batching.follow(BatchPlan(global_batch=batch))
            assert batching.lr_factor == pytest.approx(batch / 64 * batching.efficiency)


def test_a_fixed_batch_is_worth_what_it_reads() -> None:
    assert [one.efficiency for one in ranks_of(FIXED, 2)] == [1.0, 1.0]


def test_the_measured_effect_of_the_order_is_the_exponent_of_the_efficiency() -> None:
    bounds = Bounds(global_batch=64, most_global=256, rule="sqrt", start_global=256, start_effect=2.0)
    batching = Batching(bounds, rank=0, world_size=1)
    batching.add_noise(Measurement(1.0, 128.0))
    predicted = (128 + 64) / (128 + 256)
    assert batching.efficiency == pytest.approx(predicted**2)
    assert not batching.follow(BatchPlan(global_batch=256, effect=0.5)), "the same batch"
    assert batching.efficiency == pytest.approx(predicted**0.5)
    newcomer = Batching(bounds, rank=1, world_size=2)
    newcomer.take_over(batching.state())
    assert newcomer.efficiency == batching.efficiency
    fixed = Batching(Bounds(global_batch=64, start_effect=2.0), rank=0, world_size=1)
    assert not fixed.follow(BatchPlan(global_batch=256, effect=0.5))
    assert fixed.efficiency == 1.0
