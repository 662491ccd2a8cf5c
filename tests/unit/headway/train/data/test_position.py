from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headway.train.data.position import Position, Split, divide, order

sizes = st.integers(1, 200)


@given(start=st.integers(0, 50), length=st.integers(0, 200), parts=st.integers(1, 40))
def test_divide_parts_are_the_whole_and_differ_by_one_at_most(start: int, length: int, parts: int) -> None:
    whole = range(start, start + length)
    divided = divide(whole, (1,) * parts)
    assert [place for part in divided for place in part] == list(whole)
    lengths = [len(part) for part in divided]
    assert len(lengths) == parts
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


weights = st.lists(st.integers(0, 2**40), min_size=1, max_size=12).filter(any)


@given(start=st.integers(0, 50), length=st.integers(0, 500), weights=weights)
def test_parts_are_as_long_as_their_weights_say_to_less_than_a_sample(
    start: int, length: int, weights: list[int]
) -> None:
    whole = range(start, start + length)
    divided = divide(whole, weights)
    assert [place for part in divided for place in part] == list(whole)
    assert [part.start for part in divided[1:]] == [part.stop for part in divided[:-1]]
    for part, weight in zip(divided, weights, strict=True):
        # In whole numbers: floats would round where weights are large.
        assert abs(len(part) * sum(weights) - length * weight) < sum(weights)
        assert weight > 0 or not part


@given(lengths=st.lists(st.integers(0, 50), min_size=1, max_size=9).filter(any))
def test_weights_that_add_up_to_the_whole_are_the_lengths(lengths: list[int]) -> None:
    assert [len(part) for part in divide(range(sum(lengths)), lengths)] == lengths


@st.composite
def divisions(draw: st.DrawFn) -> tuple[int, tuple[int, ...], int]:
    """A global batch, local batches that add up to it (none: equal ones), and the number of ranks."""
    if draw(st.booleans()):
        return draw(sizes), (), draw(st.integers(1, 9))
    local = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=9)))
    return sum(local), local, len(local)


@given(
    samples=sizes,
    division=divisions(),
    max_local=st.none() | st.integers(1, 20),
    start=st.integers(0, 200),
    in_step=st.booleans(),
)
def test_the_ranks_take_every_sample_that_is_left_once_and_in_the_same_steps(
    samples: int,
    division: tuple[int, tuple[int, ...], int],
    max_local: int | None,
    start: int,
    in_step: bool,
) -> None:
    batch, local_batches, world_size = division
    by_rank = [
        list(
            Split(
                global_batch=batch,
                rank=rank,
                world_size=world_size,
                max_local=max_local,
                local_batches=local_batches,
                in_step=in_step,
            ).steps(start, samples)
        )
        for rank in range(world_size)
    ]
    taken: list[int] = []
    for together in zip(*by_rank, strict=True):
        assert len({step.batch for step in together}) == 1
        whole = together[0].batch
        places = [place for step in together for place in step.share]
        assert places == list(whole)
        taken += places
        for step in together:
            assert step.micro_batches, "a rank without a part in a step would keep its peers waiting"
            assert [place for one in step.micro_batches for place in one] == list(step.share)
            assert all(len(micro_batch) <= (max_local or samples) for micro_batch in step.micro_batches)
            assert len(step.micro_batches) == 1 or in_step or all(step.micro_batches)
            for micro_batch, fetched in zip(step.micro_batches, step.fetched, strict=True):
                assert fetched == (micro_batch or whole[:1])
        if in_step:
            assert len({len(step.micro_batches) for step in together}) == 1
        if len(whole) == batch and local_batches:
            assert tuple(len(step.share) for step in together) == local_batches
        elif local_batches:
            for step, local in zip(together, local_batches, strict=True):
                assert abs(len(step.share) - len(whole) * local / batch) < 1
    assert taken == list(range(start, samples))


@given(samples=st.integers(1, 100), batch=st.integers(1, 30), data=st.data())
def test_the_steps_do_not_depend_on_where_the_run_was_restarted(
    samples: int, batch: int, data: st.DataObject
) -> None:
    split = Split(global_batch=batch, rank=0, world_size=1, max_local=None)
    whole = [step.batch for step in split.steps(0, samples)]
    boundary = data.draw(st.sampled_from(whole)).start
    resumed = [step.batch for step in split.steps(boundary, samples)]
    assert [batch for batch in whole if batch.start < boundary] + resumed == whole


@given(samples=st.integers(1, 300), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 1000))
def test_an_order_is_a_permutation_and_always_the_same(samples: int, seed: int, epoch: int) -> None:
    first = order(samples, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(first), np.arange(samples))
    assert np.array_equal(first, order(samples, seed=seed, epoch=epoch))


def test_orders_differ_by_epoch_and_seed() -> None:
    orders = {tuple(order(50, seed=seed, epoch=epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_the_order_is_the_one_that_earlier_versions_used() -> None:
    """A checkpoint's position means nothing in any other order: this one must never change."""
    assert order(10, seed=0, epoch=0).tolist() == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
    assert order(10, seed=7, epoch=2).tolist() == [8, 6, 4, 0, 5, 7, 1, 3, 9, 2]


def test_positions() -> None:
    assert Position(3, 10).advance(6) == Position(3, 16)
    assert Position(3, 16).next_epoch() == Position(4, 0)
