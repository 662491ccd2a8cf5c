"""Change of a sharded model and its optimizer from one set of ranks to another, in place."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.optim import Optimizer

from headway.train.checkpoint.replica import Place, Replica
from headway.train.checkpoint.staging import is_sharded
from headway.train.gradients.averaging import Gradients
from headway.train.membership.peers import Peers
from headway.train.sharding.boxes import Box, ShardLayout
from headway.train.sharding.mover import MovedTensor, move
from headway.train.sharding.template import (
    Parallelize,
    Template,
    named_buffers,
    named_parameters,
    plain_name,
    put_tensors,
)
from headway.train.state.transfer import transfer_state

MESH_DIM = "fsdp"
"""Name of the only dimension of the mesh, which has all ranks."""

_Key = tuple[str, str]
"""Name of a parameter, and of a value in its optimizer state; the empty text for the parameter itself."""


@dataclass(frozen=True, slots=True)
class _Sharded:
    """A tensor of which each rank holds a part, divided in dimension `dim`; None: each rank holds all of it."""

    key: _Key
    shape: tuple[int, ...]
    dtype: torch.dtype
    dim: int | None

    def boxes(self, ranks: int) -> list[Box]:
        """Return the box of each of so many ranks."""
        return ShardLayout((ranks,), (self.dim,)).boxes(self.shape)


@dataclass(frozen=True, slots=True)
class _Catalogue:
    """The state as its first holder describes it. `positions` has the place of each rank among the holders."""

    sharded: list[_Sharded]
    positions: list[int | None]
    replicated: dict[str, torch.Tensor]
    """Buffers, and parameters that are not sharded."""
    extra: dict[str, Any]
    """Values of the model's state that are not tensors."""
    modes: dict[str, bool]
    """True for each module, by name, in training mode."""
    frozen: dict[str, bool]
    """True for each parameter, by name, that needs a gradient."""
    optimizer: dict[str, dict[str, Any]]
    """Optimizer state that is not sharded, by parameter."""
    groups: list[dict[str, Any]]
    """Parameter groups of the optimizer, with names of parameters."""


