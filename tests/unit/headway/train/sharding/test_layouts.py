"""The names of mesh dimensions that a script may ask for, and the boxes that another mesh is expected to have."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from headway.contract.values.meshes import MeshShape
from headway.train.sharding.boxes import Box, ShardLayout
from headway.train.sharding.layouts import (
    are_whole,
    check_names,
    check_stages,
    divided_dims,
    expected_layout,
    groups_by_dimension,
    mesh_with,
)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.sampled_from([None, 0, 1]))
def test_fsdp_divides_what_tensor_parallelism_leaves(
    fsdp: int, tp: int, part: int, tp_dim: int | None
) -> None:
    shape = (fsdp * tp * part, tp * 3)
    strided = _StridedShard(0, split_factor=tp) if tp_dim == 0 and tp > 1 else Shard(0)
    placements = [strided, Replicate() if tp_dim is None else Shard(tp_dim)]
    layout = ShardLayout((fsdp, tp), (0, tp_dim), innermost=0)
    for rank, box in enumerate(layout.boxes(shape)):
        coordinate = [int(one) for one in torch.unravel_index(torch.tensor(rank), layout.mesh)]
        sizes, offsets = _compute_local_shape_and_global_offset(
            shape, layout.mesh, coordinate.__getitem__, placements
        )
        assert (box.sizes, box.offsets) == (tuple(sizes), tuple(offsets))


def test_each_dimension_divides_all_ranks_into_groups() -> None:
    mesh = MeshShape(replicate=2, fsdp=3)
    assert groups_by_dimension(("replicate", "fsdp"), mesh) == [
        [[0, 3], [1, 4], [2, 5]],
        [[0, 1, 2], [3, 4, 5]],
    ]
    assert groups_by_dimension(("fsdp",), MeshShape(fsdp=2)) == [[[0, 1]]]
    assert groups_by_dimension(("fsdp", "tp"), MeshShape(fsdp=2, tp=1)) == [[[0, 1]], [[0], [1]]]


def test_names_are_put_in_the_order_of_ranks() -> None:
    assert check_names(["tp", "fsdp", "pp"]) == ("pp", "fsdp", "tp")
    for names in ([], ["tp"], ["fsdp", "cp"]):
        with pytest.raises(ValueError, match="fsdp"):
            check_names(names)


def test_replicas_divide_the_parameters_where_the_script_has_none() -> None:
    mesh = MeshShape(replicate=2, fsdp=3, tp=2)
    assert mesh_with(("fsdp", "tp"), mesh) == MeshShape(fsdp=6, tp=2)
    assert mesh_with(("replicate", "fsdp", "tp"), mesh) == mesh
    assert mesh_with(("pp", "fsdp"), MeshShape(pp=2, replicate=3)) == MeshShape(pp=2, fsdp=3)
    with pytest.raises(ValueError, match=r"parallel\.tp"):
        mesh_with(("replicate", "fsdp"), mesh)
    with pytest.raises(ValueError, match=r"parallel\.pp"):
        mesh_with(("fsdp",), MeshShape(pp=2))


def test_boxes_are_whole_once_every_part_is_held() -> None:
    boxes = ShardLayout((2, 2), (None, 0)).boxes((5, 3))
    assert are_whole(boxes, (5, 3))
    assert are_whole([boxes[1], boxes[2]], (5, 3)), "a part of each replica"
    assert not are_whole([boxes[0], boxes[2]], (5, 3)), "the same part twice"
    assert divided_dims((5, 3), boxes, [None, Box((0, 0), (5, 3))]) == {0}


def test_only_the_ranks_of_its_stage_hold_a_tensor() -> None:
    present = [None, None, Box((0,), (3,)), Box((3,), (3,))]
    dims = (None, None, 0, None)
    found = expected_layout((6,), dims, present, MeshShape(pp=2, fsdp=2), MeshShape(pp=2, fsdp=3))
    assert found == [None] * 3 + [Box((0,), (2,)), Box((2,), (2,)), Box((4,), (2,))]
    assert are_whole(found, (6,))
    assert not are_whole(found[:5], (6,)), "a rank of the stage leaves"
    everyone = expected_layout((6,), dims, present, MeshShape(pp=2, fsdp=2), MeshShape(fsdp=2))
    assert everyone == [Box((0,), (3,)), Box((3,), (3,))]


def test_a_parameter_has_one_stage() -> None:
    mesh, box = MeshShape(pp=2, fsdp=2), Box((0,), (4,))
    check_stages({"a": [box, box, None, None], "b": [None, None, box, box]}, ["a", "b"], mesh)
    with pytest.raises(ValueError, match="0 pipeline stages have the parameter b"):
        check_stages({"a": [box, box, None, None]}, ["a", "b"], mesh)
    with pytest.raises(ValueError, match="2 pipeline stages have the parameter a"):
        check_stages({"a": [box] * 4}, ["a"], mesh)
