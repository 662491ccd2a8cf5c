"""The progress of steps of any batch, by the learning-rate rule and the measured noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.contract.orders import BatchPlan
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
