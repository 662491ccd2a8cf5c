"""A copy of the plain model without values, from which the sharded model of each generation is made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

Parallelize = Callable[[nn.Module, DeviceMesh], nn.Module | None]
"""Function of the script that shards a model over a mesh, in place or by returning another module."""

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
"""Parts of names that torch's activation checkpointing and compilation add."""


class Template:
    """The plain model on the meta device, kept before it is sharded.

    Raises:
        TypeError: the model cannot be copied.
    """

    def __init__(self, model: nn.Module, parallelize: Parallelize) -> None:
        self._parallelize = parallelize
        try:
            self._model = _copy_without_values(model)
        except Exception as error:
            raise TypeError(
                f"the model cannot be copied, which `parallelize` needs to build it again at other sizes ({error}); "
                "create what cannot be copied in forward()"
            ) from error

    @property
    def ndims(self) -> dict[str, int]:
        """Number of dimensions of each parameter, by name."""
        return {name: one.ndim for name, one in named_parameters(self._model).items()}

    @property
    def trained(self) -> list[str]:
        """Names of the parameters that need a gradient."""
        return [name for name, one in named_parameters(self._model).items() if one.requires_grad]

    def shard(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """Return this model, sharded over the mesh by the script's function; of a pipeline, this rank's stage.

        Raises:
            ValueError: the stage has parameters that the plain model does not have under their names.
        """
        made = self._parallelize(model, mesh) or model
        foreign = sorted(named_parameters(made).keys() - named_parameters(self._model).keys())
        if foreign:
            raise ValueError(
                f"`parallelize` returned a model with the parameter {foreign[0]}, which the plain model does not have under "
                "this name; remove the layers of other stages from the plain model, and keep modules that share a parameter together"
            )
        return made

    def build(self, mesh: DeviceMesh) -> nn.Module:
        """Return a new model without values, sharded over the mesh."""
        return self.shard(_copy_without_values(self._model), mesh)


def plain_name(name: str) -> str:
    """Return the name of a parameter, buffer or module without the parts that wrappers add."""
    for part in _WRAPPERS:
        name = name.replace(part, "")
    return name


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by plain name; one that several modules share has its first name."""
    return {plain_name(name): one for name, one in model.named_parameters()}


def named_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers, also those that are not part of the state, by plain name."""
    return {plain_name(name): one for name, one in model.named_buffers()}


def put_tensors(
    model: nn.Module, parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]
) -> None:
    """Replace parameters and buffers of the model by these, in every module that shares them.

    The dictionaries are emptied, so that memory is freed as soon as a module makes a padded copy of its parameter.
    """
    by_identity: dict[int, torch.Tensor] = {}
    for name, old in named_parameters(model).items():
        by_identity[id(old)] = nn.Parameter(parameters.pop(name), requires_grad=old.requires_grad)
    for name, buffer in named_buffers(model).items():
        by_identity[id(buffer)] = buffers.pop(name)
    for module in list(model.modules()):
        own = [
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False, remove_duplicate=False),
        ]
        for leaf, present in own:
            setattr(module, leaf, by_identity[id(present)])


def _copy_without_values(model: nn.Module) -> nn.Module:
    """Return a copy whose parameters and buffers are on the meta device, with the attributes that the script has set."""
    memo: dict[int, Any] = {}
    for one in (*model.parameters(), *model.buffers()):
        values = torch.empty_like(one, device="meta")
        empty: torch.Tensor = (
            nn.Parameter(values, one.requires_grad) if isinstance(one, nn.Parameter) else values
        )
        empty.__dict__.update(one.__dict__)
        memo[id(one)] = empty
    return copy.deepcopy(model, memo)
