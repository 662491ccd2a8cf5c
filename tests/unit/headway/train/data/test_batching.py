"""The plan of a step: the same on every rank, exact, and within the job's bounds."""

from __future__ import annotations

import math
import pickle
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from headway.contract.orders import BatchPlan
from headway.train.data.batching import Batching, Bounds
from headway.train.data.boundary import Agreement, Statement
from headway.train.gradients.noise import Measurement, from_ranks
from headway.train.gradients.noise_schedule import LEAST_STEPS

FIXED = Bounds(global_batch=64)
ADAPTIVE = Bounds(global_batch=64, most_global=256, rule="linear")


def ranks_of(bounds: Bounds, size: int) -> list[Batching]:
    return [Batching(bounds, rank=rank, world_size=size) for rank in range(size)]


def timed(*compute_s: float, **noise: float) -> Agreement:
    return Agreement(tuple(Statement(compute_s=one, **noise) for one in compute_s))


def settle(batching: Batching, seconds_a_sample: list[float], steps: int = 60) -> None:
    """Feed steps that took each rank so long per sample."""
    for _ in range(steps):
        local = batching.local_batches
        times = [one * cost for one, cost in zip(local, seconds_a_sample, strict=True)]
        batching.observe(timed(*times), local)


@pytest.mark.parametrize("size", [1, 2, 3, 64, 65, 100])
def test_it_begins_with_equal_local_batches(size: int) -> None:
    for rank, batching in enumerate(ranks_of(FIXED, size)):
        assert sum(batching.local_batches) == 64
        assert max(batching.local_batches) - min(batching.local_batches) <= 1
        assert len(batching.local_batches) == size
        assert len(batching.split.step(0, 1000).share) == batching.local_batches[rank]


def test_a_slow_rank_gets_less_until_all_take_as_long() -> None:
    batching = ranks_of(FIXED, 3)[0]
    settle(batching, [0.001, 0.001, 0.004])
    first, second, slow = batching.local_batches
    assert first + second + slow == 64
    assert max(first, second) * 0.001 == pytest.approx(slow * 0.004, rel=0.2)


def test_a_script_that_wants_equal_ones_keeps_them() -> None:
    batching = ranks_of(replace(FIXED, balance=None), 3)[0]
    settle(batching, [0.001, 0.001, 0.004])
    assert batching.local_batches == (22, 21, 21)


def test_ranks_with_collectives_in_every_micro_batch_keep_equal_ones() -> None:
    batching = ranks_of(replace(FIXED, max_local=4), 3)[0]
    settle(batching, [0.001, 0.001, 0.004])
    batching.keep_in_step()
    settle(batching, [0.001, 0.001, 0.004])
    assert batching.local_batches == (22, 21, 21)
    batching.change_members([0, 1], rank=0)
    settle(batching, [0.001, 0.004])
    assert batching.local_batches == (32, 32)
    assert batching.split.in_step


def test_a_step_of_another_number_of_ranks_says_nothing() -> None:
    batching = ranks_of(FIXED, 3)[0]
    assert not batching.observe(timed(0.1, 0.1), batching.local_batches)
    assert not batching.observe(timed(0.1, 0.1, 0.1), ())


def test_survivors_keep_what_is_known_of_their_speed() -> None:
    batching = ranks_of(FIXED, 3)[2]
    settle(batching, [0.001, 0.001, 0.004])
    batching.change_members([2, 0, None], rank=0)
    slow, fast, newcomer = batching.local_batches
    assert slow + fast + newcomer == 64
    assert slow < fast / 2
    assert newcomer > slow, "one that nobody knows is taken to be as fast as the others usually are"
    assert (batching.split.rank, batching.split.world_size) == (0, 3)


def test_alone_and_then_among_more_ranks_than_samples() -> None:
    batching = ranks_of(replace(FIXED, global_batch=2), 2)[0]
    for before in ([0], [0, None, None], [0, 1], [1]):
        batching.change_members(before, rank=0)
        assert sum(batching.local_batches) == 2
        assert len(batching.local_batches) == len(before)


# The service's plan