class Resharder:
    """The sharded model of this rank, made again for every set of ranks.

    Args:
        parallelize: the function of the script that shards the model.
        replica: has the plain model first, which is replaced there and in `gradients`, and the optimizer of its parameters,
            which stays the same object.

    Raises:
        ValueError: the model is sharded already, there are several optimizers, or the optimizer has a state or parameters that
            are not the model's.
        TypeError: the model cannot be copied.
    """

    def __init__(
        self,
        parallelize: Parallelize,
        *,
        replica: Replica,
        gradients: Gradients,
        device: torch.device,
    ) -> None:
        model, optimizer = replica.objects[0], replica.optimizer
        assert isinstance(model, nn.Module), "prepare() was given a model first"
        if is_sharded(dict(model.named_parameters())):
            raise ValueError(
                "the model is sharded already; give prepare() the plain one beside `parallelize`"
            )
        if sum(isinstance(one, Optimizer) for one in replica.objects) > 1:
            raise ValueError(
                "a model to shard has one optimizer; give it groups of parameters instead of several"
            )
        if optimizer.state:
            raise ValueError("the optimizer has taken steps already; give prepare() a new one")
        self._template = Template(model, parallelize)
        self._model = model
        self._optimizer = optimizer
        self._replica = replica
        self._gradients = gradients
        self._device = device
        self._shards: dict[_Key, torch.Tensor] = {}
        self._catalogue: _Catalogue | None = None
        self._named_groups()

    def start(self, peers: Peers) -> None:
        """Shard the plain model over the first ranks, or over new ones that load a checkpoint."""
        groups = self._named_groups()
        self._adopt(self._template.shard(self._model, self._mesh(peers)))
        self._put_groups(groups)

    @property
    def movable(self) -> bool:
        """True if every sharded tensor of the model and the optimizer can change its layout in place."""
        tensors: list[tuple[torch.Tensor, Any]] = [(one, one) for one in self._model.parameters()]
        tensors += [(one, value) for one, state in self._optimizer.state.items() for value in state.values()]
        return all(
            one.device_mesh.ndim == 1
            and one.device_mesh.size() == dist.get_world_size()
            and one.shape == parameter.shape
            and type(one.placements[0]) in {Shard, Replicate}
            for parameter, one in tensors
            if isinstance(one, DTensor)
        )

    def collect(self, peers: Peers, before: Sequence[int | None]) -> int:
        """Take the state out of the model and move the shards, as `ShardedState.collect` has it."""
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        stay = [rank for rank in before if rank is not None]
        if len(stay) < peers.world_size:
            positions = [None if rank is None else stay.index(rank) for rank in before]
        else:
            positions = list(before)
        self._shards = {key: one.to_local().detach() for key, one in self._dtensors()}
        self._catalogue = self._describe(positions)
        if len(stay) == peers.world_size:
            return 0
        sharded = self._catalogue.sharded
        moved = []
        for one in sharded:
            new: list[Box | None] = [None] * peers.world_size
            for rank, box in zip(stay, one.boxes(len(stay)), strict=True):
                new[rank] = box
            moved.append(self._moved(one, one.boxes(peers.world_size), new, one.dim))
        return self._move(moved, sharded, peers)

    def join(self, peers: Peers, source: int, place: Place) -> tuple[Place, int]:
        """Rebuild the model and put the state into it, as `ShardedState.join` has it."""
        others = [rank for rank in range(peers.world_size) if rank != source]
        (place, catalogue), nbytes = transfer_state(
            (), (place, self._catalogue), peers=peers, source=source, receivers=others, device=self._device
        )
        newcomers = [rank for rank, position in enumerate(catalogue.positions) if position is None]
        loose = self._replica.objects[2:]
        if loose and newcomers:
            nbytes += transfer_state(loose, None, peers=peers, source=source, receivers=newcomers)[1]
        mesh = self._mesh(peers)
        self._adopt(self._template.build(mesh))
        parameters = named_parameters(self._model)
        holders = sum(position is not None for position in catalogue.positions)
        moved = []
        for one in catalogue.sharded:
            dim = _dim_of(parameters[one.key[0]])
            old = one.boxes(holders)
            by_rank = [None if position is None else old[position] for position in catalogue.positions]
            moved.append(self._moved(one, by_rank, _with_dim(one, dim).boxes(peers.world_size), dim))
        nbytes += self._move(moved, catalogue.sharded, peers)
        self._put(catalogue, parameters, mesh)
        self._catalogue = None
        return place, nbytes

    def _moved(
        self, one: _Sharded, old: Sequence[Box | None], new: Sequence[Box | None], dim: int | None
    ) -> MovedTensor:
        divided = frozenset(number for number in (one.dim, dim) if number is not None)
        return MovedTensor(
            ".".join(filter(None, one.key)), one.dtype, old, new, divided, self._shards.pop(one.key, None)
        )

    def _move(self, moved: Sequence[MovedTensor], sharded: Sequence[_Sharded], peers: Peers) -> int:
        nbytes = move(moved, peers, self._device)
        for tensor, one in zip(moved, sharded, strict=True):
            if tensor.values is not None:
                self._shards[one.key] = tensor.values
            tensor.values = None
        return nbytes

    def _mesh(self, peers: Peers) -> DeviceMesh:
        return init_device_mesh(self._device.type, (peers.world_size,), mesh_dim_names=(MESH_DIM,))

    def _adopt(self, model: nn.Module) -> None:
        self._model = model
        self._replica.objects[0] = model
        self._gradients.adopt(model)

    def _dtensors(self) -> list[tuple[_Key, DTensor]]:
        found: list[tuple[_Key, DTensor]] = []
        for name, parameter in named_parameters(self._model).items():
            if isinstance(parameter, DTensor):
                found.append(((name, ""), parameter))
            state = self._optimizer.state.get(parameter, {})
            found += [((name, key), one) for key, one in state.items() if isinstance(one, DTensor)]
        return found

    def _describe(self, positions: list[int | None]) -> _Catalogue:
        parameters = named_parameters(self._model)
        state = self._model.state_dict()
        return _Catalogue(
            sharded=[
                _Sharded(key, tuple(one.shape), one.dtype, _dim_of(one)) for key, one in self._dtensors()
            ],
            positions=positions,
            replicated={
                name: one.detach()
                for name, one in itertools.chain(parameters.items(), named_buffers(self._model).items())
                if not isinstance(one, DTensor)
            },
            extra={name: one for name, one in state.items() if not isinstance(one, torch.Tensor)},
            modes={plain_name(name): one.training for name, one in self._model.named_modules()},
            frozen={name: one.requires_grad for name, one in parameters.items()},
            optimizer={
                name: {
                    key: value
                    for key, value in self._optimizer.state[one].items()
                    if not isinstance(value, DTensor)
                }
                for name, one in parameters.items()
                if one in self._optimizer.state
            },
            groups=self._named_groups(),
        )

    def _named_groups(self) -> list[dict[str, Any]]:
        names = {id(one): name for name, one in named_parameters(self._model).items()}
        try:
            return [
                {**group, "params": [names[id(one)] for one in group["params"]]}
                for group in self._optimizer.param_groups
            ]
        except KeyError:
            raise ValueError("the optimizer has parameters that are not the model's") from None

    def _put(self, catalogue: _Catalogue, meta: Mapping[str, nn.Parameter], mesh: DeviceMesh) -> None:
        """Put the state into the new model and the optimizer."""
        whole = dict(catalogue.replicated)
        tensors = {
            name: self._dtensor((name, ""), one, mesh)
            if isinstance(one, DTensor)
            else whole.pop(name).to(self._device)
            for name, one in meta.items()
        }
        for one in catalogue.sharded:
            name, key = one.key
            if key:
                catalogue.optimizer[name][key] = self._dtensor(one.key, meta[name], mesh)
        for name, parameter in meta.items():
            parameter.requires_grad_(catalogue.frozen[name])
        put_tensors(self._model, tensors, {name: one.to(self._device) for name, one in whole.items()})
        if catalogue.extra:
            self._model.load_state_dict(catalogue.extra, strict=False)
        for name, module in self._model.named_modules():
            module.training = catalogue.modes.get(plain_name(name), module.training)
        self._gradients.adopt(self._model)
        self._put_groups(catalogue.groups)
        self._optimizer.state.clear()
        for name, parameter in named_parameters(self._model).items():
            if name in catalogue.optimizer:
                self._optimizer.state[parameter] = catalogue.optimizer[name]

    def _dtensor(self, key: _Key, like: nn.Parameter, mesh: DeviceMesh) -> DTensor:
        assert isinstance(like, DTensor), "a sharded tensor stays one"
        return DTensor.from_local(
            self._shards.pop(key),
            mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    def _put_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        by_name = named_parameters(self._model)
        present = self._optimizer.param_groups
        present += [{} for _ in groups[len(present) :]]
        for group, its in zip(present, groups, strict=True):
            group.update({**its, "params": [by_name[name] for name in its["params"]]})


def _dim_of(one: torch.Tensor) -> int | None:
    assert isinstance(one, DTensor)
    placement = one.placements[0]
    return placement.dim % one.ndim if isinstance(placement, Shard) else None


def _with_dim(one: _Sharded, dim: int | None) -> _Sharded:
    return _Sharded(one.key, one.shape, one.dtype, dim)
