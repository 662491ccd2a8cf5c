from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from service.domain.policies.framework.class_statistics import (
    ClassStatistics,
    expected_widths,
    from_json,
    loads,
    observe,
    observe_jobs,
)
from service.domain.policies.framework.policy import RoundHistory
from service.domain.policies.framework.widths import fixed_widths
from tests.unit.service.domain.policies.rounds import a_round, columns


def test_load_is_arrival_rate_times_mean_size() -> None:
    known = ClassStatistics()
    for _ in range(1000):
        known = observe(known, elapsed_s=10.0, arrived=["bert"] * 2, sizes=[("bert", 30.0), ("bert", 50.0)])
    assert loads(known, ["bert"]).tolist() == pytest.approx([0.2 * 40.0], rel=1e-3)


def test_rates_are_right_from_the_start_and_follow_a_change() -> None:
    known = observe(
        ClassStatistics(), elapsed_s=100.0, arrived=["a"] * 10, sizes=[("a", 1.0)], memory_s=1000.0
    )
    assert loads(known, ["a"])[0] == pytest.approx(0.1, rel=0.06)
    for _ in range(100):
        known = observe(known, elapsed_s=100.0, arrived=["a"] * 30, memory_s=1000.0)
    assert loads(known, ["a"])[0] == pytest.approx(0.3, rel=0.06)


def test_a_class_without_a_known_size_has_no_load() -> None:
    known = observe(ClassStatistics(), elapsed_s=10.0, arrived=["a", "b"], sizes=[("b", 5.0)])
    assert np.isnan(loads(known, ["a", "b", "c"])).tolist() == [True, False, True]
    assert np.isnan(loads(ClassStatistics(), ["a"])).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_what_cannot_be_true_does_not_count(bad: float) -> None:
    before = observe(ClassStatistics(), elapsed_s=10.0, arrived=["a"], sizes=[("a", 5.0)])
    assert observe(before, elapsed_s=bad, sizes=[("a", bad)]) == before


def test_a_class_that_is_long_gone_is_forgotten() -> None:
    known = observe(ClassStatistics(), elapsed_s=10.0, arrived=["a"], sizes=[("a", 5.0)], memory_s=100.0)
    assert observe(known, elapsed_s=5000.0, memory_s=100.0).classes == {}


def test_is_kept_as_json() -> None:
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
