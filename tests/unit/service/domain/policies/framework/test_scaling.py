"""Tests of the scaling factor of IBM's policy: goodput as a multiple of one slot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.policies.framework.scaling import scaling_factors
from tests.unit.service.domain.policies.rounds import a_round, random_round


@pytest.mark.parametrize(
    ("goodput", "slots", "fields", "expected"),
    [
        pytest.param([10.0, 15.0, 20.0], [1, 2, 4], {}, [1.0, 1.5, 2.0], id="relative to one slot"),
        pytest.param([0.0, 20.0, 30.0], [1, 2, 4], {}, [0.0, 2.0, 3.0], id="smallest size of two slots"),
        pytest.param([10.0, 30.0], [1, 1], {"kind": [0, 1]}, [1.0, 3.0], id="slower of two kinds"),
        pytest.param([30.0, 10.0], [1, 1], {"kind": [0, 1]}, [3.0, 1.0], id="order of the kinds"),
        pytest.param(
            [40.0, 10.0, 0.0, 50.0], [1, 2, 1, 2], {"kind": [0, 0, 1, 1]}, [1.6, 0.4, 0.0, 2.0],
            id="smallest size of each kind",
        ),
        pytest.param([10.0, 12.0, 20.0], [1, 1, 2], {}, [10 / 12, 1.0, 20 / 12], id="best of equal sizes"),
        pytest.param([0.0, 0.0], [1, 2], {}, [0.0, 0.0], id="runs nowhere"),
        pytest.param([math.nan, 20.0], [1, 2], {}, [0.0, 2.0], id="invalid"),
        pytest.param(
            [10.0, 15.0], [1, 2], {"allowed": [[False, True]]}, [0.0, 1.5], id="reference is not allowed now"
        ),
        pytest.param([10.0, 15.0], [0, 2], {}, [1.0, 1.5], id="no slots count as one"),
    ],
)  # fmt: skip
def test_factors_by_hand(
    goodput: list[float], slots: list[int], fields: dict[str, Any], expected: list[float]
) -> None:
    round_ = a_round([goodput], slots, capacity=8, **fields)
    assert scaling_factors(round_)[0].tolist() == pytest.approx(expected)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0.1, 10.0))
def test_factors_have_no_unit(seed: int, factor: float) -> None:
    round_ = random_round(seed, kinds=2, sizes=3)
    other = a_round(
        factor * round_.goodput, round_.configurations.slots, kind=round_.configurations.kind, capacity=1
    )
    assert scaling_factors(other) == pytest.approx(scaling_factors(round_))


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_a_job_that_runs_has_a_factor_of_its_smallest_size(seed: int) -> None:
    """On the slowest kind, the best configuration of the smallest size has a factor of its slots."""
    round_ = random_round(seed, kinds=1, sizes=4)
    factors, slots = scaling_factors(round_), round_.configurations.slots
    for job in range(len(factors)):
        runs = np.flatnonzero(round_.goodput[job] > 0)
        if len(runs):
            assert factors[job, runs[0]] == pytest.approx(slots[runs[0]])
        else:
            assert not factors[job].any()


def test_no_jobs_and_no_columns() -> None:
    assert scaling_factors(a_round(np.zeros((0, 2)), [1, 2], capacity=1)).shape == (0, 2)
    assert scaling_factors(a_round(np.zeros((2, 0)), [], capacity=1)).shape == (2, 0)
