"""Layouts of sharded tensors: the boxes that they publish for checkpoints, and those expected on another mesh."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from headway.contract.values.meshes import DIMENSIONS, FSDP, PP, REPLICATE, TP, MeshShape
from headway.train.membership.peers import Peers
from headway.train.sharding.boxes import Box, ShardLayout

Layout: TypeAlias = Sequence[Box | None]
"""The box of each rank; None for a rank that holds nothing of the tensor."""


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the mesh dimensions that a script asks for, in their order.

    Raises:
        ValueError: a name is unknown, or `fsdp` is not among them.
    """
    if FSDP not in names or not set(names) <= set(DIMENSIONS):
        raise ValueError(
            f"the mesh dimensions are {', '.join(names)}; name {FSDP}, and {PP}, {REPLICATE} and {TP} where the model uses them"
        )
    return tuple(one for one in DIMENSIONS if one in names)


def mesh_with(names: Sequence[str], mesh: MeshShape) -> MeshShape:
    """Return the mesh with only the dimensions of these names. Without `replicate`, all groups divide the parameters.

    Raises:
        ValueError: the mesh has a `pp` or `tp` dimension that is not named.
    """
    for name, size in ((PP, mesh.pp), (TP, mesh.tp)):
        if size > 1 and name not in names:
            raise ValueError(
                f"the job has parallel.{name}: {size}, but the script does not use it; "
                f"give prepare() mesh=({', '.join(repr(one) for one in (*names, name))}), or leave parallel.{name} out"
            )
    return mesh if REPLICATE in names else MeshShape(pp=mesh.pp, fsdp=mesh.data, tp=mesh.tp)


def check_mesh_use(parameters: Mapping[str, torch.Tensor], mesh: MeshShape) -> None:
    """Check that the script's function uses the dimensions of the mesh.

    Raises:
        ValueError: ranks with different samples would not average a gradient, or `tp` divides no parameter. A stage may have
            none to divide.
    """
    names = {
        name: (one.device_mesh.mesh_dim_names or ()) if isinstance(one, DTensor) else ()
        for name, one in parameters.items()
    }
    alone = [name for name, dims in names.items() if FSDP not in dims and parameters[name].requires_grad]
    if alone and (mesh.data > 1 or mesh.pp > 1):
        raise ValueError(
            f"nothing averages the gradient of {alone[0]} over the ranks; call fully_shard on a module that has it"
        )
    if mesh.tp > 1 and mesh.pp == 1 and not any(TP in dims for dims in names.values()):
        raise ValueError(
            f"the mesh has tp={mesh.tp}, but `parallelize` divides no parameter over it; "
            "check the names in the plan of parallelize_module"
        )


def groups_by_dimension(names: Sequence[str], mesh: MeshShape) -> list[list[list[int]]]:
    """Return the groups of ranks in each dimension of these names."""
    ranks = _ranks(names, mesh)
    return [ranks.movedim(dim, -1).reshape(-1, size).tolist() for dim, size in enumerate(ranks.shape)]


def device_mesh(
    names: Sequence[str], mesh: MeshShape, device_type: str, groups: Sequence[ProcessGroup] = ()
) -> DeviceMesh:
    """Return the device mesh of all ranks with the dimensions of these names, over this rank's `groups` if there are any.

    Torch caches the results of operators by mesh, and two meshes of one shape are equal to it. A rank whose number has
    changed would get tensors of its old mesh, which publish the box of its old number.
    """
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    ranks = _ranks(names, mesh)
    if groups:
        return DeviceMesh.from_group(list(groups), device_type, ranks, mesh_dim_names=tuple(names))
    return init_device_mesh(device_type, tuple(ranks.shape), mesh_dim_names=tuple(names))


def _ranks(names: Sequence[str], mesh: MeshShape) -> torch.Tensor:
    """Return the numbers of all ranks in the shape of the mesh."""
    sizes = dict(zip(DIMENSIONS, mesh.sizes, strict=True))
    return torch.arange(mesh.size, device="cpu").view([sizes[name] for name in names])


