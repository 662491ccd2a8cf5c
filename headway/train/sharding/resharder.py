"""Change of a sharded model and its optimizer from one set of ranks to another, in place."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from headway.contract.values.meshes import FSDP, PP, REPLICATE, MeshShape
from headway.train.checkpoint.replica import Place, Replica
from headway.train.checkpoint.staging import is_sharded
from headway.train.gradients.averaging import Gradients
from headway.train.gradients.stages import PipelinePlace
from headway.train.membership.peers import Peers
from headway.train.sharding.boxes import Box
from headway.train.sharding.catalogue import (
    Catalogue,
    ShardedTensor,
    describe,
    sharded_tensors,
    with_other_stages,
)
from headway.train.sharding.layouts import (
    Layout,
    are_whole,
    can_move,
    check_mesh_use,
    check_names,
    check_stages,
    device_mesh,
    divided_dim,
    divided_dims,
    expected_layout,
    gather_boxes,
    groups_by_dimension,
    held,
    mesh_with,
)
from headway.train.sharding.mover import MovedTensor, move
from headway.train.sharding.optimizers import ShardedOptimizers
from headway.train.sharding.recovery import joined, plan_recovery
from headway.train.sharding.redundancy import (
    AdoptedShards,
    Redundancy,
    RedundancyUnsupported,
    ShardToCopy,
    adopt,
)
from headway.train.sharding.replicas import Replicas
from headway.train.sharding.shadow import ShardKey
from headway.train.sharding.template import (
    Parallelize,
    Template,
    named_buffers,
    named_parameters,
    plain_name,
    put_tensors,
)
from headway.train.state.sharded import ShardsLost
from headway.train.state.transfer import transfer_state


class Resharder:
    """The sharded model of this rank, made again for every set of ranks.

    Args:
        parallelize: the function of the script that shards the model, and returns the stage of this rank in a pipeline.
        names: names of the dimensions of the mesh that it gets.
        replica: has the plain model first, which is replaced there and in `gradients`, and the optimizers of its parameters,
            which stay the same objects.
        redundant: each rank keeps a copy of the shards of the rank before it.

    Raises:
        ValueError: the model is sharded already, an optimizer has a state, or parameters that another one has or the model
            has not, or a name is unknown.
        TypeError: the model cannot be copied.
        RedundancyUnsupported: a copy of the optimizer's state cannot be kept, or there are several optimizers.
    """

    def __init__(
        self,
        parallelize: Parallelize,
        names: Sequence[str],
        *,
        replica: Replica,
        gradients: Gradients,
        device: torch.device,
        redundant: bool = False,
    ) -> None:
        model = replica.objects[0]
        assert isinstance(model, nn.Module), "prepare() was given a model first"
        if is_sharded(dict(model.named_parameters())):
            raise ValueError(
                "the model is sharded already; give prepare() the plain one beside `parallelize`"
            )
        self.has_begun = False
        """True if the model is sharded already, so that `start` is no longer possible."""
        self._names = check_names(names)
        if redundant and self._names != (FSDP,):
            raise ValueError("elastic.redundancy copies the shards of models on a mesh of fsdp alone")
        if redundant and len(replica.optimizers) > 1:
            raise RedundancyUnsupported(
                "REDUNDANCY_UNSUPPORTED: elastic.redundancy: neighbour copies the steps of one optimizer, not of several.",
                "Use one optimizer with several groups of parameters, or leave elastic.redundancy out of the job file.",
            )
        self._mesh = MeshShape()
        self._boxes: dict[str, Layout] = {}
        self._template = Template(model, parallelize)
        self._model = model
        self._optimizers = ShardedOptimizers(replica.optimizers)
        self._replica = replica
        self._gradients = gradients
        self._device = device
        self._shards: dict[ShardKey, torch.Tensor] = {}
        self._catalogue: Catalogue | None = None
        self._redundancy = Redundancy(replica.optimizer, device) if redundant else None
        self._replicas = Replicas(replica.optimizer, device)
        # Groups of stages are not guarded, and several optimizers do not step together.
        one_step = PP not in self._names and len(replica.optimizers) == 1
        replica.replicates = REPLICATE in self._names and one_step
        self._optimizers.groups(model)  # refuses parameters of another model

    def start(self, peers: Peers, mesh: MeshShape) -> None:
        """Shard the plain model over the first ranks, or over new ones that load a checkpoint."""
        groups = self._optimizers.groups(self._model)
        self._use(mesh)
        over = self._device_mesh(peers)
        self._adopt(self._template.shard(self._model, over), over)
        self._exchange_layouts(peers)
        check_mesh_use(named_parameters(self._model), self._mesh)
        self._optimizers.put_groups(self._model, groups)

    @property
    def movable(self) -> bool:
        """True if every sharded tensor of the model and the optimizer can change its layout in place."""
        tensors: list[tuple[torch.Tensor, Any]] = [(one, one) for one in self._model.parameters()]
        tensors += self._optimizers.values()
        return all(
            can_move(one, parameter, self._mesh) for parameter, one in tensors if isinstance(one, DTensor)
        )

    @property
    def recoverable(self) -> bool:
        """True if the shards of a lost rank may have a copy on another rank."""
        if self._redundancy is not None:
            return self._redundancy.size > 0
        return self._replicas.position is not None and self.movable

    @property
    def _has_replicas(self) -> bool:
        return self._replica.replicates and self._mesh.has_copies

    def protect(self, peers: Peers) -> int:
        """Copy each shard to the next rank, or commit steps for replicas, as `ShardedState.protect` has it."""
        self._gradients.commit = None
        self._replicas.forget()
        if not self.movable:
            return 0
        trained = {id(one) for one in self._optimizers.parameters()}
        parameters = {name: one for name, one in named_parameters(self._model).items() if id(one) in trained}
        if self._redundancy is not None:
            return self._copy_shards(self._redundancy, peers, parameters)
        if self._has_replicas:
            self._replicas.establish(peers, list(parameters.values()))
            self._gradients.commit = self._replicas
        return 0

    def _copy_shards(
        self, redundancy: Redundancy, peers: Peers, parameters: Mapping[str, nn.Parameter]
    ) -> int:
        shards = []
        for key, one in sharded_tensors(self._model, self._optimizers):
            if divided_dim(one) is not None:
                sizes = held(self._boxes[key[0]])[peers.rank - 1].sizes
                shards.append(ShardToCopy(key, one.to_local().detach(), sizes))
        copied = {one.key for one in shards}
        stepped = {name: one for name, one in parameters.items() if (name, "") in copied}
        nbytes = redundancy.establish(peers, shards, stepped)
        self._gradients.commit = redundancy if peers.world_size > 1 else None
        return nbytes

    def recover(self, peers: Peers, *, has_state: bool, is_behind: bool) -> int:
        """Take the state out of the model with the copies of lost shards, as `ShardedState.recover` has it."""
        if self._redundancy is not None:
            return self._recover_from_copies(self._redundancy, peers, is_behind=is_behind)
        place = self._replicas.position if has_state else None
        if is_behind and not self._takes_held_step():
            place = None
        self._replicas.forget()  # a further loss finds shards that moved
        told = peers.gather(-1 if place is None else place)
        before = [None if one < 0 else one for (one,) in told]
        left = [one for one in before if one is not None]
        layouts: dict[str, Layout] = {
            name: [boxes[rank] for rank in left] for name, boxes in self._boxes.items()
        }
        shapes = {name: one.shape for name, one in named_parameters(self._model).items()}
        if not all(are_whole(boxes, shapes[name]) for name, boxes in layouts.items()):
            raise ShardsLost(
                "SHARDS_LOST: every rank that held a part of the model is lost.",
                "The job restarts from its checkpoint.",
            )
        if place is None:
            self._shards = {}
            return 0
        self._reshard()
        catalogue, _ = self._take(peers, before)
        catalogue.layouts = layouts
        return 0

    def _takes_held_step(self) -> bool:
        """Take the step that other ranks have taken; False if this rank did not keep it, or its optimizer communicates."""
        self._gradients.broken = False
        taken = self._replicas.take_held_step(self._gradients.lr_factor)
        return taken and not self._gradients.broken

    def _recover_from_copies(self, redundancy: Redundancy, peers: Peers, *, is_behind: bool) -> int:
        told = peers.gather(redundancy.position, redundancy.size)
        size = max(its for _, its in told)
        plan = plan_recovery([position if its else None for position, its in told], size)
        if redundancy.size == 0:
            return 0
        if is_behind:
            redundancy.take_held_step(self._gradients.lr_factor)
        self._reshard()
        dims = {key: divided_dim(one) for key, one in sharded_tensors(self._model, self._optimizers)}
        spans = [span for span in plan.spans if span is not None]
        catalogue, _ = self._take(peers, plan.spans)
        catalogue.layouts = {
            name: [joined(held(boxes)[slice(*span)], dims[name, ""]) for span in spans]
            for name, boxes in self._boxes.items()
        }
        adopted = {
            key: AdoptedShards(held(self._boxes[key[0]]), dim, self._shards[key])
            for key, dim in dims.items()
            if dim is not None
        }
        copies = redundancy.copies
        redundancy.forget()  # a further loss finds shards that moved, and a step whose position this rank does not know yet
        nbytes = adopt(plan, adopted, copies, peers, self._device)
        self._shards.update({key: one.values for key, one in adopted.items()})
        return nbytes

    def collect(self, peers: Peers, before: Sequence[int | None], mesh: MeshShape) -> int:
        """Take the state out of the model and move the shards, as `ShardedState.collect` has it."""
        self._replicas.forget()
        if self._redundancy is not None:
            self._redundancy.forget()
        self._reshard()
        catalogue, taken_bytes = self._take(peers, before)
        stay = [rank for rank in before if rank is not None]
        catalogue.layouts = {name: [boxes[rank] for rank in stay] for name, boxes in self._boxes.items()}
        parameters = {one.key[0]: one for one in catalogue.sharded if not one.key[1]}
        if all(are_whole(catalogue.layouts[name], one.shape) for name, one in parameters.items()):
            return taken_bytes
        new_mesh = mesh_with(self._names, mesh)
        if new_mesh.size != len(stay):  # ranks join at the same time
            new_mesh = MeshShape(fsdp=len(stay))
        for name, one in parameters.items():
            catalogue.layouts[name] = expected_layout(
                one.shape, one.dims, self._boxes[name], self._mesh, new_mesh
            )
        moved = []
        for one in catalogue.sharded:
            new: list[Box | None] = [None] * peers.world_size
            for rank, box in zip(stay, catalogue.layouts[one.key[0]], strict=True):
                new[rank] = box
            moved.append(self._moved(one, self._boxes[one.key[0]], new))
        return taken_bytes + self._move(moved, catalogue.sharded, peers)

    def _reshard(self) -> None:
        """Free parameters that FSDP has gathered for a forward pass."""
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _take(self, peers: Peers, before: Sequence[object | None]) -> tuple[Catalogue, int]:
        """Take the state out of the model. Return its catalogue without layouts, and the bytes sent or received for it.

        `before` has None for new ranks.
        """
        place = itertools.count()
        positions = [None if rank is None else next(place) for rank in before]
        self._shards = {
            key: one.to_local().detach() for key, one in sharded_tensors(self._model, self._optimizers)
        }
        mine = describe(self._model, self._optimizers, positions, self._replica.settings.changed)
        self._catalogue, nbytes = with_other_stages(mine, peers, self._mesh, self._device)
        return self._catalogue, nbytes

    def join(self, peers: Peers, source: int, place: Place, mesh: MeshShape) -> tuple[Place, int]:
        """Rebuild the model and put the state into it, as `ShardedState.join` has it."""
        others = [rank for rank in range(peers.world_size) if rank != source]
        (place, catalogue), nbytes = transfer_state(
            (), (place, self._catalogue), peers=peers, source=source, receivers=others, device=self._device
        )
        newcomers = [rank for rank, position in enumerate(catalogue.positions) if position is None]
        loose = self._replica.loose
        if loose and newcomers:
            nbytes += transfer_state(loose, None, peers=peers, source=source, receivers=newcomers)[1]
        self._use(mesh)
        over = self._device_mesh(peers)
        self._adopt(self._template.build(over), over)
        self._exchange_layouts(peers)
        moved = []
        for one in catalogue.sharded:
            parts = catalogue.layouts[one.key[0]]
            old = [None if position is None else parts[position] for position in catalogue.positions]
            moved.append(self._moved(one, old, self._boxes[one.key[0]]))
        nbytes += self._move(moved, catalogue.sharded, peers)
        self._put(catalogue)
        self._catalogue = None
        return place, nbytes

    def _moved(self, one: ShardedTensor, old: Layout, new: Layout) -> MovedTensor:
        divided = divided_dims(one.shape, old, new)
        name = ".".join(filter(None, one.key))
        return MovedTensor(name, one.dtype, old, new, divided, self._shards.pop(one.key, None))

    def _move(self, moved: Sequence[MovedTensor], sharded: Sequence[ShardedTensor], peers: Peers) -> int:
        nbytes = move(moved, peers, self._device)
        for tensor, one in zip(moved, sharded, strict=True):
            if tensor.values is not None:
                self._shards[one.key] = tensor.values
            tensor.values = None
        return nbytes

    def _device_mesh(self, peers: Peers) -> DeviceMesh:
        groups = []
        if self._redundancy is not None or self._has_replicas:
            by_dimension = groups_by_dimension(self._names, self._mesh)
            groups = peers.guarded_groups(by_dimension, self._gradients.break_off)
        return device_mesh(self._names, self._mesh, self._device.type, groups)

    def _use(self, mesh: MeshShape) -> None:
        self.has_begun = True
        self._mesh = mesh_with(self._names, mesh)
        self._replica.shards, self._replica.stages = self._mesh.fsdp, self._mesh.pp

    def _adopt(self, model: nn.Module, mesh: DeviceMesh) -> None:
        self._model = model
        self._replica.objects[0] = model
        self._gradients.adopt(model)
        if PP in self._names:
            stage = mesh.get_local_rank(PP)
            self._gradients.pipeline = PipelinePlace(mesh.get_group(PP), stage, self._mesh.pp)

    def _exchange_layouts(self, peers: Peers) -> None:
        """Take the layouts of the new model, which all ranks exchange.

        Raises:
            ValueError: a parameter that is trained does not belong to exactly one stage.
        """
        self._boxes = gather_boxes(named_parameters(self._model), self._template.ndims, peers)
        if self._mesh.pp > 1:
            check_stages(self._boxes, self._template.trained, self._mesh)

    def _put(self, catalogue: Catalogue) -> None:
        """Put the state into the new model and the optimizer."""
        meta, whole = named_parameters(self._model), catalogue.replicated
        tensors = {
            name: self._dtensor((name, ""), one) if isinstance(one, DTensor) else whole[name].to(self._device)
            for name, one in meta.items()
        }
        for one in catalogue.sharded:
            name, key = one.key
            if key and name in meta:
                catalogue.optimizer[name][key] = self._dtensor(one.key, meta[name])
        for name, parameter in meta.items():
            parameter.requires_grad_(catalogue.trained[name])
        buffers = {name: whole[name].to(self._device) for name in named_buffers(self._model)}
        put_tensors(self._model, tensors, buffers)
        if catalogue.extra:
            self._model.load_state_dict(catalogue.extra, strict=False)
        for name, module in self._model.named_modules():
            module.training = catalogue.modes.get(plain_name(name), module.training)
        self._replica.settings.take_over(catalogue.settings)
        self._gradients.adopt(self._model)
        self._optimizers.put_groups(self._model, catalogue.groups)
        self._optimizers.put_states(self._model, catalogue.optimizer)

    def _dtensor(self, key: ShardKey, like: nn.Parameter) -> DTensor:
        assert isinstance(like, DTensor), "a sharded tensor stays one"
        return DTensor.from_local(
            self._shards.pop(key),
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )
