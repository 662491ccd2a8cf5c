"""Tests of efficiency from noise: Pollux's formula by hand, its limits, and input that is not valid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf.batch import Noise
from service.domain.perf.efficiency import efficiency
from service.domain.perf.throughput import LEAST, MOST

anything = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, math.nan, math.inf, 1.0]))
batches = st.integers(1, 100_000)


@pytest.mark.parametrize(
    ("batch", "reference", "noise", "expected"),
    [
        # Pollux, OSDI'21, section 3.1: (phi + m0) / (phi + M).
        (128, 128, 1000.0, 1.0),
        (256, 128, 1000.0, 1128 / 1256),
        (1024, 128, 0.0, 128 / 1024),
        (64, 128, 1000.0, 1128 / 1064),
        (64, 128, 0.0, 2.0),
        (4096, 128, math.inf, 1.0),
        (MOST, 1.0, MOST**2, 1.0),
        # Without a noise scale, no other batch gains anything.
        (64, 128, math.nan, 1.0),
        (128, 128, math.nan, 1.0),
        (256, 128, math.nan, 0.5),
        (256, 128, -1.0, 0.5),
        (LEAST, MOST, math.nan, 1.0),
    ],
)
def test_efficiency_is_the_published_formula(
    batch: float, reference: float, noise: float, expected: float
) -> None:
    assert efficiency(batch, reference, noise).item() == pytest.approx(expected)


@pytest.mark.parametrize("bad", [0.0, -1.0, LEAST / 2, 2 * MOST, math.nan, math.inf, -math.inf])
def test_a_batch_that_is_not_valid_makes_no_progress(bad: float) -> None:
    assert efficiency(bad, 128, 100.0).item() == 0.0
    assert efficiency(128, bad, 100.0).item() == 0.0


@pytest.mark.parametrize("limit", [LEAST, MOST])
def test_the_limits_of_a_batch_are_valid(limit: float) -> None:
    assert efficiency(limit, limit, 1.0).item() == 1.0


def test_arguments_broadcast() -> None:
    worth = efficiency(np.array([[64, 128, 256]]), np.array([[128], [64]]), np.array([[0.0], [math.inf]]))
    assert worth.tolist() == [[2.0, 1.0, 0.5], [1.0, 1.0, 1.0]]


@settings(max_examples=40)
@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), batches, batches)
def test_agrees_with_the_noise_that_a_job_reports(sqr: float, var: float, batch: int, reference: int) -> None:
    worth = efficiency(batch, reference, var / sqr).item()
    assert worth == pytest.approx(Noise(sqr, var).efficiency(batch, reference))


@settings(max_examples=60)
@given(anything, anything, anything)
def test_any_input_has_an_efficiency(batch: float, reference: float, noise: float) -> None:
    worth = efficiency(batch, reference, noise).item()
    assert math.isfinite(worth)
    assert (worth > 0) == (LEAST <= batch <= MOST and LEAST <= reference <= MOST)
