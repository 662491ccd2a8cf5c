"""Conclusions of benchmarks from given times."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import allocation, forecast, overhead, replicas, stamps
from benchmarks.failure import summary
from benchmarks.stamps import Stamp


def steps(world_size: int, *at_s: float) -> list[Stamp]:
    return [Stamp(one, world_size) for one in at_s]


def test_a_pause_is_the_gap_less_one_normal_step_of_the_new_size() -> None:
    noted = steps(1, 0.0, 1.0, 2.0) + steps(2, 7.0, 9.0, 11.0, 13.0) + steps(1, 14.5, 15.5, 16.5)
    grow, shrink = stamps.pauses(noted)
    assert (grow.grows, shrink.grows) == (True, False)
    assert grow.pause_s == pytest.approx(5.0 - 2.0)
    assert shrink.pause_s == pytest.approx(1.5 - 1.0)


def test_a_change_that_no_steps_follow_is_left_out() -> None:
    assert stamps.pauses(steps(1, 0.0, 1.0) + steps(2, 3.0, 4.0)) == []


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("1.5 1\n2.5 2\n3.")
    assert stamps.read(tmp_path / "steps") == [Stamp(1.5, 1), Stamp(2.5, 2)]


def test_rounds_are_compared_one_by_one() -> None:
    """The machine may be twice as slow in one round as in another."""
    found = overhead.compare([([1.1], [1.0]), ([2.2], [2.0]), ([3.3], [3.0]), ([1.0], [0.5])])
    assert found.ratio == pytest.approx(1.1)


def test_rare_steps_count_in_a_mean_up_to_three_median_steps() -> None:
    """One of eight steps takes 1.8 s, and another stands for a pause of the machine."""
    ours, theirs = [1.0] * 6 + [1.8, 60.0], [1.0] * 7 + [3.0]
    found = overhead.compare([(ours, theirs), (ours, theirs)], mean=True)
    assert found.ratio == pytest.approx((6 + 1.8 + 3.0) / (7 + 3.0))
    assert (found.step_s, found.plain_step_s) == (1.0, 1.0)
    assert overhead.compare([(ours, theirs), (ours, theirs)]).ratio == 1.0


def replica_steps(world_size: int, first: int, *digests: int) -> list[replicas.Step]:
    """Steps from this number on, one a second, with memory in use of 100 MB and 1 MB for each step."""
    return [
        replicas.Step(float(step), world_size, step, digest, 100_000_000 + step * 1_000_000, 0)
        for step, digest in enumerate(digests, start=first)
    ]


def test_replicas_are_compared_at_the_steps_that_they_took_together() -> None:
    kept = replica_steps(1, 1, 11, 12) + replica_steps(2, 3, 13, 14, 15)
    newcomer = replica_steps(2, 3, 13, 14)
    assert replicas.compare([kept, newcomer]) == (2, True)
    assert replicas.compare([kept, replica_steps(2, 3, 13, 0)]) == (2, False)


def test_a_recovery_lasts_from_the_last_step_of_two_to_the_first_of_one() -> None:
    steps = (
        replica_steps(2, 1, 0, 0) + replica_steps(1, 5, 0) + replica_steps(2, 6, 0) + replica_steps(1, 8, 0)
    )
    assert replicas.recoveries_s(steps) == [3.0, 2.0]


def test_memory_grows_from_the_first_return_to_one_rank_on() -> None:
    steps = replica_steps(1, 1, 0) + replica_steps(2, 2, 0) + replica_steps(1, 3, 0, 0)
    steps += replica_steps(2, 5, 0) + replica_steps(1, 6, 0)
    assert replicas.growth_mb(steps) == {"memory_growth_mb": 2.0, "host_memory_growth_mb": 0.0}


def test_the_most_lost_steps_count() -> None:
    kills = [{"recovery_s": seconds, "lost_steps": lost} for seconds, lost in ((0.1, 0), (0.2, 1), (0.9, 0))]
    assert summary(kills) == {"recovery_s": 0.2, "lost_steps": 1, "slowest_s": 0.9, "kills": 3}


def test_the_speed_of_a_jobs_halves_is_compared() -> None:
    seen = [(0.0, 0), (1.0, 10), (2.0, 20), (3.0, 30), (4.0, 35), (5.0, 40)]
    assert forecast.drift_of(seen) == pytest.approx(0.5)
    assert forecast.drift_of(seen[:2]) == 1.0


def test_growth_is_the_steepest_slope_between_neighbouring_sizes() -> None:
    assert allocation.growth({100: 1.0, 1_000: 10.0, 10_000: 1_000.0}) == pytest.approx(2.0)
    assert allocation.growth({10_000: 3.0, 1_000: 3.0}) == 0.0
    assert allocation.growth({50: 1.0}) is None
