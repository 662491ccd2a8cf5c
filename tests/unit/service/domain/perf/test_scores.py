"""Tests of the scores of predictions against direct loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf.scores import error_ratio, inside, score
from tests.unit.service.builders import wild_floats

predictions = st.lists(
    st.tuples(st.integers(0, 3), wild_floats, wild_floats, wild_floats, wild_floats), max_size=20
)


@settings(max_examples=25)
@given(predictions)
def test_scores_of_each_owner_are_those_of_its_own_predictions(
    rows: list[tuple[int, float, float, float, float]],
) -> None:
    owner = np.array([row[0] for row in rows], np.int64)
    predicted, low, high, measured = np.array([row[1:] for row in rows], float).reshape(-1, 4).T
    ratio, hit = error_ratio(predicted, measured), inside(low, high, measured)
    got = score(owner, 5, ratio, hit)
    for index in range(5):
        ratios = [one for one, of in zip(ratio, owner, strict=True) if of == index and math.isfinite(one)]
        hits = [
            one
            for one, r, of in zip(hit, ratio, owner, strict=True)
            if of == index and math.isfinite(one) and math.isfinite(r)
        ]
        assert got.count[index] == len(ratios)
        errors = [abs(one - 1) for one in ratios]
        expected = (
            [np.quantile(ratios, 0.5), np.quantile(errors, 0.5), np.quantile(errors, 0.9)]
            if ratios
            else [math.nan] * 3
        )
        actual = [got.median_ratio[index], got.median_error[index], got.p90_error[index]]
        np.testing.assert_allclose(actual, expected, rtol=1e-9)
        np.testing.assert_equal(got.coverage[index], np.mean(hits) if hits else math.nan)


def test_the_coverage_of_honest_bounds_is_what_they_promise() -> None:
    draw = np.random.default_rng(7)
    measured = np.exp(0.3 * draw.standard_normal(4_000))
    bound = np.full(4_000, math.exp(0.3 * 1.2816))
    owner = np.zeros(4_000, np.int64)
    got = score(owner, 1, error_ratio(np.ones(4_000), measured), inside(1 / bound, bound, measured))
    assert got.coverage[0] == pytest.approx(0.8, abs=0.02)
    assert got.median_ratio[0] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(
    ("predicted", "measured", "expected"),
    [
        (2.0, 1.0, 2.0),
        (1.0, 4.0, 0.25),
        (0.0, 1.0, math.nan),
        (1.0, 0.0, math.nan),
        (-1.0, 1.0, math.nan),
        (1.0, -1.0, math.nan),
        (math.nan, 1.0, math.nan),
        (1.0, math.inf, math.nan),
        (math.inf, 1.0, math.nan),
        (1e300, 1e-300, math.nan),  # the ratio is not finite
    ],
)
def test_the_ratio_of_values_that_are_not_valid_is_unknown(
    predicted: float, measured: float, expected: float
) -> None:
    np.testing.assert_equal(error_ratio(np.array([predicted]), np.array([measured])), [expected])


@pytest.mark.parametrize(
    ("low", "high", "measured", "expected"),
    [
        (1.0, 3.0, 2.0, 1.0),
        (1.0, 3.0, 1.0, 1.0),
        (1.0, 3.0, 3.0, 1.0),
        (1.0, 3.0, 0.9, 0.0),
        (1.0, 3.0, 3.1, 0.0),
        (2.0, 2.0, 2.0, 1.0),
        (3.0, 1.0, 2.0, math.nan),
        (0.0, 3.0, 2.0, math.nan),
        (math.nan, 3.0, 2.0, math.nan),
        (1.0, math.inf, 2.0, math.nan),
        (1.0, 3.0, 0.0, math.nan),
        (1.0, 3.0, math.nan, math.nan),
    ],
)
def test_a_measurement_is_inside_its_bounds_unless_one_is_not_valid(
    low: float, high: float, measured: float, expected: float
) -> None:
    np.testing.assert_equal(inside(np.array([low]), np.array([high]), np.array([measured])), [expected])


def test_scores_by_hand() -> None:
    """Owner 0 has ratios of 0.5, 1.0, 1.5 and 3.0; owner 1 has one that has no bounds; owner 2 none."""
    owner = np.array([0, 1, 0, 0, 0, 0])
    ratio = np.array([1.5, 1.2, 0.5, 3.0, 1.0, math.nan])
    hit = np.array([1.0, math.nan, 0.0, 0.0, 1.0, 1.0])
    got = score(owner, 3, ratio, hit)
    assert got.count.tolist() == [4, 1, 0]
    assert got.median_ratio.tolist() == pytest.approx([1.25, 1.2, math.nan], nan_ok=True)
    assert got.median_error.tolist() == pytest.approx([0.5, 0.2, math.nan], nan_ok=True)
    assert got.p90_error.tolist() == pytest.approx([0.5 + 0.7 * 1.5, 0.2, math.nan], nan_ok=True)
    assert got.coverage.tolist() == pytest.approx([0.5, math.nan, math.nan], nan_ok=True)


def test_no_predictions_have_no_scores() -> None:
    got = score(np.zeros(0, np.int64), 2, np.zeros(0), np.zeros(0))
    assert got.count.tolist() == [0, 0]
    assert np.isnan([got.median_ratio, got.median_error, got.p90_error, got.coverage]).all()


@pytest.mark.parametrize("owner", [-1, 2])
def test_an_owner_below_zero_or_above_the_last_is_refused(owner: int) -> None:
    with pytest.raises(ValueError, match="owner"):
        score(np.array([0, owner]), 2, np.ones(2), np.ones(2))


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 10)), min_size=1, max_size=12), st.randoms())
def test_scores_do_not_depend_on_the_order_of_predictions(rows: list[tuple[int, float]], random: Any) -> None:
    def scores(rows: list[tuple[int, float]]) -> np.ndarray:
        owner, ratio = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        got = score(owner, 3, ratio, (ratio < 2).astype(float))
        return np.stack([got.median_ratio, got.median_error, got.p90_error, got.coverage])

    mixed = list(rows)
    random.shuffle(mixed)
    np.testing.assert_allclose(scores(rows), scores(mixed))
