"""Scales of parameters and metrics: places of values, and labels that are readable beside each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.spec_sweep import Range
from service.console.pictures.scales import MOST_LABELS, scale_of, scale_of_metric


def test_listed_values_are_equally_far_apart_with_texts_below_numbers_in_their_order() -> None:
    scale = scale_of((0.1, "auto", 0.001, 1, "none"))
    assert [one.text for one in scale.labels] == ["none", "auto", "0.001", "0.1", "1"]
    assert [scale.place(value) for value in ("none", "auto", 0.001, 0.1, 1)] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert scale.place(7) is None
    assert scale_of((3,)).place(3) == 0.5


def test_whole_and_broken_one_of_a_list_have_places_of_their_own() -> None:
    scale = scale_of((1, 1.0))
    assert {scale.place(1), scale.place(1.0)} == {0.0, 1.0}


def test_long_list_has_few_labels_and_a_place_for_each_value() -> None:
    scale = scale_of(tuple(range(500)))
    assert len(scale.labels) <= MOST_LABELS
    assert scale.place(499) == 1.0


def test_log_range_has_decades_in_equal_steps() -> None:
    scale = scale_of(Range(min=1e-4, max=1.0, log=True))
    assert scale.log
    assert [one.text for one in scale.labels] == ["0.0001", "0.001", "0.01", "0.1", "1"]
    assert [scale.place(value) for value in (1e-4, 1e-2, 1.0)] == pytest.approx([0.0, 0.5, 1.0])


def test_whole_range_has_whole_labels() -> None:
    scale = scale_of(Range(min=1, max=4))
    assert all(one.text.isdecimal() for one in scale.labels)
    assert scale.place(1) == 0.0
    assert scale.place(4) == 1.0


def test_metric_that_differs_a_hundredfold_is_logarithmic_and_others_are_not() -> None:
    assert scale_of_metric([0.01, 5.0]).log
    assert not scale_of_metric([0.5, 5.0]).log
    assert not scale_of_metric([-1.0, 500.0]).log
    assert scale_of_metric([]).place(1.0) is None
    assert scale_of_metric([2.0]).place(2.0) == 0.5


def test_labels_of_close_values_differ() -> None:
    texts = [one.text for one in scale_of_metric([0.91231, 0.91244]).labels]
    assert len(set(texts)) == len(texts) == 5


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_every_finite_value_is_on_the_axis_and_larger_ones_are_not_lower(values: list[float]) -> None:
    scale = scale_of_metric(values)
    shares = [scale.place(one) for one in sorted(values)]
    known = [one for one in shares if one is not None]
    assert len(known) == len(values)
    assert all(math.isfinite(one) and 0 <= one <= 1 for one in known)
    assert known == sorted(known)
    assert all(0 <= one.share <= 1 for one in scale.labels)
