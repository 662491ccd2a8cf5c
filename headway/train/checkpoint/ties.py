"""Tied tensors, which are the same memory: they are saved once, and tied again when they are restored."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Set

import torch
from torch import distributed as dist
from torch import nn


def _sharded_type() -> type | None:
    # The module takes half a second to import. Before its first import no such tensor exists.
    module = sys.modules.get("torch.distributed.tensor")
    return None if module is None else module.DTensor


def is_part(tensor: torch.Tensor) -> bool:
    """Return True if ranks hold parts of this tensor, instead of a complete one."""
    kind = _sharded_type()
    return kind is not None and isinstance(tensor, kind)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, or all of another one, without its history for gradients."""
    local: torch.Tensor = tensor.to_local() if is_part(tensor) else tensor  # type: ignore[attr-defined]
    return local.detach()


def memory_of(tensor: torch.Tensor) -> Hashable | None:
    """Return a value that tied tensors have in common, while they exist; None if the kind of tensor does not tell.

    Ranks must find the same tensors tied. Therefore memory is not known by its address: empty shards have none.
    """
    local = local_part(tensor)
    if type(local) is not torch.Tensor or type(tensor) not in {torch.Tensor, nn.Parameter, _sharded_type()}:
        return None
    spec = (tensor.shape, tensor.placements) if is_part(tensor) else None  # type: ignore[attr-defined]
    memory = local.untyped_storage()._cdata  # noqa: SLF001  # torch's own pickler of tied tensors uses it
    view = (local.storage_offset(), local.shape, local.stride(), local.dtype, local.is_conj(), local.is_neg())
    return memory, view, spec


def check_names(firsts: Mapping[str, str], saved: Set[str], group: dist.ProcessGroup | None) -> None:
    """Check that a checkpoint with tensors of the names `saved` has those of the states of all ranks of the group.

    `firsts` has the names of this rank's tensors, and for each the first to which it is tied. Of tied ones at least one is
    saved: older libraries saved each.

    Raises:
        LookupError: it has others.
    """
    if group is not None:
        # Ranks have other tensors if they are of other stages.
        everyone: list[dict[str, str]] = [{} for _ in range(dist.get_world_size(group))]
        dist.all_gather_object(everyone, dict(firsts), group=group)
        firsts = {name: first for one in everyone for name, first in one.items()}
    present = {firsts[name] for name in saved & firsts.keys()}
    missing = {name for name, first in firsts.items() if first not in present}
    differing = sorted(missing | (saved - firsts.keys()))
    if differing:
        raise LookupError(
            f"the checkpoint and the script have different tensors: {', '.join(differing[:5])}, …"
        )
