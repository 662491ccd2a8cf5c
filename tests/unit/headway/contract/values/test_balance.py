"""The rule for uneven local batches: its text, and its bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.balance import OFF, BalanceRule, balance_of


@given(
    st.builds(
        BalanceRule,
        dead_band=st.floats(0, 1, exclude_max=True),
        min_share=st.floats(0, 1),
        max_share=st.floats(1, 1e9) | st.just(math.inf),
    )
)
def test_a_rule_survives_its_text(rule: BalanceRule) -> None:
    assert balance_of(str(rule)) == rule


def test_off_is_no_rule() -> None:
    assert balance_of(OFF) is None


@pytest.mark.parametrize(
    "text",
    ["on", "[]", "1", '{"dead_band": 1}', '{"dead_band": -0.1}', '{"min_share": 1.1}', '{"max_share": 0.9}',
     '{"max_share": "x"}', '{"dead_band": null}', '{"colour": 1}', '{"min_share": NaN}'],
)  # fmt: skip
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        balance_of(text)
