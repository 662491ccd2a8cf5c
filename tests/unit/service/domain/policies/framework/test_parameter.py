"""Tests of the declaration of parameters: intervals of valid values, and their description."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.policies.framework.parameter import Meaning, meaning, parameter


@pytest.mark.parametrize(
    ("interval", "valid", "invalid"),
    [
        ({}, [-1e300, 0.0, 1e300], []),
        ({"above": 0.0}, [5e-324, 1.0], [0.0, -1.0]),
        ({"at_least": 0.0}, [0.0, 1.0], [-5e-324]),
        ({"below": 1.0}, [-9.0, 0.999], [1.0, 2.0]),
        ({"at_most": 1.0}, [-9.0, 1.0], [1.0000001]),
        ({"above": 0.0, "at_most": 1.0}, [0.5, 1.0], [0.0, 1.5]),
        ({"at_least": -8.0, "below": 0.0}, [-8.0, -0.1], [-8.1, 0.0]),
        ({"at_least": 2.0, "at_most": 2.0}, [2.0], [1.9, 2.1]),
    ],
)
def test_an_interval_is_open_or_closed_at_each_end(
    interval: dict[str, float], valid: list[float], invalid: list[float]
) -> None:
    allowed = Meaning(text="", **interval)
    assert [value for value in valid if not allowed.holds(value)] == []
    assert [value for value in invalid if allowed.holds(value)] == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_interval_holds_a_value_that_is_not_finite(value: float) -> None:
    assert not Meaning(text="").holds(value)


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ({}, ""),
        ({"above": 0.0}, "above 0"),
        ({"at_least": -1.0}, "at least -1"),
        ({"at_most": 0.5}, "at most 0.5"),
        ({"below": 1e6}, "below 1e+06"),
        ({"above": 0.0, "at_most": 1.0}, "above 0, at most 1"),
        ({"below": 0.0, "at_least": -8.0}, "at least -8, below 0"),
    ],
)
def test_an_interval_in_words(interval: dict[str, float], words: str) -> None:
    assert Meaning(text="", **interval).interval() == words


@settings(max_examples=40)
@given(st.floats(-10, 10), st.floats(-10, 10), st.floats())
def test_an_interval_holds_what_lies_between_its_ends(low: float, high: float, value: float) -> None:
    closed = Meaning(text="", at_least=low, at_most=high)
    opened = Meaning(text="", above=low, below=high)
    assert closed.holds(value) == (low <= value <= high)
    assert opened.holds(value) == (low < value < high)


@dataclass(frozen=True)
class Example:
    """A policy's parameters."""

    p: float = parameter(0.5, "Exponent.", above=0, at_most=1)
    limits: tuple[float, ...] = parameter((1.0, 2.0), "Limits.")
    plain: float = 3.0


def field(name: str) -> dataclasses.Field[Any]:
    return next(one for one in dataclasses.fields(Example) if one.name == name)


def test_a_parameter_is_a_field_with_its_default_and_meaning() -> None:
    assert Example() == Example(p=0.5, limits=(1.0, 2.0), plain=3.0)
    assert meaning(field("p").metadata) == Meaning(text="Exponent.", above=0, at_most=1)
    assert meaning(field("limits").metadata).interval() == ""


@pytest.mark.parametrize("metadata", [field("plain").metadata, {}, {"parameter": "a text"}])
def test_a_field_without_a_meaning_has_an_empty_one(metadata: dict[str, Any]) -> None:
    assert meaning(metadata) == Meaning(text="")


def test_an_unknown_end_of_an_interval_is_refused() -> None:
    with pytest.raises(TypeError):
        parameter(1.0, "Text.", more_than=0)
