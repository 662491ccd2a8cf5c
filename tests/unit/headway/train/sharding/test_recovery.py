"""Lost ranks are replaced by the copies that remain, each rank's part stays contiguous, and a lost copy is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.train.sharding.boxes import Box, ShardLayout
from headway.train.sharding.recovery import joined, plan_recovery
from headway.train.state.sharded import ShardsLost

rings = st.integers(1, 9).flatmap(
    lambda size: st.tuples(
        st.just(size), st.permutations(range(size)), st.integers(1, size), st.integers(0, 2)
    )
)


@given(rings)
def test_every_shard_has_one_keeper_or_the_loss_is_noticed(ring: tuple[int, list[int], int, int]) -> None:
    size, order, left, new = ring
    positions = [*order[:left], *[None] * new]
    lost = set(range(size)) - set(order[:left])
    if any((one + 1) % size in lost for one in lost):
        with pytest.raises(ShardsLost) as refused:
            plan_recovery(positions, size)
        assert refused.value.code == "SHARDS_LOST"
        return
    plan = plan_recovery(positions, size)
    assert [one.position for one in plan.adoptions] == sorted(lost)
    for one in plan.adoptions:
        assert positions[one.holder] == (one.position + 1) % size, "the next rank has the copy"
    kept = [range(*span) for span in plan.spans if span is not None]
    assert sorted(number for span in kept for number in span) == list(range(size))
    for position, span in zip(positions, plan.spans, strict=True):
        assert (span is None) if position is None else (span is not None and position in range(*span))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=3), st.integers(1, 6), st.data())
def test_shards_side_by_side_are_one_box(shape: list[int], ranks: int, data: st.DataObject) -> None:
    dim = data.draw(st.sampled_from(range(len(shape))))
    boxes = ShardLayout((ranks,), (dim,)).boxes(shape)
    assert joined(boxes, dim) == Box((0,) * len(shape), tuple(shape))
    assert joined(boxes[:1], None) == boxes[0]
