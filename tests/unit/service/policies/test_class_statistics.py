from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from service.domain.policies.class_statistics import ClassLoad, ClassStatistics, loads, observe


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
    kept = json.loads(json.dumps(dataclasses.asdict(known)))
    classes = {name: ClassLoad(**one) for name, one in kept.pop("classes").items()}
    assert ClassStatistics(classes=classes, **kept) == known