def gather_boxes(
    parameters: Mapping[str, torch.Tensor], ndims: Mapping[str, int], peers: Peers
) -> dict[str, Layout]:
    """Return the layout of every sharded parameter, by name. All ranks call it with the parameters of their stages.

    `ndims` has the number of dimensions of every parameter of the whole model.
    """
    mine: list[int] = []
    for name, ndim in ndims.items():
        one = parameters.get(name)
        box = _published(one) if isinstance(one, DTensor) else None
        mine += [0] * (2 * ndim + 1) if box is None else [1, *box.offsets, *box.sizes]
    everyone = peers.gather(*mine)
    found: dict[str, Layout] = {}
    at = 0
    for name, ndim in ndims.items():
        middle, end = at + 1 + ndim, at + 1 + 2 * ndim
        layout = [
            Box(tuple(numbers[at + 1 : middle]), tuple(numbers[middle:end])) if numbers[at] else None
            for numbers in everyone
        ]
        if any(layout):
            found[name] = layout
        at = end
    return found


def check_stages(layouts: Mapping[str, Layout], trained: Iterable[str], mesh: MeshShape) -> None:
    """Check that each trained parameter belongs to one stage. All ranks get the same answer.

    Raises:
        ValueError: a parameter belongs to no stage or to several, whose copies would differ after a step.
    """
    for name in trained:
        stages = {mesh.stage(rank) for rank, box in enumerate(layouts.get(name, ())) if box is not None}
        if len(stages) != 1:
            raise ValueError(
                f"{len(stages)} pipeline stages have the parameter {name}; "
                "have `parallelize` return each parameter, and all modules that share it, in one stage"
            )


def expected_layout(
    shape: Sequence[int],
    dims: tuple[int | None, ...],
    present: Layout,
    before: MeshShape,
    after: MeshShape,
) -> Layout:
    """Return the box that each rank of another mesh will have of a tensor, if the model is parallelized alike.

    `dims` are those of `mesh_dims`. FSDP divides the part that tensor parallelism leaves.
    """
    boxes = ShardLayout(after.sizes, dims, DIMENSIONS.index(FSDP)).boxes(shape)
    stage = next(before.stage(rank) for rank, box in enumerate(present) if box is not None)
    stage = stage * after.pp // before.pp
    return [box if after.stage(rank) == stage else None for rank, box in enumerate(boxes)]


def held(layout: Layout) -> list[Box]:
    """Return the boxes of the ranks that hold a part of the tensor, in their order."""
    return [box for box in layout if box is not None]


def are_whole(layout: Layout, shape: Sequence[int]) -> bool:
    """Return True if the boxes, of which two are equal or disjoint, have every element of a tensor of this shape."""
    return sum(box.elements for box in set(held(layout))) == math.prod(shape)


def mesh_dims(one: DTensor) -> tuple[int | None, ...]:
    """Return the dimension of the tensor that each mesh dimension divides, in the order of `DIMENSIONS`; None: it does not."""
    names = one.device_mesh.mesh_dim_names or ()
    dims = {name: _dim_of(placement, one.ndim) for name, placement in zip(names, one.placements, strict=True)}
    return tuple(dims.get(name) for name in DIMENSIONS)


def divided_dim(one: DTensor) -> int | None:
    """Return the dimension in which the ranks of a mesh of one dimension divide the tensor; None if each has all of it."""
    return _dim_of(one.placements[0], one.ndim)


def divided_dims(shape: Sequence[int], *layouts: Layout) -> frozenset[int]:
    """Return the dimensions that one of the layouts divides."""
    boxes = {box for layout in layouts for box in layout if box is not None}
    return frozenset(dim for dim, size in enumerate(shape) if any(box.sizes[dim] != size for box in boxes))


def can_move(one: DTensor, parameter: torch.Tensor, mesh: MeshShape) -> bool:
    """Return True if a parameter, or a value of its optimizer state, can change its layout in place."""
    sizes = dict(zip(DIMENSIONS, mesh.sizes, strict=True))
    names = one.device_mesh.mesh_dim_names or ()
    return (
        isinstance(parameter, DTensor)
        and one.shape == parameter.shape
        and one.placements == parameter.placements
        and not any(placement.is_partial() for placement in one.placements)
        and [sizes.get(name) for name in names] == list(one.device_mesh.shape)
    )


def _published(one: DTensor) -> Box:
    """Return the box of this rank's shard, as the tensor publishes it for checkpoints."""
    sizes = tuple(one.to_local().shape)
    chunks = one.__create_chunk_list__()  # type: ignore[no-untyped-call]
    offsets = tuple(chunks[0].offsets) if chunks else (0,) * one.ndim
    return Box(offsets, sizes)


def _dim_of(placement: object, ndim: int) -> int | None:
    dim = getattr(placement, "dim", None)
    return None if dim is None else dim % ndim
