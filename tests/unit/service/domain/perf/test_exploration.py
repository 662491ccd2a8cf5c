"""Tests of the sizes that may be tried: the published rule, its end, and a direct loop over jobs and columns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf.exploration import (
    GROWTH,
    MIN_GAIN,
    Exploration,
    Explored,
    credible,
    explore,
    optimistic_goodput,
)
from service.domain.perf.fit import fit
from service.domain.perf.observations import Observations
from service.domain.perf.tables import JobModels, Observed, goodput_table
from service.domain.perf.throughput import ThroughputModel, prior, step_time
from service.domain.policies.framework.policy import Configurations

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


def explore_one(
    tried: tuple[int, ...] = (), current: int = -1, alike: tuple[int, ...] = (), **given: Any
) -> Explored:
    """Return the result for one job that has tried these columns of `SIZES`."""
    width = SIZES.slots.size
    return explore(
        SIZES,
        **{
            "allowed": np.ones((1, width), bool),
            "tried": np.isin(np.arange(width), tried)[None],
            "alike": np.isin(np.arange(width), alike)[None],
            "current": np.array([current]),
            "goodput": SIZES.slots[None].astype(float),
            "high": 2.0 * SIZES.slots[None],
            **given,
        },
    )


def codes(*args: Any, **given: Any) -> list[Exploration]:
    """Return the codes of one job."""
    return [Exploration(code) for code in explore_one(*args, **given).code[0]]


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


def test_what_jobs_of_its_class_tried_need_not_be_tried_again() -> None:
    assert codes(alike=(2,)) == [
        *(E.SMALLEST, E.NEAR, E.ALIKE, E.NEXT, E.TOO_FAR),
        *(E.SMALLEST, E.NEAR, E.NEAR, E.TOO_FAR),
    ]
    assert codes(tried=(3,), alike=(3, 4))[3:5] == [E.TRIED, E.ALIKE]


def test_hope_is_for_what_lies_beyond_all_that_was_tried() -> None:
    sizes = columns_of(*((0, slots) for slots in (1, 2, 4, 8)), (1, 1))
    goodput, high = np.array([[1.0, 2.0, 4.0, 8.0, 1.0]]), np.array([[1.5, 3.0, 6.0, math.nan, 2.0]])
    tried = np.array([[True, False, True, False, False]])
    assert optimistic_goodput(sizes, goodput, high, tried).tolist() == [[1.0, 2.0, 4.0, 8.0, 2.0]]
    tried[0, 2] = False
    assert optimistic_goodput(sizes, goodput, high, tried).tolist() == [[1.0, 3.0, 6.0, 8.0, 2.0]]
    nothing = np.zeros((1, 5), bool)
    assert optimistic_goodput(sizes, goodput, high, nothing).tolist() == goodput.tolist(), (
        "none is the more promising"
    )


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
            alike=np.zeros(shape, bool),
            current=np.full(jobs, -1),
            goodput=np.ones(shape),
            high=np.ones(shape),
        )
        assert got.mask.shape == got.code.shape == shape


def direct(
    configurations: Configurations,
    allowed: np.ndarray,
    tried: np.ndarray,
    alike: np.ndarray,
    current: int,
    goodput: np.ndarray,
    high: np.ndarray,
) -> list[bool]:
    """Return which columns are open to one job, rule by rule."""
    slots, kind = configurations.slots.tolist(), configurations.kind.tolist()
    known = tried | alike
    anywhere = max((slots[c] for c in range(len(slots)) if known[c]), default=0)
    result = []
    for column, size in enumerate(slots):
        same = [c for c in range(len(slots)) if kind[c] == kind[column]]
        here = [c for c in same if known[c]]
        largest = max((slots[c] for c in here), default=0)
        sizes = [slots[c] for c in same if allowed[c]]
        following = min((one for one in sizes if one > largest), default=None)
        best = max((goodput[c] for c in here if math.isfinite(goodput[c])), default=0.0)
        pays = size <= largest or not here or high[column] >= MIN_GAIN * max(best, 0.0)
        near = size <= max(GROWTH * largest, anywhere) or size == following
        always = bool(known[column]) or column == current or size == min(sizes, default=None)
        result.append(bool(allowed[column]) and (always or (near and pays)))
    return result


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_the_mask_is_that_of_a_loop(seed: int) -> None:
    draw = np.random.default_rng(seed)
    jobs, width = 4, int(draw.integers(1, 10))
    configurations = columns_of(
        *zip(draw.integers(0, 2, width), draw.choice([1, 2, 3, 4, 8, 16], width), strict=True)
    )
    allowed, tried, alike = (draw.random((jobs, width)) < share for share in (0.7, 0.3, 0.2))
    odd = [math.nan, math.inf, 0.0, 1.0, 2.0, 4.0, 8.0]
    goodput, high = (draw.choice(odd, (jobs, width)) * draw.uniform(0.9, 1.3) for _ in range(2))
    current = draw.integers(-1, width, jobs)
    got = explore(
        configurations,
        allowed=allowed,
        tried=tried,
        alike=alike,
        current=current,
        goodput=goodput,
        high=high,
    )
    for job in range(jobs):
        expected = direct(
            configurations, allowed[job], tried[job], alike[job], int(current[job]), goodput[job], high[job]
        )
        assert got.mask[job].tolist() == expected
    assert all(Exploration(code).reason for code in np.unique(got.code))


def explored(truth: ThroughputModel, batch: float) -> list[int]:
    """Return the sizes that a job tries in turn if it always takes the open size with the best goodput."""
    configurations = columns_of(*((0, 2**power) for power in range(7)))
    slots = configurations.slots
    tried: list[int] = []
    while True:
        at = np.array(tried, np.int64)
        step_s, _ = step_time(
            truth, slots=slots[at], nodes=configurations.nodes[at], local_batch=batch / slots[at]
        )
        step_s = step_s.ravel()
        model = fit(
            Observations(
                owner=np.zeros(at.size, np.int64),
                slots=slots[at].astype(float),
                nodes=configurations.nodes[at].astype(float),
                local_batch=batch / slots[at],
                accumulation=np.zeros(at.size),
                step_s=step_s,
                sync_s=np.full(at.size, math.nan),
                count=np.full(at.size, 200.0),
            ),
            1,
        )
        one = np.array([batch])
        table = goodput_table(
            JobModels(
                throughput=model[:, None],
                noise_scale=np.array([math.nan]),
                reference_batch=one,
                global_batch=one,
                max_global=one,
                max_local=np.array([[math.inf]]),
                adapts=np.array([False]),
            ),
            configurations,
            Observed(
                job=np.zeros(at.size, np.int64),
                column=at,
                samples_per_s=batch / step_s,
                global_batch=np.full(at.size, batch),
                steps=np.full(at.size, 200.0),
            ),
        )
        open_now = explore(
            configurations,
            allowed=np.ones((1, 7), bool),
            tried=np.isin(np.arange(7), at)[None],
            alike=np.zeros((1, 7), bool),
            current=np.array([tried[-1] if tried else -1]),
            goodput=table.goodput,
            high=table.high,
        ).mask
        chosen = int(np.where(open_now, table.goodput, -1.0).argmax())
        if chosen in tried:
            return [int(slots[column]) for column in tried]
        tried.append(chosen)


def test_a_job_explores_as_far_as_it_scales() -> None:
    scales = prior(compute_s=np.array([0.5]), local_batch=np.array([32.0]))
    assert explored(scales, 2048.0) == [1, 2, 4, 8, 16, 32, 64]
    slow_network = replace(scales, alpha_n=np.array([3.0]), beta_n=np.array([0.5]))
    assert explored(slow_network, 128.0) == [1, 2, 4, 8], "the second node is tried, and given up"


def bounded(
    high: list[float],
    *,
    known: tuple[int, ...],
    goodput: list[float] | None = None,
    low: list[float] | None = None,
) -> list[float]:
    """Return the bounded P90 of one job that knows these columns of 1, 2, 4 and 8 slots."""
    sizes = columns_of(*((0, slots) for slots in (1, 2, 4, 8)))
    table = np.array([high if goodput is None else goodput])
    found = credible(
        sizes,
        goodput=table,
        low=table if low is None else np.array([low]),
        high=np.array([high]),
        known=np.isin(np.arange(4), known)[None],
    )
    result: list[float] = found[0].tolist()
    return result


@pytest.mark.parametrize(
    ("known", "high", "expected"),
    [
        # The bound continues with the gain per slot between the two largest known sizes.
        pytest.param((), [1.0, 9.0, 9.0, 9.0], [1.0, 9.0, 9.0, 9.0], id="nothing is known"),
        pytest.param((0,), [2.0, 9.0, 9.0, 9.0], [2.0, 4.0, 8.0, 9.0], id="from nothing: in proportion"),
        pytest.param((0, 1), [2.0, 3.0, 9.0, 9.0], [2.0, 3.0, 5.0, 9.0], id="one a slot"),
        pytest.param((0, 2), [2.0, 9.0, 5.0, 99.0], [2.0, 9.0, 5.0, 9.0], id="one a slot over three"),
        pytest.param((0, 1), [3.0, 3.0, 9.0, 9.0], [3.0, 3.0, 3.0, 3.0], id="no gain"),
        pytest.param((0, 1), [3.0, 2.0, 9.0, 9.0], [3.0, 2.0, 2.0, 2.0], id="slower"),
        pytest.param((0, 1), [2.0, 3.0, 4.0, 4.5], [2.0, 3.0, 4.0, 4.5], id="the model expects less"),
        pytest.param((3,), [1.0, 2.0, 4.0, 8.0], [1.0, 2.0, 4.0, 8.0], id="nothing is larger"),
        pytest.param((0, 1), [2.0, 3.0, math.nan, 9.0], [2.0, 3.0, 5.0, 9.0], id="no P90 of a larger size"),
    ],
)  # fmt: skip
def test_larger_sizes_gain_no_more_a_slot_than_the_known_ones(
    known: tuple[int, ...], high: list[float], expected: list[float]
) -> None:
    assert bounded(high, known=known) == pytest.approx(expected)


def test_the_gain_is_taken_at_its_most_optimistic() -> None:
    """From P10 of one slot, 1.5, to P90 of two slots, 4."""
    found = bounded(
        [2.5, 4.0, 99.0, 99.0], known=(0, 1), goodput=[2.0, 3.0, 9.0, 9.0], low=[1.5, 2.0, 1.0, 1.0]
    )
    assert found == pytest.approx([2.5, 4.0, 4.0 + 2 * 2.5, 4.0 + 6 * 2.5])


def test_a_measured_size_without_a_p90_counts_by_its_median() -> None:
    found = bounded([2.0, math.nan, 99.0, 99.0], known=(0, 1), goodput=[2.0, 3.0, 9.0, 9.0])
    assert found[2:] == pytest.approx([5.0, 9.0])


def test_kinds_are_bounded_apart_and_none_of_them_may_have_no_column() -> None:
    sizes = columns_of((0, 1), (0, 2), (1, 1), (1, 2))
    table = np.array([[2.0, 9.0, 3.0, 9.0]])
    known = np.array([[True, False, False, False]])
    assert credible(sizes, goodput=table, low=table, high=table, known=known).tolist() == [
        [2.0, 4.0, 3.0, 9.0]
    ]
    alone = columns_of((1, 1), (1, 2))
    part = table[:, :2]
    assert credible(alone, goodput=part, low=part, high=part, known=known[:, :2]).tolist() == [[2.0, 4.0]]


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_a_bound_only_lowers_sizes_beyond_the_largest_known_one(seed: int) -> None:
    draw = np.random.default_rng(seed)
    goodput = draw.uniform(0.5, 10, (3, 9))
    low, high = goodput / draw.uniform(1, 2, (3, 9)), goodput * draw.uniform(1, 2, (3, 9))
    known = draw.random((3, 9)) < 0.3
    found = credible(SIZES, goodput=goodput, low=low, high=high, known=known)
    assert (found <= high).all()
    for columns in (SIZES.kind == 0, SIZES.kind == 1):
        largest = np.where(known & columns, SIZES.slots, 0).max(axis=1, keepdims=True)
        within = columns & ((SIZES.slots <= largest) | (largest == 0))
        assert (found == high)[within].all()
    again = credible(SIZES, goodput=goodput, low=low, high=found, known=known)
    assert again == pytest.approx(found)


@pytest.mark.parametrize(
    ("code", "is_open"),
    [
        (E.NOT_ALLOWED, False), (E.TRIED, True), (E.HELD, True), (E.SMALLEST, True), (E.NEXT, True),
        (E.NEAR, True), (E.TOO_FAR, False), (E.NOT_WORTH_IT, False), (E.ALIKE, True),
    ],
)  # fmt: skip
def test_every_code_has_a_reason_and_is_open_or_not(code: Exploration, is_open: bool) -> None:
    """One scene shows every code; the mask marks the codes that a job may be given."""
    allowed = np.ones((1, 9), bool)
    allowed[0, 8] = False
    high = np.array([[1.0, 2.0, 4.0, 99.0, 0.0, 99.0, 99.0, 99.0, 99.0]])
    scenes = [
        {"tried": (1,), "alike": (2,), "current": 7, "high": high, "allowed": allowed},
        {"tried": (2,)},
        {},
    ]
    marks = {}
    for scene in scenes:
        got = explore_one(**scene)
        marks |= dict(zip(got.code[0].tolist(), got.mask[0].tolist(), strict=True))
    assert marks[int(code)] is is_open
    assert code.reason


def test_reasons_are_distinct() -> None:
    assert len({code.reason for code in Exploration}) == len(Exploration)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, E.SMALLEST), (2, E.NEAR), (3, E.TRIED), (4, E.NEXT), (6, E.NEAR), (7, E.TOO_FAR), (16, E.TOO_FAR)],
)
def test_a_job_that_tried_three_slots_may_have_up_to_six(size: int, expected: Exploration) -> None:
    slots = (1, 2, 3, 4, 6, 7, 16)
    sizes = columns_of(*((0, one) for one in slots))
    table = np.array([slots], float)
    got = explore(
        sizes,
        allowed=np.ones((1, 7), bool),
        tried=np.array([slots]) == 3,
        alike=np.zeros((1, 7), bool),
        current=np.array([-1]),
        goodput=table,
        high=2 * table,
    )
    assert Exploration(got.code[0, slots.index(size)]) is expected