@pytest.mark.parametrize(
    ("wanted", "taken"), [(100, 100), (256, 256), (257, 256), (10**9, 256), (1, 1), (0, 1), (64, 64)]
)
def test_the_plan_is_followed_within_the_bounds_of_the_job(wanted: int, taken: int) -> None:
    for batching in ranks_of(ADAPTIVE, 3):
        assert batching.follow(BatchPlan(global_batch=wanted)) == (taken != 64)
        assert batching.split.global_batch == sum(batching.local_batches) == taken
        assert batching.lr_factor == pytest.approx(taken / 64)


def test_no_plan_and_a_fixed_batch_change_nothing() -> None:
    assert not ranks_of(ADAPTIVE, 2)[0].follow(None)
    fixed = ranks_of(FIXED, 2)[0]
    assert not fixed.follow(BatchPlan(global_batch=128))
    assert fixed.split.global_batch == 64
    assert not fixed.adaptive
    assert not any(fixed.measures(samples) for samples in range(0, 6400, 64))
    assert fixed.noise is None


def test_it_begins_with_what_the_job_had_come_to() -> None:
    batching = ranks_of(replace(ADAPTIVE, start_global=200), 3)[1]
    assert sum(batching.local_batches) == batching.split.global_batch == 200
    assert batching.lr_factor == pytest.approx(200 / 64), "the script's rate is for its own batch"
    assert ranks_of(replace(ADAPTIVE, start_global=1000), 1)[0].split.global_batch == 256


def test_speeds_outlive_a_change_of_the_batch() -> None:
    batching = ranks_of(ADAPTIVE, 2)[0]
    settle(batching, [0.001, 0.004])
    batching.follow(BatchPlan(global_batch=200))
    fast, slow = batching.local_batches
    assert fast + slow == 200
    assert fast > 2 * slow


def test_a_batch_smaller_than_the_ranks_and_back() -> None:
    batching = ranks_of(ADAPTIVE, 4)[3]
    batching.follow(BatchPlan(global_batch=3))
    assert batching.local_batches == (1, 1, 1, 0)
    batching.follow(BatchPlan(global_batch=8))
    assert batching.local_batches == (2, 2, 2, 2)
    settle(batching, [0.1, 0.1, 0.1, 0.4])
    assert sum(batching.local_batches) == 8


def test_the_noise_is_measured_now_and_then() -> None:
    batching = ranks_of(ADAPTIVE, 2)[0]
    measured = [step for step in range(40) if batching.measures(step * 64)]
    assert measured == list(range(0, 40, LEAST_STEPS))


def proposals(*every: int) -> Agreement:
    return Agreement(tuple(Statement(noise_every=one) for one in every))


def test_the_largest_proposal_decides_how_often_the_noise_is_measured() -> None:
    batching, newcomer = ranks_of(ADAPTIVE, 2)
    assert batching.noise_every_wanted == LEAST_STEPS
    batching.observe(proposals(LEAST_STEPS, 32), (32, 32))
    assert [step for step in range(80) if batching.measures(step * 64)] == [0, 32, 64]
    batching.observe(proposals(0, 0), (32, 32))
    assert [step for step in range(80) if batching.measures(step * 64)] == [0, 32, 64]
    newcomer.take_over(batching.state())
    assert [step for step in range(80) if newcomer.measures(step * 64)] == [0, 32, 64]
    newcomer.observe(proposals(LEAST_STEPS, LEAST_STEPS), (32, 32))
    assert [step for step in range(20) if newcomer.measures(step * 64)] == [0, 8, 16]


def test_what_a_measurement_costs_spreads_measurements() -> None:
    """A cost of 0.3 steps in every 32nd is below a hundredth. The scatter asks for as many as that."""
    batching = ranks_of(ADAPTIVE, 2)[0]
    for number in range(11):
        batching.add_noise(Measurement(-20.0 if number % 2 else 30.0, 640.0), 0.3)
    assert batching.noise_every_wanted == 2 * LEAST_STEPS, "at most 3 % of the time"
    batching.add_noise(None, 0.3)
    assert batching.noise_every_wanted == 2 * LEAST_STEPS
    batching.add_noise(Measurement(5.0, 640.0))
    assert batching.noise_every_wanted == 32


