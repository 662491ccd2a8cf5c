"""Conversion of a nested state into a tree and named tensors, and back.

    split({"model": {"weight": tensor}, "epoch": 3}) -> (tree, {"model.weight": tensor})

The tree is bytes: the nested state with the tensors' names in place of the tensors. It is read with
`weights_only`, so reading a checkpoint never runs code. Therefore numpy's scalars are stored as numbers, and `split`
refuses every value that could not be read in this way.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from headway.train.checkpoint.ties import is_part, local_part, memory_of

_Node = tuple[Any, ...]
_READABLE = {type(None), bool, int, float, str, bytes, torch.Size, torch.dtype, torch.device}
"""Types whose values can be read without running code. A value of another type has to be tried."""

_CYCLIC = "contains itself; keep a name or a number in place of the reference back"
_TOO_DEEP = "is nested too deeply; keep it flatter"


class UnreadableValue(TypeError):
    """Raised for a state with a value, at `path`, that could not be read back."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path or 'the state'} {why}")
        self.path = path
        self.why = why


def split(state: Any) -> tuple[bytes, dict[str, torch.Tensor]]:
    """Return the tree of a state, and its tensors by their paths. Tensors are not copied.

    Tied tensors, which are the same memory, have one name: the path of the first.

    Raises:
        UnreadableValue: the state holds an object that only code can read back, or a tensor that is not dense.
    """
    found = _Found()
    buffer = io.BytesIO()
    try:
        torch.save(_encode(state, "", found), buffer)
    except RecursionError as error:
        raise UnreadableValue("", _TOO_DEEP) from error
    return buffer.getvalue(), {name: one for name, one in found.tensors.items() if found.firsts[name] == name}


def tensors_of(state: Any) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return all tensors of a state by their paths, and for each path that of the first tensor to which it is tied.

    Raises:
        UnreadableValue: as `split`.
    """
    found = _Found()
    _encode(state, "", found)
    return found.tensors, found.firsts


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


class _Found:
    """The tensors of a state."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.firsts: dict[str, str] = {}
        """Name of the first tensor that is the same memory, by the name of each tensor."""
        self._by_memory: dict[Hashable, str] = {}
        self._open: set[int] = set()

    @contextmanager
    def within(self, value: object, path: str) -> Iterator[None]:
        """Raise UnreadableValue if a part at this path contains itself; its contents are encoded in the block."""
        if id(value) in self._open:
            raise UnreadableValue(path, _CYCLIC)
        self._open.add(id(value))
        try:
            yield
        finally:
            self._open.discard(id(value))

    def add(self, path: str, tensor: torch.Tensor) -> str:
        """Add a tensor, and return the name of the first that is the same memory."""
        name = path if path not in self.tensors else f"{path}~{len(self.tensors)}"
        memory = memory_of(tensor)
        # Memory that is kept here cannot become that of another tensor.
        self.tensors[name] = tensor.detach()
        self.firsts[name] = name if memory is None else self._by_memory.setdefault(memory, name)
        return self.firsts[name]


def is_sharded(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Return True if ranks hold parts of these tensors, instead of complete ones."""
    return any(is_part(tensor) for tensor in tensors.values())


def shard_bytes(tensors: Iterable[object]) -> int:
    """Return the bytes of this rank's parts of the sharded tensors among these objects."""
    return sum(local_part(one).nbytes for one in tensors if isinstance(one, torch.Tensor) and is_part(one))


def _encode(value: Any, path: str, found: _Found) -> _Node:
    """Return `value` as (kind, contents), with names in place of tensors."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise UnreadableValue(path, "is not a dense tensor; make it one in state_dict()")
        return ("tensor", found.add(path, value))
    if type(value) in {dict, OrderedDict}:
        with found.within(value, path):
            items = [
                (_plain(key, path), _encode(one, _child_path(path, key), found)) for key, one in value.items()
            ]
        # Metadata of nn.Module.state_dict(): the versions of the modules.
        metadata = _plain(getattr(value, "_metadata", None), path)
        changed = any(key is not before for (key, _), before in zip(items, value, strict=True))
        if changed or not _are_as_they_were([node for _, node in items], value.values()):
            return ("ordered", items, metadata) if type(value) is OrderedDict else ("dict", items)
        return ("value", value)
    if type(value) in {list, tuple}:
        with found.within(value, path):
            parts = [_encode(one, _child_path(path, number), found) for number, one in enumerate(value)]
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
