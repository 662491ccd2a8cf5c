"""Limits beyond which a rank counts as hung."""

from __future__ import annotations

from typing import Any

import pytest

from service.domain.jobs.hung import HungLimits, hung_limits


def test_limits_for_ranks_that_hang() -> None:
    assert hung_limits("never") is None
    auto = hung_limits("auto")
    assert auto is not None
    assert auto.when_still
    assert auto.after_s == 600
    told = hung_limits(30.0)
    assert told is not None
    assert (told.after_s, told.when_still) == (30.0, False)
    assert told.factor > 1, "a slow step is not a hung one"


@pytest.mark.parametrize(
    ("hung_after", "after_s", "factor", "when_still"),
    [("auto", 600.0, 50.0, True), (30.0, 30.0, 5.0, False), (3600.0, 3600.0, 5.0, False)],
)
def test_the_limits_of_each_setting(
    hung_after: Any, after_s: float, factor: float, *, when_still: bool
) -> None:
    assert hung_limits(hung_after) == HungLimits(after_s, factor, when_still=when_still)
