"""Conversion of a nested state into a tree and named tensors, and back, and its copy to host memory.

    split({"model": {"weight": tensor}, "epoch": 3}) -> (tree, {"model.weight": tensor})

The tree is bytes: the nested state with the tensors' names in place of the tensors. It is read with
`weights_only`, so reading a checkpoint never runs code. Therefore numpy's scalars are stored as numbers, and `split`
refuses every value that could not be read in this way.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import torch

_Node = tuple[Any, ...]
_Pair = tuple[torch.Tensor, torch.Tensor]
_LARGE_BYTES = 32 * 2**20
_COPIERS = min(4, os.cpu_count() or 1)
_READABLE = {type(None), bool, int, float, str, bytes, torch.Size, torch.dtype, torch.device}
"""Types whose values can be read without running code. A value of another type has to be tried."""


class UnreadableValue(TypeError):
    """Raised for a state with a value, at `path`, that could not be read back."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path or 'the state'} {why}")
        self.path = path
        self.why = why


def split(state: Any) -> tuple[bytes, dict[str, torch.Tensor]]:
    """Return the tree of a state, and its tensors by their paths. Tensors are not copied.

    Raises:
        UnreadableValue: the state holds an object that only code can read back, or a tensor that is not dense.
    """
    tensors: dict[str, torch.Tensor] = {}
    buffer = io.BytesIO()
    torch.save(_encode(state, "", tensors), buffer)
    return buffer.getvalue(), tensors


def join(tree: bytes, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state that `split` took apart, with these tensors.

    Raises:
        TypeError: the tree holds objects that only code could read back.
        KeyError: a tensor is missing.
    """
    try:
        node = torch.load(io.BytesIO(tree), map_location="cpu", weights_only=True)
    except pickle.PickleError as error:
        raise TypeError(
            f"a state holds an object that can only be read back by running code ({error})"
        ) from error
    return _decode(node, tensors)


def is_sharded(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Return True if ranks hold parts of these tensors, instead of complete ones."""
    return any(_is_part(tensor) for tensor in tensors.values())


def shard_bytes(tensors: Iterable[object]) -> int:
    """Return the bytes of this rank's parts of the sharded tensors among these objects."""
    return sum(_local(one).nbytes for one in tensors if isinstance(one, torch.Tensor) and _is_part(one))


class HostCopy:
    """Host memory for copies of a state, kept between saves because touching new memory is slow."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}
        self._copiers = futures.ThreadPoolExecutor(_COPIERS, thread_name_prefix="headway-copy")

    def reserve(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Allocate the memory for a copy of these tensors, so that `take` need not."""
        self._fit({name: _local(tensor) for name, tensor in tensors.items()}, touch=True)

    def take(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy the tensors to host memory that the next call overwrites. Of a sharded tensor, copy this rank's part."""
        local = {name: _local(tensor) for name, tensor in tensors.items()}
        self._fit(local, touch=False)
        pairs = [(self._buffers[name], tensor) for name, tensor in local.items()]
        if sum(tensor.nbytes for tensor in local.values() if not tensor.is_cuda) < _LARGE_BYTES:
            _copy(pairs)
        else:
            # All ranks of the host are paused now, so their cores are free.
            list(self._copiers.map(_copy, _balanced_shares(pairs, _COPIERS)))
        for device in {tensor.device for tensor in local.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return dict(self._buffers)

    def _fit(self, local: Mapping[str, torch.Tensor], *, touch: bool) -> None:
        for name in self._buffers.keys() - local.keys():
            del self._buffers[name]
        for name, tensor in local.items():
            have = self._buffers.get(name)
            if have is None or have.shape != tensor.shape or have.dtype != tensor.dtype:
                have = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
                self._buffers[name] = have.zero_() if touch else have


def _is_part(tensor: torch.Tensor) -> bool:
    # The module takes half a second to import. Before its first import no such tensor exists.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if _is_part(tensor) else tensor  # type: ignore[attr-defined]
    return local.detach()


def _copy(pairs: Sequence[_Pair]) -> None:
    for buffer, tensor in pairs:
        buffer.copy_(tensor, non_blocking=True)


def _balanced_shares(pairs: Sequence[_Pair], shares: int) -> list[list[_Pair]]:
    """Divide the pairs into shares of about equal size in bytes."""
    divided: list[list[_Pair]] = [[] for _ in range(shares)]
    sizes = [0] * shares
    for pair in sorted(pairs, key=lambda pair: pair[1].nbytes, reverse=True):
        least = sizes.index(min(sizes))
        divided[least].append(pair)
        sizes[least] += pair[1].nbytes
    return divided


def _encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> _Node:
    """Return `value` as (kind, contents), with names in place of tensors."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise UnreadableValue(path, "is not a dense tensor; make it one in state_dict()")
        name = path if path not in tensors else f"{path}~{len(tensors)}"
        tensors[name] = value.detach()
        return ("tensor", name)
    if type(value) in {dict, OrderedDict}:
        items = [
            (_plain(key, path), _encode(one, _child_path(path, key), tensors)) for key, one in value.items()
        ]
        # Metadata of nn.Module.state_dict(): the versions of the modules.
        metadata = _plain(getattr(value, "_metadata", None), path)
        changed = any(key is not before for (key, _), before in zip(items, value, strict=True))
        if changed or not _are_as_they_were([node for _, node in items], value.values()):
            return ("ordered", items, metadata) if type(value) is OrderedDict else ("dict", items)
        return ("value", value)
    if type(value) in {list, tuple}:
        parts = [_encode(one, _child_path(path, number), tensors) for number, one in enumerate(value)]
        if not _are_as_they_were(parts, value):
            return ("list" if type(value) is list else "tuple", parts)
        return ("value", value)
    return ("value", _plain(value, path))


def _are_as_they_were(nodes: Iterable[_Node], values: Iterable[Any]) -> bool:
    """Return True if each node is the value itself: without tensors, and with nothing replaced."""
    return all(node[0] == "value" and node[1] is value for node, value in zip(nodes, values, strict=True))


def _plain(value: Any, path: str) -> Any:
    """Return the value, or the number in it, after a proof that it can be read.

    Raises:
        UnreadableValue: it cannot.
    """
    if type(value) in _READABLE:
        return value
    is_number = isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64)
    if is_number and type(number := value.item()) in _READABLE:  # the number in a time lacks its unit
        return number
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        torch.load(io.BytesIO(buffer.getvalue()), map_location="cpu", weights_only=True)
    except (pickle.PickleError, TypeError, AttributeError, RuntimeError) as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        why = f"is a {kind}, which can only be read back by running code; make it a tensor or a number"
        raise UnreadableValue(path, why) from error
    return value


def _decode(node: _Node, tensors: Mapping[str, torch.Tensor]) -> Any:
    match node:
        case ("tensor", name):
            return tensors[name]
        case ("dict", items):
            return {key: _decode(one, tensors) for key, one in items}
        case ("ordered", items, metadata):
            ordered = OrderedDict((key, _decode(one, tensors)) for key, one in items)
            if metadata is not None:
                ordered._metadata = metadata  # type: ignore[attr-defined]  # noqa: SLF001  # where torch expects it
            return ordered
        case ("list", parts):
            return [_decode(one, tensors) for one in parts]
        case ("tuple", parts):
            return tuple(_decode(one, tensors) for one in parts)
        case ("value", value):
            return value
    raise ValueError(f"a state has a part of unknown kind: {str(node)[:80]}")


def _child_path(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
