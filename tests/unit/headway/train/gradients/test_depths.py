"""Levels of ranks, their samples, and the measured costs of the levels."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.depths import cost
from headway.train.data.batching import Batching, Bounds
from headway.train.data.boundary import Agreement, Statement
from headway.train.data.position import Split
from headway.train.gradients.depths import Depths, LevelCosts, PartialStep, levels

HALF = Depths((2 / 3, 1.0))
THIRDS = Depths((0.5, 0.75, 1.0))


def split_of(rank: int, ranks: int, depths: Depths | None, **given: object) -> Split:
    split = Split(global_batch=60, rank=rank, world_size=ranks, max_local=None, depths=depths)
    return replace(split, **given)  # type: ignore[arg-type]


@given(step=st.integers(0, 10**6), ranks=st.integers(1, 40))
def test_each_level_has_one_rank_in_every_step_and_each_rank_takes_all_in_turn(step: int, ranks: int) -> None:
    assert sorted(levels(step, ranks)) == list(range(ranks))
    assert [sorted(levels(step + more, ranks)[0] for more in range(ranks))] == [list(range(ranks))]


def test_samples_by_hand() -> None:
    # At costs 2/3 and 1, ranks that finish together take 3/5 and 2/5 of 60 samples.
    steps = [split_of(0, 2, HALF).step(start, 1000) for start in (0, 60, 120)]
    assert [len(one.share) for one in steps] == [36, 24, 36]
    assert [one.partial and one.partial.levels for one in steps] == [(0, 1), (1, 0), (0, 1)]
    assert [one.partial and one.partial.samples for one in steps] == [(36, 24), (24, 36), (36, 24)]
    assert [one.partial and one.partial.deepest for one in steps] == [1, 0, 1]


def test_ranks_of_unequal_speed_share_by_both() -> None:
    # The first rank is twice as fast: 40 to 20 at full depth. At levels 0 and 1: 40 * 3/2 to 20, of 60.
    step = split_of(0, 2, HALF, local_batches=(40, 20)).step(0, 1000)
    assert step.partial is not None
    assert step.partial.samples == (45, 15)


def test_equal_samples_where_the_script_wants_them() -> None:
    step = split_of(0, 2, replace(HALF, even=True)).step(0, 1000)
    assert step.partial == PartialStep((0, 1), (30, 30))


@pytest.mark.parametrize(("left", "partial"), [(1, False), (2, False), (3, True), (60, True)])
def test_a_step_with_a_rank_without_samples_is_whole(left: int, partial: bool) -> None:
    steps = [split_of(rank, 3, THIRDS).step(60, 60 + left) for rank in range(3)]
    assert {one.partial is not None for one in steps} == {partial}
    assert sum(len(one.share) for one in steps) == left


@given(
    ranks=st.integers(1, 6),
    batch=st.integers(1, 90),
    start=st.integers(0, 20),
    limit=st.integers(1, 9) | st.none(),
)
def test_ranks_agree_and_take_every_sample_once(
    ranks: int, batch: int, start: int, limit: int | None
) -> None:
    depths = Depths(tuple(cost((level + 1) / ranks) for level in range(ranks)))
    steps = [
        split_of(rank, ranks, depths, global_batch=batch, max_local=limit).step(start * batch, 1000 * batch)
        for rank in range(ranks)
    ]
    assert len({one.partial for one in steps}) == 1
    assert [sample for one in steps for sample in one.share] == list(steps[0].batch)
    partial = steps[0].partial
    if partial is not None:
        assert partial.samples == tuple(len(one.share) for one in steps)
        assert partial.samples_from(0) == batch
        assert partial.samples_from(ranks - 1) == len(steps[partial.deepest].share) > 0


def test_samples_of_the_ranks_that_compute_a_layer() -> None:
    step = PartialStep((1, 2, 0), (10, 20, 30))
    assert [step.samples_from(level) for level in range(3)] == [60, 30, 20]
    assert step.deepest == 1


def test_the_time_at_full_depth() -> None:
    # 36 samples at 2/3 took 2.4 s: 30 at full depth would take 3 s. 24 whole ones took 2.4 s: 30 take 3 s.
    found = HALF.whole_s(PartialStep((0, 1), (36, 24)), (2.4, 2.4), (30, 30))
    assert found == pytest.approx((3.0, 3.0))
    assert HALF.whole_s(PartialStep((0, 1), (0, 24)), (0.1, 2.4), (30, 30))[0] == 0.0


def agreement_of(seconds: tuple[float, ...]) -> Agreement:
    return Agreement(tuple(Statement(compute_s=one) for one in seconds))


def trained(
    batching: Batching, true_costs: tuple[float, ...], speeds: tuple[float, ...], steps: int
) -> tuple[int, ...]:
    """The samples of the last step, after steps whose ranks take so long per sample at each level."""
    before: tuple[float, ...] = (0.0,) * len(speeds)
    rng = random.Random(7)
    for number in range(steps):
        step = batching.split.step(number * batching.split.global_batch, 10**9)
        batching.end_step(step, agreement_of(before))
        assert step.partial is not None
        before = tuple(
            samples * true_costs[level] / speed * rng.uniform(0.98, 1.02)
            for samples, level, speed in zip(step.partial.samples, step.partial.levels, speeds, strict=True)
        )
    assert step.partial is not None
    return step.partial.samples


def test_measured_costs_replace_the_guess() -> None:
    batching = Batching(Bounds(global_batch=600), rank=0, world_size=2)
    assert batching.go_partly((0.5, 1.0))
    # The first layers take most of the time: half of the layers cost 0.45 and not 0.67 of a sample.
    samples = trained(batching, (0.45, 1.0), (1000.0, 1000.0), 101)
    assert samples[0] / samples[1] == pytest.approx(1 / 0.45, rel=0.1)


def test_slow_ranks_are_told_from_deep_ones() -> None:
    batching = Batching(Bounds(global_batch=600), rank=0, world_size=2)
    batching.go_partly((0.5, 1.0))
    samples = trained(batching, (2 / 3, 1.0), (1000.0, 500.0), 101)
    assert batching.local_batches[0] / batching.local_batches[1] == pytest.approx(2.0, rel=0.15)
    assert samples[0] / samples[1] == pytest.approx(2.0 * 1.5, rel=0.15)


def test_a_guess_that_is_right_changes_nothing() -> None:
    costs = LevelCosts((0.5, 1.0))
    changed = [
        costs.observe(PartialStep(levels(number, 2), (36, 24) if number % 2 == 0 else (24, 36)), (1.0, 1.0))
        for number in range(100)
    ]
    assert not any(changed)
    assert costs.costs == pytest.approx((2 / 3, 1.0))


def test_times_that_cannot_be_true_do_not_count() -> None:
    costs = LevelCosts((0.5, 1.0))
    for number in range(100):
        step = PartialStep(levels(number, 2), (30, 30))
        assert not costs.observe(step, (0.0, 1.0))
        assert not costs.observe(step, (float("inf"), 1.0))


def test_a_deeper_level_never_costs_less() -> None:
    costs = LevelCosts((0.5, 0.75, 1.0))
    times = {0: 0.9, 1: 0.6, 2: 1.0}
    for number in range(15):
        at = levels(number, 3)
        costs.observe(PartialStep(at, (10, 10, 10)), tuple(10 * times[level] for level in at))
    assert costs.costs == pytest.approx((0.9, 0.9, 1.0))


def test_depths_end_with_the_generation() -> None:
    batching = Batching(Bounds(global_batch=60), rank=0, world_size=2)
    assert not batching.go_partly((1.0, 1.0))
    assert batching.go_partly((0.5, 1.0))
    batching.change_members([0, 1, None], rank=0)
    assert batching.split.step(0, 600).partial is None


def test_the_costs_of_many_levels_stay_a_guess() -> None:
    costs = LevelCosts(tuple((level + 1) / 33 for level in range(33)))
    before = costs.costs
    for number in range(33 * 6):
        costs.observe(PartialStep(levels(number, 33), (1,) * 33), (1.0,) * 33)
    assert costs.costs == before


def test_a_batch_that_follows_the_noise_needs_whole_gradients() -> None:
    batching = Batching(Bounds(global_batch=60, most_global=120), rank=0, world_size=2)
    assert not batching.go_partly((0.5, 1.0))


def test_ranks_in_step_go_through_everything() -> None:
    batching = Batching(Bounds(global_batch=60), rank=0, world_size=2)
    batching.keep_in_step()
    assert not batching.go_partly((0.5, 1.0))
