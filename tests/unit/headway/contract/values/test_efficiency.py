"""The efficiency of a batch by hand, its bounds, and the service's arrays, which compute the same."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.efficiency import efficiency
from service.domain.perf import efficiency as arrays

sizes = st.integers(1, 10**6)
normal = st.floats(0.0, 1e6, allow_subnormal=False)
"""Numbers that have all their digits."""
norms = st.floats(1e-6, 1e6)


@pytest.mark.parametrize(
    ("batch", "reference", "sqr", "var", "effect", "expected"),
    [
        (64, 64, 1.0, 100.0, 1.0, 1.0),
        (300, 100, 1.0, 100.0, 1.0, 0.5),  # (100 + 100) / (100 + 300)
        (50, 100, 1.0, 100.0, 1.0, 4 / 3),  # (100 + 100) / (100 + 50)
        (300, 100, 1.0, 100.0, 2.0, 0.25),
        (300, 100, 1.0, 0.0, 1.0, 1 / 3),  # without noise a step counts as one
        (300, 100, 0.0, 5.0, 1.0, 1.0),  # without a signal every sample counts
        (300, 100, 0.0, 0.0, 1.0, 1 / 3),
        (300, 100, None, None, 1.0, 1 / 3),
        (50, 100, None, 3.0, 1.0, 1.0),
        (300, 100, -1.0, 100.0, 1.0, 1 / 3),
        (300, 100, math.nan, 100.0, 1.0, 1 / 3),
        (300, 100, 1.0, math.inf, 1.0, 1 / 3),
    ],
)
def test_by_hand(
    batch: int, reference: int, sqr: float | None, var: float | None, effect: float, expected: float
) -> None:
    assert efficiency(batch, reference, sqr=sqr, var=var, effect=effect) == pytest.approx(expected)


@given(sizes, st.none() | norms, st.none() | norms)
def test_the_reference_is_worth_exactly_one(batch: int, sqr: float | None, var: float | None) -> None:
    """Otherwise a job that never changes its batch would lose its exact count."""
    assert efficiency(batch, batch, sqr=sqr, var=var) == 1.0


@given(sizes, sizes, norms, norms)
def test_a_step_of_a_larger_batch_is_worth_between_one_and_their_ratio(
    one: int, other: int, sqr: float, var: float
) -> None:
    batch, reference = max(one, other), min(one, other)
    steps = batch / reference * efficiency(batch, reference, sqr=sqr, var=var)
    assert 1.0 - 1e-9 <= steps <= batch / reference * (1.0 + 1e-9)


@given(sizes, sizes, normal, normal, st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_the_service_computes_the_same(
    batch: int, reference: int, sqr: float, var: float, effect: float
) -> None:
    phi = arrays.noise_scale(sqr, var)
    expected = float(arrays.efficiency(batch, reference, phi, effect))
    assert efficiency(batch, reference, sqr=sqr, var=var, effect=effect) == pytest.approx(expected, rel=1e-6)
