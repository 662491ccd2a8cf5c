"""Numbers and times in words."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.console.text import between, duration, limit_words, listed, number, percent, plural, short


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "–"),
        (math.inf, "–"),
        (0, "0 s"),
        (0.27, "0.3 s"),
        (42, "42 s"),
        (150, "2 min"),
        (7199, "120 min"),
        (7500, "2 h 05 min"),
        (200_000, "2 d 8 h"),
    ],
)
def test_durations(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


@given(st.floats(0, 1e9))
def test_durations_are_short(seconds: float) -> None:
    assert len(duration(seconds)) <= 12


def test_words() -> None:
    assert between(60, 60.1) == "60 s"
    assert between(60, 300) == "60 s, at most 5 min"
    assert short(240_000) == "240k"
    assert short(9_999) == "9,999"
    assert number(0.00123) == "0.00123"
    assert number(math.nan) == "–"
    assert percent(0.004) == "0.4 %"
    assert percent(None) == "–"
    assert plural(1, "slot") == "1 slot"
    assert plural(2_000, "slot") == "2,000 slots"
    assert listed(["a", "b", "c"]) == "a, b and c"


def test_limits_in_words() -> None:
    assert limit_words("slots/a100") == "slot of a100"
    assert limit_words("packing/a100/4") == "place for 4 slots of a100 together"
    assert limit_words("something-new/x") == "something-new/x"