def test_a_measurement_counts_for_the_steps_since_the_one_before() -> None:
    """After 32 steps of 64, an old value has lost a share of 1 - 0.999^32."""
    rarely = ranks_of(ADAPTIVE, 2)[0]
    often = ranks_of(ADAPTIVE, 2)[0]
    for batching in (rarely, often):
        batching.observe(proposals(32 if batching is rarely else 8, 8), (32, 32))
        batching.add_noise(Measurement(1.0, 1.0))
    rarely.add_noise(Measurement(2.0, 2.0))
    for _ in range(4):
        often.add_noise(Measurement(2.0, 2.0))
    kept = 0.999**32
    assert rarely.noise is not None
    assert rarely.noise.sqr == pytest.approx((kept * (1 - kept) + 2 * (1 - kept)) / (1 - kept * kept))
    assert often.noise is not None
    assert often.noise.sqr > rarely.noise.sqr


# Noise


def test_the_noise_is_that_of_the_ranks_squares() -> None:
    batching = ranks_of(ADAPTIVE, 2)[0]
    said = Agreement((Statement(square=3.0, squared_mean=2.0), Statement(square=1.5, squared_mean=2.0)))
    batching.observe(said, (32, 32))
    expected = from_ranks(4.5, 2, 2.0, 64)
    assert batching.noise is not None
    assert batching.noise.var == pytest.approx(expected.var)
    assert batching.noise.sqr == pytest.approx(max(expected.sqr, 0.0))


@pytest.mark.parametrize("squares", [(0.0, 0.0, 0.0), (3.0, 0.0, 0.0)])
def test_one_rank_alone_says_nothing_of_the_noise(squares: tuple[float, ...]) -> None:
    batching = ranks_of(ADAPTIVE, 3)[0]
    batching.observe(
        Agreement(tuple(Statement(square=one, squared_mean=2.0) for one in squares)), (22, 21, 21)
    )
    assert batching.noise is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_says_nothing_of_the_noise(bad: float) -> None:
    batching = ranks_of(ADAPTIVE, 2)[0]
    batching.observe(Agreement((Statement(square=bad, squared_mean=bad), Statement(square=1.0))), (32, 32))
    assert batching.noise is None
    batching.add_noise(Measurement(bad, 1.0))
    assert batching.noise is None
    batching.add_noise(Measurement(1.0, 640.0))
    assert batching.noise is not None
    assert batching.noise.var / batching.noise.sqr == pytest.approx(640.0)


# Every rank has the same


def random_agreement(rng: random.Random, local: tuple[int, ...], speeds: list[float]) -> Agreement:
    """Return an agreement of ranks of these speeds, now and then with a broken clock or gradient."""
    broken = rng.choice([None] * 9 + [0.0, math.nan, math.inf, -1.0])
    mean = rng.uniform(0.1, 2.0)
    return Agreement(
        tuple(
            Statement(
                compute_s=one * speed * rng.uniform(0.9, 1.1) if broken is None or rank else broken,
                square=mean * rng.uniform(1.0, 3.0) * rng.choice([0, 1, 1, 1]),
                squared_mean=mean if broken is None else broken,
            )
            for rank, (one, speed) in enumerate(zip(local, speeds, strict=True))
        )
    )


def views(ranks: list[Batching]) -> set[Any]:
    """Return the distinct views that ranks have of the batch; there must be one."""
    return {(one.split.global_batch, one.local_batches, one.lr_factor, str(one.noise)) for one in ranks}


@given(seed=st.integers(0, 2**32), batch=st.integers(1, 100))
def test_all_ranks_come_to_the_same_plan_through_any_history(seed: int, batch: int) -> None:
    rng = random.Random(seed)
    bounds = Bounds(
        global_batch=batch, most_global=rng.choice([None, batch, 4 * batch]), rule="adascale", max_local=7
    )
    ranks = ranks_of(bounds, rng.randint(1, 4))
    for _ in range(5):
        speeds = [rng.choice([0.001, 0.0011, 0.005]) for _ in ranks]
        for _ in range(rng.randint(0, 15)):
            local = ranks[0].local_batches
            said = random_agreement(rng, local, speeds)
            assert len({one.observe(said, local) for one in ranks}) == 1
            assert len(views(ranks)) == 1
        plan = rng.choice([None, BatchPlan(global_batch=rng.randint(0, 5 * batch))])
        ranks = changed(rng, ranks, bounds)
        assert len({one.follow(plan) for one in ranks}) == 1
        assert len(views(ranks)) == 1
        assert len({pickle.dumps(one.state()) for one in ranks}) == 1
        assert_a_step_is_whole(ranks, rng)


