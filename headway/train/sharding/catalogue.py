"""Description of a sharded model's state, from which every rank rebuilds its part of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from headway.contract.values.meshes import MeshShape
from headway.train.membership.peers import Peers
from headway.train.sharding.layouts import Layout, mesh_dims
from headway.train.sharding.optimizers import NamedGroups, ShardedOptimizers
from headway.train.sharding.shadow import ShardKey
from headway.train.sharding.template import named_buffers, named_parameters, plain_name
from headway.train.state.transfer import loose_of, transfer_state


@dataclass(frozen=True, slots=True)
class ShardedTensor:
    """A tensor of which each rank holds a part. `dims` has its dimension that each mesh dimension divides."""

    key: ShardKey
    shape: tuple[int, ...]
    dtype: torch.dtype
    dims: tuple[int | None, ...]


@dataclass(slots=True)
class Catalogue:
    """The state as its holders describe it. `positions` has the place of each rank among the holders."""

    sharded: list[ShardedTensor]
    positions: list[int | None]
    replicated: dict[str, torch.Tensor]
    """Buffers, and parameters that are not sharded."""
    extra: dict[str, Any]
    """Values of the model's state that are neither parameters nor buffers."""
    modes: dict[str, bool]
    """True for each module, by name, in training mode."""
    settings: list[dict[str, dict[str, Any]]]
    """The settings that the script has changed on the modules of each model, that of the sharded one first: see `ModelSettings`."""
    trained: dict[str, bool]
    """True for each parameter, by name, that needs a gradient."""
    optimizer: dict[str, dict[str, Any]]
    """Optimizer state that is not sharded, by parameter."""
    groups: NamedGroups
    layouts: dict[str, Layout] = field(default_factory=dict)
    """Box of each holder, by parameter."""


def describe(
    model: nn.Module,
    optimizers: ShardedOptimizers,
    positions: list[int | None],
    settings: list[dict[str, dict[str, Any]]],
) -> Catalogue:
    """Return the catalogue of this rank's stage, without layouts."""
    parameters = named_parameters(model)
    return Catalogue(
        sharded=[
            ShardedTensor(key, tuple(one.shape), one.dtype, mesh_dims(one))
            for key, one in sharded_tensors(model, optimizers)
        ],
        positions=positions,
        replicated={
            name: one.detach()
            for name, one in itertools.chain(parameters.items(), named_buffers(model).items())
            if not isinstance(one, DTensor)
        },
        extra=loose_of(model),
        modes={plain_name(name): one.training for name, one in model.named_modules()},
        settings=settings,
        trained={name: one.requires_grad for name, one in parameters.items()},
        optimizer={
            name: {key: value for key, value in state.items() if not isinstance(value, DTensor)}
            for name, one in parameters.items()
            if (state := optimizers.state_of(one))
        },
        groups=optimizers.groups(model),
    )


def with_other_stages(
    mine: Catalogue, peers: Peers, mesh: MeshShape, device: torch.device
) -> tuple[Catalogue, int]:
    """Return the catalogue of all stages, and the bytes that this rank sent or received. All ranks call it.

    What several stages have, such as a buffer, is that of the first of them.

    Raises:
        PeersLost: a peer is gone.
    """
    if mesh.pp == 1:
        return mine, 0
    parts, moved = [], 0
    for stage in range(mesh.pp):
        first = mesh.rank_at(0, stage * mesh.tp)
        others = [rank for rank in range(peers.world_size) if rank != first]
        part, nbytes = transfer_state((), mine, peers=peers, source=first, receivers=others, device=device)
        parts.append(part)
        moved += nbytes
    return (
        Catalogue(
            sharded=[tensor for one in parts for tensor in one.sharded],
            positions=mine.positions,
            replicated=_union([one.replicated for one in parts]),
            extra=_union([one.extra for one in parts]),
            modes=_union([one.modes for one in parts]),
            settings=[_union([one.settings[0] for one in parts]), *mine.settings[1:]],
            trained=_union([one.trained for one in parts]),
            optimizer=_union([one.optimizer for one in parts]),
            groups=[
                [
                    {**of_stages[0], "params": [name for group in of_stages for name in group["params"]]}
                    for of_stages in zip(*of_optimizer, strict=True)
                ]
                for of_optimizer in zip(*(one.groups for one in parts), strict=True)
            ],
        ),
        moved,
    )


def sharded_tensors(model: nn.Module, optimizers: ShardedOptimizers) -> list[tuple[ShardKey, DTensor]]:
    """Return this rank's sharded parameters, and the sharded values of their optimizer state."""
    found: list[tuple[ShardKey, DTensor]] = []
    for name, parameter in named_parameters(model).items():
        if isinstance(parameter, DTensor):
            found.append(((name, ""), parameter))
        state = optimizers.state_of(parameter)
        found += [((name, key), one) for key, one in state.items() if isinstance(one, DTensor)]
    return found


def _union(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries of all parts; of equal names that of the first part."""
    return {name: value for part in reversed(parts) for name, value in part.items()}
