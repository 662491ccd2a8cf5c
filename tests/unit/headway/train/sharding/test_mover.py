"""Moves of a rank without peers: exact, refused if they are not, and free of memory that nobody needs."""

from __future__ import annotations

import pytest
import torch

from headway.train.collectives.gloo import Gloo
from headway.train.membership.peers import Peers
from headway.train.sharding.boxes import Box
from headway.train.sharding.mover import MovedTensor, move
from headway.train.state.sharded import ShardMismatch

ALONE = Peers(Gloo(), rank=0, world_size=1)
CPU = torch.device("cpu")


def moved(values: torch.Tensor, old: Box, new: Box | None) -> MovedTensor:
    return MovedTensor("weight", values.dtype, [old], [new], frozenset({0}), values)


def test_an_unchanged_shard_keeps_its_memory() -> None:
    values = torch.arange(12.0).view(4, 3)
    box = Box((0, 0), (4, 3))
    tensor = moved(values, box, box)
    assert move([tensor], ALONE, CPU) == 0
    assert tensor.values is values


def test_another_tensor_in_its_place_is_refused() -> None:
    box = Box((0, 0), (4, 3))
    with pytest.raises(ShardMismatch) as refused:
        move([moved(torch.zeros(3, 4), box, box)], ALONE, CPU)
    assert refused.value.code == "SHARD_MISMATCH"


@pytest.mark.parametrize("shared_with_numpy", [False, True])
def test_elements_that_no_rank_holds_are_noticed(*, shared_with_numpy: bool) -> None:
    values = torch.arange(1.0, 13.0).view(4, 3)
    array = values.numpy() if shared_with_numpy else None
    tensor = moved(values, Box((0, 0), (4, 3)), Box((1, 0), (4, 3)))
    with pytest.raises(ShardMismatch, match="weight"):
        move([tensor], ALONE, CPU)
    assert values.untyped_storage().nbytes() == (48 if shared_with_numpy else 0), (
        "freed, where that is possible"
    )
    assert array is None or array[0, 0] == 1.0


def test_memory_that_two_tensors_share_is_not_freed() -> None:
    values = torch.arange(4.0)
    box = Box((0,), (4,))
    move([moved(values, box, box), moved(values.view(4), box, box)], ALONE, CPU)
    assert values.untyped_storage().nbytes() == 16
