"""The random clusters of benchmarks.contention, which a seed names for ever."""

from __future__ import annotations

import argparse
import math

import pytest

from benchmarks.contending.seeds import measured_seed, seeded_cluster, totals_of
from benchmarks.contention import seed_range


def test_a_seed_always_gives_the_same_cluster_and_another_seed_another_one() -> None:
    assert seeded_cluster(7) == seeded_cluster(7)
    assert len({seeded_cluster(seed).jobs for seed in range(1, 31)}) == 30


def test_the_jobs_of_every_seed_fit_their_cluster_and_most_minimums_contend() -> None:
    clusters = [seeded_cluster(seed) for seed in range(1, 31)]
    for one in clusters:
        assert all(1 <= job.minimum <= (job.maximum or 0) <= one.slots for job in one.jobs)
    contend = [one for one in clusters if sum(job.minimum for job in one.jobs) > one.slots]
    assert len(contend) >= 25
    assert {one.start_s for one in clusters} == {5.0, 60.0, 300.0}
    assert {job.resize for one in clusters for job in one.jobs} == {"live", "restart"}


@pytest.mark.slow
def test_a_seed_played_twice_measures_the_same() -> None:
    first = measured_seed(2)
    assert first == measured_seed(2)
    assert first["unfinished"] == 0
    assert first["job_hours"] > 0


def test_totals_sum_counts_and_weigh_rates_by_job_hours() -> None:
    counts = (
        "early_vacates",
        "self_evictions",
        "order_violations",
        "unfinished",
        "vacates",
        "broken_promises",
    )
    one = dict.fromkeys(counts, 0.0)
    short = one | {
        "early_vacates": 1,
        "changes": 4,
        "job_hours": 1.0,
        "forced_per_job_hour": 2.0,
        "completion_s": 10.0,
    }
    long = one | {
        "early_vacates": 2,
        "changes": 2,
        "job_hours": 5.0,
        "forced_per_job_hour": 0.2,
        "completion_s": 30.0,
    }
    totals = totals_of({"1": short, "2": long})
    assert totals["early_vacates"] == 3
    assert math.isclose(totals["changes_per_job_hour"], 1.0)
    assert math.isclose(totals["forced_per_job_hour"], 0.5)
    assert totals["completion_s"] == 20.0


@pytest.mark.parametrize(("text", "seeds"), [("3", [3]), ("1-3", [1, 2, 3])])
def test_a_range_of_seeds_includes_both_ends(text: str, seeds: list[int]) -> None:
    assert list(seed_range(text)) == seeds


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-4", "1-x"])
def test_a_text_that_is_no_range_of_seeds_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        seed_range(text)
