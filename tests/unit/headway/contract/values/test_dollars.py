from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.dollars import digits_after, dollars, dollars_with


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (0.0, "$0.00"),
        (0.00123, "$0.0012"),
        (0.004, "$0.0040"),
        (0.0153, "$0.015"),
        (0.01, "$0.010"),
        (0.1, "$0.10"),
        (1234.567, "$1,234.57"),
        (-0.5, "-$0.50"),
        (-0.004, "-$0.0040"),
        (1e-15, "$0.000000000"),
    ],
)
def test_dollars(amount: float, said: str):
    assert dollars(amount) == said


@given(st.floats(1e-8, 1e9))
def test_what_is_said_is_near_the_amount_and_never_nothing(amount: float):
    said = float(dollars(amount).replace("$", "").replace(",", ""))
    assert said == pytest.approx(amount, rel=0.051)


@pytest.mark.parametrize(("total", "digits"), [(0.0, 2), (0.0105, 4), (0.5, 3), (40.5, 2), (float("inf"), 2)])
def test_a_column_has_the_digits_of_its_total(total: float, digits: int):
    assert digits_after(total, 3) == digits
    assert dollars_with(0.004, 4) == "$0.0040"
