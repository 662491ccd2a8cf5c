"""Tests of the learned loads of classes: counts by hand, decay, JSON, and what rounds contribute."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.policies.framework.class_statistics import (
    ClassLoad,
    ClassStatistics,
    configuration_keys,
    expected_widths,
    from_json,
    loads,
    observe,
    observe_jobs,
)
from service.domain.policies.framework.policy import RoundHistory
from service.domain.policies.framework.widths import fixed_widths
from tests.unit.service.domain.policies.rounds import a_round, columns


def test_a_class_without_a_known_size_has_no_load() -> None:
    known = observe(ClassStatistics(), elapsed_s=10.0, arrived=["a", "b"], sizes=[("b", 5.0)])
    assert np.isnan(loads(known, ["a", "b", "c"])).tolist() == [True, False, True]
    assert np.isnan(loads(ClassStatistics(), ["a"])).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_an_elapsed_time_or_size_that_is_not_valid_does_not_count(bad: float) -> None:
    before = observe(ClassStatistics(), elapsed_s=10.0, arrived=["a"], sizes=[("a", 5.0)])
    assert observe(before, elapsed_s=bad, sizes=[("a", bad)]) == before


def test_a_class_that_is_long_gone_is_forgotten() -> None:
    known = observe(ClassStatistics(), elapsed_s=10.0, arrived=["a"], sizes=[("a", 5.0)], memory_s=100.0)
    assert observe(known, elapsed_s=5000.0, memory_s=100.0).classes == {}


def test_statistics_as_json_are_read_back_unchanged() -> None:
    known = observe(ClassStatistics(), elapsed_s=10.0, arrived=["a"], sizes=[("a", 5.0)])
    known = replace(known, sized_jobs=["job"], classes={"a": replace(known.classes["a"], rates={"x": 2.0})})
    assert from_json(json.loads(json.dumps(dataclasses.asdict(known)))) == known
    assert from_json({}) == ClassStatistics()


def see(statistics: ClassStatistics, ids: list[str], ages: list[float], sizes: list[float], rate=None):
    """A round of jobs of class `a` that run at 1 or 1.5 samples per second, 10 s after the one before."""
    rate = [[1.0, 1.5]] * len(ids) if rate is None else rate
    round_ = a_round(rate, [1, 2], capacity=100, age_s=np.array(ages))
    history = RoundHistory(
        elapsed_s=10.0,
        usd_per_h=0.0,
        job_ids=ids,
        classes=["a"] * len(ids),
        samples=np.array(sizes),
        state={},
    )
    return observe_jobs(statistics, round_, history)


def test_every_job_is_counted_once_and_its_size_when_it_is_known() -> None:
    known = see(ClassStatistics(), ["x", "y"], [500.0, 5.0], [math.nan, 40.0])
    assert known.classes["a"].arrived == 1.0
    assert known.classes["a"].sized == 1.0
    known = see(known, ["x", "y"], [510.0, 15.0], [60.0, 40.0])
    known = see(known, ["x", "y"], [520.0, 25.0], [60.0, 40.0])
    assert known.classes["a"].arrived == pytest.approx(1.0, abs=1e-3)
    assert known.classes["a"].sized == pytest.approx(2.0, abs=1e-3)
    assert known.classes["a"].samples == pytest.approx(100.0, abs=1e-2)
    assert sorted(known.sized_jobs) == ["x", "y"]
    assert see(known, [], [], [], rate=np.zeros((0, 2))).sized_jobs == []


def test_a_job_of_unknown_size_is_counted_at_its_end() -> None:
    nobody = RoundHistory(
        elapsed_s=10.0, usd_per_h=0.0, job_ids=[], classes=[], samples=np.zeros(0), state={},
        ended=[("a", 30.0), ("b", 7.0), ("a", 50.0), ("c", 0.0)],
    )  # fmt: skip
    known = see(ClassStatistics(), ["x"], [5.0], [math.nan])
    known = observe_jobs(known, a_round(np.zeros((0, 2)), [1, 2], capacity=100), nobody)
    assert {name: (one.sized, one.samples) for name, one in known.classes.items()} == {
        "a": (2.0, 80.0),
        "b": (1.0, 7.0),
    }
    assert known.classes["a"].arrived == pytest.approx(1.0, abs=1e-3)
    assert loads(known, ["a"])[0] == pytest.approx(40.0 / 20.0, rel=1e-3)


def test_widths_are_learned_from_what_rounds_see() -> None:
    """One job of 20 samples every 10 s: 2 samples per second, which two slots each would do at 1.5."""
    known = ClassStatistics()
    configurations = columns([1, 2])
    for round_ in range(300):
        assert (expected_widths(known, configurations, budget_usd_per_h=2.2) is None) == (round_ < 21)
        known = see(known, [f"job{round_}"], [5.0], [20.0])
    found = expected_widths(known, configurations, budget_usd_per_h=2.2)
    exact = fixed_widths(np.array([2.0]), np.array([[1.0, 1.5]]), np.array([1.0, 2.0]), budget_usd_per_h=2.2)
    assert found is not None
    assert found.jobs == pytest.approx(exact.jobs, rel=0.01)
    assert found.mu_h_per_usd == pytest.approx(exact.mu_h_per_usd)


def test_a_class_that_is_absent_is_remembered_and_a_configuration_that_is_gone_does_not_count() -> None:
    known = ClassStatistics()
    for round_ in range(50):
        known = see(known, [f"job{round_}"], [5.0], [20.0])
    known = see(known, [], [], [], rate=np.zeros((0, 2)))
    found = expected_widths(known, columns([4, 2]), budget_usd_per_h=100.0)
    assert found is not None
    assert found.share.tolist() == [[0.0, 1.0]]
    assert expected_widths(known, columns([4, 8]), budget_usd_per_h=100.0) is None


def test_counts_of_a_class_decay_by_e_in_the_time_constant() -> None:
    """Everything decays by a factor of e in the time constant, and so does the observed time."""
    first = observe(
        ClassStatistics(), elapsed_s=100.0, arrived=["a", "a", "b"], sizes=[("a", 6.0)], memory_s=100.0
    )
    assert first.observed_s == pytest.approx(100.0 * (1 - math.exp(-1)))
    assert (first.classes["a"].arrived, first.classes["a"].sized, first.classes["a"].samples) == (2, 1, 6)
    second = observe(first, elapsed_s=50.0, arrived=["a"], sizes=[("b", 2.0)], memory_s=100.0)
    fade = math.exp(-0.5)
    assert second.observed_s == pytest.approx(100.0 * (1 - math.exp(-1.5)))
    assert second.classes["a"].arrived == pytest.approx(2 * fade + 1)
    assert second.classes["a"].samples == pytest.approx(6 * fade)
    assert (second.classes["b"].arrived, second.classes["b"].sized) == (pytest.approx(fade), 1.0)


def test_no_time_changes_nothing_but_the_counts() -> None:
    before = observe(ClassStatistics(), elapsed_s=100.0, arrived=["a"])
    after = observe(before, elapsed_s=0.0, arrived=["a"])
    assert (after.observed_s, after.classes["a"].arrived) == (before.observed_s, 2.0)


@settings(max_examples=25)
@given(st.lists(st.floats(1.0, 1e5), min_size=1, max_size=6))
def test_time_is_counted_alike_in_few_and_in_many_steps(steps: list[float]) -> None:
    known = ClassStatistics(classes={"a": ClassLoad(arrived=8.0, sized=4.0, samples=2.0)}, observed_s=50.0)
    once = observe(known, elapsed_s=sum(steps))
    many = known
    for elapsed_s in steps:
        many = observe(many, elapsed_s=elapsed_s)
    assert many.observed_s == pytest.approx(once.observed_s)
    assert many.classes["a"].arrived == pytest.approx(once.classes["a"].arrived)
    assert many.classes["a"].samples == pytest.approx(once.classes["a"].samples)


@pytest.mark.parametrize(
    ("load", "observed_s", "expected"),
    [
        (ClassLoad(arrived=10.0, sized=5.0, samples=40.0), 100.0, 0.8),  # 0.1 jobs/s of 8 samples
        (ClassLoad(arrived=0.0, sized=5.0, samples=40.0), 100.0, 0.0),
        (ClassLoad(arrived=10.0), 100.0, math.nan),
        (ClassLoad(arrived=10.0, sized=5.0, samples=40.0), 0.0, math.nan),
    ],
)
def test_the_load_of_a_class_is_its_arrivals_times_its_mean_size(
    load: ClassLoad, observed_s: float, expected: float
) -> None:
    known = ClassStatistics(observed_s=observed_s, classes={"a": load})
    assert loads(known, ["a"]).tolist() == pytest.approx([expected], nan_ok=True)


def test_loads_are_in_the_order_of_the_names() -> None:
    classes = {
        name: ClassLoad(arrived=float(place), sized=1.0, samples=1.0) for place, name in enumerate("abc")
    }
    known = ClassStatistics(observed_s=1.0, classes=classes)
    assert loads(known, ["c", "a", "b"]).tolist() == [2.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ({}, ClassStatistics()),
        ({"observed_s": 5.0, "of_a_later_version": 1}, ClassStatistics(observed_s=5.0)),
        (
            {"classes": {"a": {"arrived": 2.0, "of_a_later_version": 1}}},
            ClassStatistics(classes={"a": ClassLoad(arrived=2.0)}),
        ),
        ({"sized_jobs": ["x"]}, ClassStatistics(sized_jobs=["x"])),
    ],
)
def test_json_of_another_version_is_read_as_far_as_it_is_known(
    kept: dict[str, Any], expected: ClassStatistics
) -> None:
    assert from_json(kept) == expected


def test_a_column_is_named_by_kind_slots_and_nodes() -> None:
    assert configuration_keys(columns([1, 2, 4], kind=[0, 1, 1])) == ["kind0/1/1", "kind1/2/1", "kind1/4/1"]


@pytest.mark.parametrize(("age_s", "arrived"), [(0.0, 1.0), (9.999, 1.0), (10.0, 0.0), (1e6, 0.0)])
def test_a_job_that_is_younger_than_the_round_before_arrived(age_s: float, arrived: float) -> None:
    assert see(ClassStatistics(), ["x"], [age_s], [math.nan]).classes["a"].arrived == arrived


def test_the_rate_of_a_class_is_the_mean_of_its_jobs_that_run_there() -> None:
    known = see(ClassStatistics(), ["x", "y"], [5.0] * 2, [math.nan] * 2, rate=[[1.0, 0.0], [3.0, 5.0]])
    assert known.classes["a"].rates == {"kind0/1/1": 2.0, "kind0/2/1": 5.0}
    again = see(known, ["x"], [60.0], [math.nan], rate=[[0.0, 7.0]])
    assert again.classes["a"].rates == {"kind0/1/1": 2.0, "kind0/2/1": 7.0}


def test_classes_of_a_round_are_counted_apart() -> None:
    round_ = a_round([[1.0], [2.0], [4.0]], [1], capacity=3, age_s=[5.0, 5.0, 50.0])
    history = RoundHistory(
        elapsed_s=10.0,
        usd_per_h=0.0,
        job_ids=["x", "y", "z"],
        classes=["b", "a", "b"],
        samples=np.array([3.0, 9.0, math.nan]),
        state={},
    )
    known = observe_jobs(ClassStatistics(), round_, history)
    assert {name: one.arrived for name, one in known.classes.items()} == {"a": 1.0, "b": 1.0}
    assert {name: one.samples for name, one in known.classes.items()} == {"a": 9.0, "b": 3.0}
    assert {name: one.rates for name, one in known.classes.items()} == {
        "a": {"kind0/1/1": 2.0},
        "b": {"kind0/1/1": 2.5},
    }
    assert known.sized_jobs == ["x", "y"]


@pytest.mark.parametrize(
    ("arrived", "sized", "rates", "has_widths"),
    [
        (20.0, 1.0, {"kind0/1/1": 1.0}, True),
        (19.9, 1.0, {"kind0/1/1": 1.0}, False),
        (20.0, 0.0, {"kind0/1/1": 1.0}, False),
        (20.0, 1.0, {"kind0/8/1": 1.0}, False),
        (20.0, 1.0, {}, False),
    ],
)
def test_widths_need_enough_arrivals_a_size_and_a_rate(
    arrived: float, sized: float, rates: dict[str, float], has_widths: bool
) -> None:
    load = ClassLoad(arrived=arrived, sized=sized, samples=5.0 * sized, rates=rates)
    known = ClassStatistics(observed_s=100.0, classes={"a": load})
    found = expected_widths(known, columns([1, 2]), budget_usd_per_h=10.0)
    assert (found is not None) == has_widths


def test_a_class_without_a_size_does_not_hold_up_the_others() -> None:
    known = ClassStatistics(
        observed_s=100.0,
        classes={
            "a": ClassLoad(arrived=20.0, sized=1.0, samples=5.0, rates={"kind0/1/1": 1.0}),
            "b": ClassLoad(arrived=20.0, rates={"kind0/1/1": 1.0}),
        },
    )
    found = expected_widths(known, columns([1, 2]), budget_usd_per_h=10.0)
    assert found is not None
    assert found.share.tolist() == [[1.0, 0.0], [0.0, 0.0]]
