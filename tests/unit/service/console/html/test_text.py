"""Numbers and times in words."""

from __future__ import annotations

import math

import pytest

from service.console.html.text import between, duration, limit_words, listed, number, percent, plural, short


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "–"),
        (math.inf, "–"),
        (7500, "2h05m"),
    ],
)
def test_durations(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


def test_words() -> None:
    assert between(60, 60.1) == "1m00s"
    assert between(60, 300) == "1m00s, at most 5m00s"
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
