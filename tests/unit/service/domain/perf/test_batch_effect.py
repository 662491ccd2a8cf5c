"""Tests of the efficiency that observations correct, of AdaScale's gain and of the noise scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf.batch import Noise
from service.domain.perf.efficiency import batch_effect, efficiency, gain, noise_scale

anything = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, math.nan, math.inf, 1.0]))
batches = st.integers(1, 100_000)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), batches, batches)
def test_agrees_with_the_noise_that_a_job_reports(sqr: float, var: float, batch: int, reference: int) -> None:
    worth = efficiency(batch, reference, noise_scale(sqr, var))
    assert worth == pytest.approx(Noise(sqr, var).efficiency(batch, reference))
    assert gain(batch, reference, noise_scale(sqr, var)) == pytest.approx(worth * batch / reference)


def test_noise_at_its_ends() -> None:
    assert noise_scale(0.0, 1.0) == math.inf
    assert efficiency(4096, 128, math.inf) == pytest.approx(1.0)
    assert efficiency(4096, 128, 0.0) == pytest.approx(1 / 32)
    assert noise_scale(2.0, 0.0) == 0.0
    for sqr, var in ((0.0, 0.0), (-1.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)):
        assert math.isnan(noise_scale(sqr, var))


@settings(max_examples=100, deadline=None)
@given(anything, anything, anything, st.floats(-2, 4))
def test_whatever_comes_there_is_an_efficiency(
    batch: float, reference: float, noise: float, effect: float
) -> None:
    worth, steps = efficiency(batch, reference, noise, effect), gain(batch, reference, noise, effect)
    assert worth >= 0
    assert steps >= 0
    if not (1e-6 <= batch <= 1e12 and 1e-6 <= reference <= 1e12):
        assert worth == 0 == steps


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1.5, 3.5), min_size=1, max_size=6))
def test_finds_the_effect_that_was_observed(effects: list[float]) -> None:
    batch = np.array([256.0, 1024, 4096])
    predicted = efficiency(batch, 128, 500.0)
    owner = np.repeat(np.arange(len(effects)), len(batch))
    observed = np.concatenate([predicted**effect for effect in effects])
    found = batch_effect(owner, np.tile(predicted, len(effects)), observed, np.ones(len(owner)), len(effects))
    assert found == pytest.approx(np.array(effects), abs=0.15)


def test_without_observations_the_noise_is_right() -> None:
    at_reference = batch_effect(np.array([1]), np.array([1.0]), np.array([0.3]), np.array([1.0]), 3)
    assert at_reference.tolist() == [1.0, 1.0, 1.0]
    bad = np.array([math.nan, -1.0, 0.0, math.inf, 0.5, 0.5])
    weight = np.array([1.0, 1, 1, 1, math.nan, -1])
    assert batch_effect(np.array([0] * 6), np.full(6, 0.5), bad, weight, 1).tolist() == [1.0]


def test_a_sign_that_is_against_the_noise_is_believed_once_it_is_seen() -> None:
    """In Scavenger's runs, large batches needed fewer epochs."""
    predicted = efficiency(np.array([512.0]), 128, 300.0)
    found = batch_effect(np.array([0]), predicted, 1 / predicted, np.array([5.0]), 1)
    assert found.item() < -0.5
    assert efficiency(512, 128, 300.0, found).item() > 1


def test_more_weight_more_belief() -> None:
    predicted = np.array([0.7, 0.7])
    found = batch_effect(np.arange(2), predicted, predicted**3, np.array([0.1, 10.0]), 2)
    assert 1 < found[0] < found[1] <= 3


def test_what_training_runs_showed_is_foretold_better() -> None:
    """Compare samples to the best metric that all batches reach, predicted by noise and as measured.

    The data are cifar10, imagenet and yolov3 in the traces published with Pollux. Each larger batch is
    predicted from all smaller ones, relative to the smallest.
    """
    runs = (
        ([1.05, 1.09, 1.17, 1.22, 1.34], [1.02, 1.10, 1.21, 1.55, 2.14]),
        ([1.02, 1.05, 1.09, 1.17, 1.36, 1.53], [0.94, 0.88, 1.11, 1.08, 1.15, 1.51]),
        ([1.03, 1.07, 1.16, 1.27, 1.52, 1.91], [1.00, 0.92, 0.87, 1.13, 1.31, 1.81]),
    )
    by_noise_alone = corrected = 0.0
    for predicted, observed in runs:
        by_noise, shown = 1 / np.array(predicted), 1 / np.array(observed)
        for place in range(2, len(shown)):
            seen = slice(0, place)
            effect = batch_effect(
                np.zeros(place, np.int64), by_noise[seen], shown[seen], np.ones(place), 1
            ).item()
            by_noise_alone += abs(math.log(by_noise[place] / shown[place]))
            corrected += abs(math.log(by_noise[place] ** effect / shown[place]))
    assert corrected < 0.95 * by_noise_alone
