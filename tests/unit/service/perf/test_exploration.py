"""What may be tried: the published rule, its end, and a direct loop over jobs and columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf.exploration import GROWTH, MIN_GAIN, Exploration, explore
from service.domain.policies.policy import Configurations

E = Exploration


def columns_of(*kinds_and_slots: tuple[int, int]) -> Configurations:
    kind, slots = np.array(kinds_and_slots, np.int64).reshape(-1, 2).T
    return Configurations(
        kinds=("a", "b"),
        kind=kind,
        slots=slots,
        nodes=np.maximum(1, slots // 4),
        usd_per_h=np.zeros(slots.size),
    )


SIZES = columns_of(*((0, slots) for slots in (1, 2, 4, 8, 16)), *((1, slots) for slots in (1, 2, 4, 8)))


def codes(tried: tuple[int, ...] = (), current: int = -1, **given: Any) -> list[Exploration]:
    """The codes of one job that has tried these columns of `SIZES`."""
    width = SIZES.slots.size
    got = explore(
        SIZES,
        **{
            "allowed": np.ones((1, width), bool),
            "tried": np.isin(np.arange(width), tried)[None],
            "current": np.array([current]),
            "goodput": SIZES.slots[None].astype(float),
            "high": 2.0 * SIZES.slots[None],
            **given,
        },
    )
    return [Exploration(code) for code in got.code[0]]


def test_a_new_job_starts_at_the_smallest_of_each_kind() -> None:
    assert codes() == [E.SMALLEST, *[E.TOO_FAR] * 4, E.SMALLEST, *[E.TOO_FAR] * 3]


def test_a_job_at_most_doubles_and_may_take_its_size_to_another_kind() -> None:
    assert codes(tried=(2,)) == [
        *(E.SMALLEST, E.NEAR, E.TRIED, E.NEXT, E.TOO_FAR),
        *(E.SMALLEST, E.NEAR, E.NEAR, E.TOO_FAR),
    ]


def test_the_next_size_is_open_however_large() -> None:
    allowed = np.array([[True, False, False, False, True, False, False, False, False]])
    assert codes(tried=(0,), allowed=allowed)[4] is E.NEXT


def test_growth_ends_where_an_optimist_would_not_expect_that_it_pays() -> None:
    high = np.array([[1.0, 2.0, 4.0, 4.0 * MIN_GAIN - 0.01, 4.0 * MIN_GAIN, 1.0, 1.0, 1.0, 1.0]])
    got = codes(tried=(2,), high=high)
    assert got[3] is E.NOT_WORTH_IT
    assert got[4] is E.TOO_FAR
    assert got[5:] == [E.SMALLEST, E.NEAR, E.NEAR, E.TOO_FAR], "another kind is not compared"


def test_what_a_job_holds_stays_open() -> None:
    assert codes(current=4)[4] is E.HELD
    assert codes(current=4, allowed=np.zeros((1, 9), bool)) == [E.NOT_ALLOWED] * 9


@pytest.mark.parametrize("promise", [math.nan, -math.inf, 0.0, -1.0])
def test_what_promises_nothing_is_not_worth_it(promise: float) -> None:
    assert codes(tried=(2,), high=np.full((1, 9), promise))[3] is E.NOT_WORTH_IT


def test_no_jobs_and_no_columns() -> None:
    for jobs, width in ((0, 2), (2, 0), (0, 0)):
        shape = (jobs, width)
        got = explore(
            columns_of(*[(0, 1)] * width),
            allowed=np.ones(shape, bool),
            tried=np.zeros(shape, bool),
            current=np.full(jobs, -1),
            goodput=np.ones(shape),
            high=np.ones(shape),
        )
        assert got.mask.shape == got.code.shape == shape


def direct(
    configurations: Configurations,
    allowed: np.ndarray,
    tried: np.ndarray,
    current: int,
    goodput: np.ndarray,
    high: np.ndarray,
) -> list[bool]:
    """Whether each column of one job is open, rule by rule."""
    slots, kind = configurations.slots.tolist(), configurations.kind.tolist()
    anywhere = max((slots[c] for c in range(len(slots)) if tried[c]), default=0)
    result = []
    for column, size in enumerate(slots):
        same = [c for c in range(len(slots)) if kind[c] == kind[column]]
        here = [c for c in same if tried[c]]
        largest = max((slots[c] for c in here), default=0)
        sizes = [slots[c] for c in same if allowed[c]]
        following = min((one for one in sizes if one > largest), default=None)
        best = max((goodput[c] for c in here if math.isfinite(goodput[c])), default=0.0)
        pays = size <= largest or not here or high[column] >= MIN_GAIN * max(best, 0.0)
        near = size <= max(GROWTH * largest, anywhere) or size == following
        always = bool(tried[column]) or column == current or size == min(sizes, default=None)
        result.append(bool(allowed[column]) and (always or (near and pays)))
    return result


@settings(max_examples=60)
@given(st.data())
def test_the_mask_is_that_of_a_loop(data: st.DataObject) -> None:
    column = st.tuples(st.integers(0, 1), st.sampled_from([1, 2, 3, 4, 8, 16]))
    configurations = columns_of(*data.draw(st.lists(column, min_size=1, max_size=9)))
    jobs, width = 4, configurations.slots.size
    numbers = st.one_of(st.floats(0.5, 20), st.sampled_from([math.nan, math.inf, 0.0]))

    def table(values: st.SearchStrategy[Any]) -> np.ndarray:
        return np.array(data.draw(st.lists(values, min_size=jobs * width, max_size=jobs * width))).reshape(
            jobs, width
        )

    allowed, tried, goodput, high = (table(one) for one in (st.booleans(), st.booleans(), numbers, numbers))
    current = np.array(data.draw(st.lists(st.integers(-1, width - 1), min_size=jobs, max_size=jobs)))
    got = explore(configurations, allowed=allowed, tried=tried, current=current, goodput=goodput, high=high)
    for job in range(jobs):
        expected = direct(
            configurations, allowed[job], tried[job], int(current[job]), goodput[job], high[job]
        )
        assert got.mask[job].tolist() == expected
    assert all(Exploration(code).reason for code in np.unique(got.code))