def changed(rng: random.Random, ranks: list[Batching], bounds: Bounds) -> list[Batching]:
    """Some leave, some come: who stays divides anew, and who comes takes over the plan of one who stays."""
    kept = rng.sample(range(len(ranks)), rng.randint(1, len(ranks)))
    before = [*kept, *([None] * rng.randint(0, 3))]
    after = []
    for rank, old in enumerate(before):
        batching = ranks[old] if old is not None else Batching(bounds, rank=rank, world_size=len(before))
        batching.change_members(before if old is not None else [None] * len(before), rank=rank)
        after.append(batching)
    source = after[rng.randrange(len(kept))].state()
    for batching in after:
        batching.take_over(pickle.loads(pickle.dumps(source)))
    return after


def assert_a_step_is_whole(ranks: list[Batching], rng: random.Random) -> None:
    """Together the ranks take each sample of the next step once, a short one at the end of the data too."""
    samples = rng.randint(1, 500)
    start = rng.randrange(samples)
    steps = [one.split.step(start, samples) for one in ranks]
    assert [place for step in steps for place in step.share] == list(steps[0].batch)
    assert len({step.batch for step in steps}) == 1
    assert steps[0].batch == range(start, min(start + ranks[0].split.global_batch, samples))
    for batching, local in zip(ranks, ranks[0].local_batches, strict=True):
        assert len(batching.split.step(0, 10**6).share) == local


def test_a_plan_can_be_taken_over_whole() -> None:
    source = ranks_of(ADAPTIVE, 2)[0]
    source.add_noise(Measurement(1.0, 640.0))
    settle(source, [0.001, 0.004])
    source.follow(BatchPlan(global_batch=100))
    newcomer = Batching(ADAPTIVE, rank=1, world_size=2)
    newcomer.take_over(pickle.loads(pickle.dumps(source.state())))
    assert views([source, newcomer]) == views([source])
    assert newcomer.split.rank == 1
    for _ in range(20):
        local = source.local_batches
        said = timed(local[0] * 0.004, local[1] * 0.001)
        assert source.observe(said, local) == newcomer.observe(said, local)
    assert views([source, newcomer]) == views([source])


def test_micro_batches_fit_the_memory_and_local_batches_stay() -> None:
    batching = Batching(FIXED, rank=0, world_size=2, memory_bytes=1000)
    assert not batching.observe_memory(32, 400, 100), "85 would fit, and a step takes 32"
    assert batching.split.max_local == 85
    batching = Batching(FIXED, rank=0, world_size=2, memory_bytes=1000)
    assert batching.observe_memory(4, 700, 100), "5 fit, of 32"
    assert batching.split.max_local == 5
    assert batching.local_batches == (32, 32)
    assert not batching.observe_memory(4, 700, 100)


def test_a_host_s_memory_sets_no_limit() -> None:
    batching = Batching(replace(FIXED, max_local=7), rank=0, world_size=2)
    assert not batching.observe_memory(7, 10**12, 0)
    assert batching.split.max_local == 7


# The rule of the learning rate

AUTO = replace(ADAPTIVE, rule="auto", start_global=256)


def test_the_learning_rate_stays_until_the_optimizer_is_known() -> None:
    batching = ranks_of(AUTO, 1)[0]
    assert (batching.rule, batching.lr_factor) == ("none", 1.0)
    batching.follow_optimizer(optim.AdamW(nn.Linear(1, 1).parameters()))
    assert (batching.rule, batching.lr_factor) == ("sqrt", 2.0)


def test_an_optimizer_without_a_rule_keeps_its_rate_and_one_rank_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for batching in ranks_of(AUTO, 2):
        batching.follow_optimizer(optim.Adagrad(nn.Linear(1, 1).parameters()))
        assert batching.lr_factor == 1.0
    assert capsys.readouterr().err.count("Adagrad") == 1


def test_a_rule_of_the_job_file_needs_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    batching = ranks_of(replace(AUTO, rule="none"), 1)[0]
    batching.follow_optimizer(optim.Adagrad(nn.Linear(1, 1).parameters()))
    assert (batching.rule, capsys.readouterr().err) == ("none", "")
