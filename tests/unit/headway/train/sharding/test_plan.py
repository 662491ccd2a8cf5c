"""Boxes are those of DTensor, and a plan brings every element exactly once in the fewest bytes."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

from headway.contract.values.meshes import MeshShape
from headway.train.sharding.boxes import Box, ShardLayout
from headway.train.sharding.checksum import checksum
from headway.train.sharding.plan import Planner, Transfer, into_buckets
from service.domain.jobs.shard_order import new_ranks

shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


@st.composite
def layouts(draw: st.DrawFn, ndim: int) -> ShardLayout:
    mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    dims = [draw(st.none() | st.integers(0, ndim - 1)) for _ in mesh]
    return ShardLayout(tuple(mesh), tuple(dims))


@settings(max_examples=100)
@given(shapes, st.data())
def test_a_box_is_the_one_that_dtensor_gives_a_rank(shape: tuple[int, ...], data: st.DataObject) -> None:
    layout = data.draw(layouts(len(shape)))
    placements = [Replicate() if dim is None else Shard(dim) for dim in layout.dims]
    for rank, box in enumerate(layout.boxes(shape)):
        coordinate = [int(one) for one in torch.unravel_index(torch.tensor(rank), layout.mesh)]
        sizes, offsets = _compute_local_shape_and_global_offset(
            shape, layout.mesh, coordinate.__getitem__, placements
        )
        assert box.sizes == tuple(sizes)
        if box.elements:
            assert box.offsets == tuple(offsets)


@st.composite
def moves(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box | None], list[Box | None]]:
    """A shape, and the boxes of each rank of a group before and after: some ranks are only in one of the layouts."""
    shape = draw(shapes)
    old, new = draw(layouts(len(shape))), draw(layouts(len(shape)))
    ranks = max(math.prod(old.mesh), math.prod(new.mesh)) + draw(st.integers(0, 1))
    placed: list[list[Box | None]] = []
    for layout in (old, new):
        boxes: list[Box | None] = list(layout.boxes(shape))
        boxes += [None] * (ranks - len(boxes))
        placed.append(draw(st.permutations(boxes)))
    return shape, placed[0], placed[1]


def counted(shape: tuple[int, ...], box: Box) -> torch.Tensor:
    ones = torch.zeros(shape, dtype=torch.int64)
    ones[box.slices_in(Box((0,) * len(shape), shape))] += 1
    return ones


@settings(max_examples=100)
@given(moves())
def test_every_element_arrives_once_and_what_is_there_is_not_sent(
    move: tuple[tuple[int, ...], list[Box | None], list[Box | None]],
) -> None:
    shape, old, new = move
    transfers = Planner(len(old)).transfers(7, old, new, 4)
    for rank, box in enumerate(new):
        arrived = sum(
            (counted(shape, one.box) for one in transfers if one.receiver == rank),
            torch.zeros(shape, dtype=torch.int64),
        )
        assert torch.equal(arrived, counted(shape, box) if box is not None else torch.zeros_like(arrived))
        held = old[rank]
        kept = box.intersection(held) if box is not None and held is not None else None
        least = (box.elements if box is not None else 0) - (kept.elements if kept is not None else 0)
        assert sum(one.nbytes for one in transfers if one.receiver == rank != one.source) == 4 * least
    for one in transfers:
        source = old[one.source]
        assert source is not None
        assert one.box.intersection(source) == one.box, "a source sends what it holds"


def test_replicas_share_the_sending() -> None:
    whole = Box((0,), (8,))
    planner = Planner(6)
    sources = [one.source for one in planner.transfers(0, [whole, whole, *[None] * 4], [whole] * 6, 4)]
    assert sorted(sources) == [0, 0, 0, 1, 1, 1]


@settings(max_examples=100)
@given(moves(), st.integers(1, 64))
def test_buckets_hold_all_that_is_sent_within_their_size(
    move: tuple[tuple[int, ...], list[Box | None], list[Box | None]], limit: int
) -> None:
    _, old, new = move
    transfers = Planner(len(old)).transfers(0, old, new, 4)
    sent = [one for one in transfers if one.source != one.receiver]
    buckets = list(into_buckets(transfers, limit))
    assert sum(one.nbytes for bucket in buckets for one in bucket) == sum(one.nbytes for one in sent)
    for bucket in buckets:
        for rank in range(len(old)):
            for part in ([t for t in bucket if t.source == rank], [t for t in bucket if t.receiver == rank]):
                assert sum(one.nbytes for one in part) <= max(limit, 4)
    pieces = [(one.source, one.receiver, one.box) for bucket in buckets for one in bucket]
    assert len(set(pieces)) == len(pieces)


@settings(max_examples=60)
@given(moves(), st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.complex64]))
def test_checksums_of_shards_add_up_in_any_layout(
    move: tuple[tuple[int, ...], list[Box | None], list[Box | None]], dtype: torch.dtype
) -> None:
    shape, old, new = move
    values = torch.arange(1, math.prod(shape) + 1).view(shape).to(dtype)
    divided = frozenset(range(len(shape)))
    whole = Box((0,) * len(shape), shape)

    def total(boxes: list[Box | None]) -> int:
        distinct = {box for box in boxes if box is not None}
        sums = [checksum(values[box.slices_in(whole)], box, divided) for box in distinct]
        return sum(sums) % 2**64

    assert total(old) == total(new) == checksum(values, whole, divided) % 2**64


def test_a_checksum_notices_elements_at_the_wrong_place() -> None:
    values = torch.arange(24.0).view(4, 6)
    whole = Box((0, 0), (4, 6))
    right = checksum(values, whole, {0})
    assert checksum(values[[1, 0, 2, 3]], whole, {0}) != right
    assert checksum(values, Box((4, 0), (4, 6)), {0}) != right
    assert checksum(values.flip(1), whole, {1}) != checksum(values, whole, {1})


def shard_order(kept: int, size: int) -> list[int]:
    return new_ranks(range(kept), MeshShape(fsdp=max(1, kept)), MeshShape(fsdp=size))


def moved_share(kept: list[int], size: int) -> float:
    """The share of a tensor that newcomers and survivors at these ranks receive."""
    shape = (2520,)
    old = ShardLayout((len(kept),), (0,)).boxes(shape)
    by_rank: list[Box | None] = [None] * size
    for rank, box in zip(kept, old, strict=True):
        by_rank[rank] = box
    transfers = Planner(size).transfers(0, by_rank, list(ShardLayout((size,), (0,)).boxes(shape)), 1)
    return sum(one.nbytes for one in transfers if one.source != one.receiver) / shape[0]


@pytest.mark.parametrize(("kept", "size"), [(1, 2), (2, 3), (2, 5), (3, 4), (4, 6), (5, 6)])
def test_the_order_of_ranks_moves_the_least(kept: int, size: int) -> None:
    chosen = moved_share(shard_order(kept, size), size)
    assert chosen == min(moved_share(list(one), size) for one in permutations(range(size), kept))


def test_the_order_of_ranks_saves_most_of_the_bytes() -> None:
    assert moved_share(list(range(8)), 12) == pytest.approx(0.875)
    assert moved_share(shard_order(8, 12), 12) == pytest.approx(1 / 3)
    assert moved_share(shard_order(8, 9), 9) == pytest.approx(0.278, abs=1e-3)
    assert shard_order(3, 3) == [0, 1, 2]
    assert shard_order(0, 2) == []


def test_a_transfer_is_cut_to_the_bucket() -> None:
    whole = Transfer(0, 0, 1, Box((0, 0), (5, 3)), 60)
    sizes = [[one.box.sizes for one in bucket] for bucket in into_buckets([whole], 24)]
    assert sizes == [[(2, 3)], [(2, 3)], [(1, 3)]]
