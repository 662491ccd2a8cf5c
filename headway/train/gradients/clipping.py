"""Gradient clipping for models whose parameters lie on different device meshes or pipeline stages."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.contract.values.meshes import PP


def clip_grad_norm_(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale the gradients such that their total 2-norm is at most `max_norm`, and return the norm before.

    `torch.nn.utils.clip_grad_norm_` does the same for parameters on one mesh. It refuses a model of which tensor parallelism
    divides only some, and knows only the stage of this rank in a pipeline. Every rank must call this function.
    """
    everyone = list(parameters)
    by_mesh: dict[object, list[nn.Parameter]] = {}
    for one in everyone:
        if one.grad is not None:
            by_mesh.setdefault(getattr(one, "device_mesh", None), []).append(one)
    norms = [nn.utils.get_total_norm([one.grad for one in part]) for part in by_mesh.values()]  # type: ignore[misc]
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in norms]
    total = torch.zeros((), device=everyone[0].device if everyone else None)
    if whole:
        total = torch.linalg.vector_norm(torch.stack([one.to(whole[0].device) for one in whole]))
    for group in _pipelines(everyone):
        squares = total.double().square()  # of one type, although a stage may have no gradient
        dist.all_reduce(squares, group=group)
        total = squares.sqrt().to(total.dtype)
    for part in by_mesh.values():
        nn.utils.clip_grads_with_norm_(part, max_norm, total)
    return total


def _pipelines(parameters: Iterable[nn.Parameter]) -> list[dist.ProcessGroup]:
    """Return the group of the ranks of this rank's pipeline; none for a model without stages."""
    meshes = {one.device_mesh for one in parameters if hasattr(one, "device_mesh")}
    roots = {mesh._get_root_mesh() for mesh in meshes}  # noqa: SLF001  # torch has no other way
    return [root.get_group(PP) for root in roots if PP in (root.mesh_dim_names or ())]
