"""State transfer from one rank to others: to new members, and to ranks that are one step behind.

The state of a model includes which of its parameters train.
Tensors are sent unchanged and received directly into their memory. Everything else is pickled.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from headway.train.checkpoint.replica import Stateful, kind_of, state_of
from headway.train.checkpoint.ties import memory_of
from headway.train.membership.peers import Peers

_SMALL_BYTES = 1 << 18
"""Size below which tensors are sent together, because each message has a fixed cost."""


def signature(objects: Sequence[Stateful]) -> int:
    """Return a number that is equal on ranks whose objects match in names, shapes and types."""
    digest = hashlib.blake2b(digest_size=7)
    for one in objects:
        digest.update(kind_of(one).encode())
        if isinstance(one, nn.Module):
            for name, tensor in (*one.named_parameters(), *one.named_buffers()):
                digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
    return int.from_bytes(digest.digest(), "big")


def transfer_state(
    objects: Sequence[Stateful],
    extra: Any,
    *,
    peers: Peers,
    source: int,
    receivers: Sequence[int],
    device: torch.device | None = None,
) -> tuple[Any, int]:
    """Transfer the state of the objects, and the value `extra`, from rank `source` to the receivers. All ranks call it.

    Tensors outside of models that are not on the CPU of the source arrive on `device`; None: on that of the model.

    Returns:
        `extra` as the source passed it, and the bytes that this rank sent or received.

    Raises:
        PeersLost: a peer is gone; receivers may have a part of the state.
    """
    group = peers.group_of(sorted([source, *receivers]))
    if group is None:
        peers.device_tensors_from(source, receivers, [])
        return extra, 0
    fixed = list(_fixed_tensors(objects))
    if peers.rank == source:
        tensors: list[torch.Tensor] = []
        contents = _pack((_loose_state(objects), _trainable(objects), extra), tensors)
        shapes = [(tuple(one.shape), one.dtype, one.device.type) for one in tensors]
        firsts = _first_of_memory(fixed)
        head = pickle.dumps((contents, shapes, firsts))
    else:
        head = b""
    head = peers.bytes_from(source, head, group)
    if peers.rank != source:
        contents, shapes, firsts = pickle.loads(head)  # noqa: S301  # from a peer with the same job and the same code
        device = device or next(iter(fixed), torch.empty(0, device="cpu")).device
        tensors = [
            torch.empty(shape, dtype=dtype, device="cpu" if kind == "cpu" else device)
            for shape, dtype, kind in shapes
        ]
    once = [one for number, one in enumerate(fixed) if firsts[number] == number]
    moved = _move([*once, *tensors], peers, source, receivers, group)
    if peers.rank == source:
        return extra, moved
    for number, first in enumerate(firsts):
        if first != number:  # tied on the source, and perhaps not here
            fixed[number].copy_(fixed[first])
    states, trainable, extra = _unpack(contents, tensors)
    _load(objects, states, trainable)
    return extra, moved + len(head)


def _load(objects: Sequence[Stateful], states: Sequence[Any], trainable: Sequence[bool]) -> None:
    """Put what is not in fixed tensors into the objects."""
    for parameter, trains in zip(_parameters(objects), trainable, strict=True):
        if parameter.requires_grad != trains:
            parameter.requires_grad_(trains)
    for one, state in zip(objects, states, strict=True):
        if isinstance(one, nn.Module):
            if state:
                one.load_state_dict(state, strict=False)
        else:
            one.load_state_dict(state)


def _fixed_tensors(objects: Iterable[Stateful]) -> list[torch.Tensor]:
    """Return parameters and buffers, which exist on every rank and are filled in place."""
    return [
        tensor.detach()
        for one in objects
        if isinstance(one, nn.Module)
        for tensor in (*one.parameters(), *one.buffers())
    ]


def _first_of_memory(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return for each tensor the number of the first one that is tied to it, often its own."""
    seen: dict[Hashable, int] = {}
    return [
        number if (memory := memory_of(one)) is None else seen.setdefault(memory, number)
        for number, one in enumerate(tensors)
    ]


def _parameters(objects: Iterable[Stateful]) -> list[nn.Parameter]:
    return [parameter for one in objects if isinstance(one, nn.Module) for parameter in one.parameters()]


def _trainable(objects: Iterable[Stateful]) -> list[bool]:
    return [parameter.requires_grad for parameter in _parameters(objects)]


def _loose_state(objects: Iterable[Stateful]) -> list[Any]:
    """Return the remaining state: that of other objects, and what models save beside parameters and buffers."""
    return [loose_of(one) if isinstance(one, nn.Module) else state_of(one) for one in objects]


def loose_of(model: nn.Module) -> dict[str, Any]:
    """Return the values of a model's state that are neither a parameter nor a buffer, such as the extra state of a module."""
    fixed = {memory_of(one) for one in _fixed_tensors([model])}
    return {
        name: value
        for name, value in model.state_dict().items()
        if not isinstance(value, torch.Tensor) or memory_of(value) not in fixed
    }


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors
        self._by_memory: dict[Hashable, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, torch.Tensor):
            return None
        number, memory = len(self._tensors), memory_of(value)
        if memory is not None and (first := self._by_memory.setdefault(memory, number)) != number:
            return first
        self._tensors.append(value.detach())
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> torch.Tensor:
        return self._tensors[number]


def _pack(value: Any, tensors: list[torch.Tensor]) -> bytes:
    """Pickle the value without its tensors, which are appended to the list: tied ones once."""
    file = io.BytesIO()
    _Pickler(file, tensors).dump(value)
    return file.getvalue()


def _unpack(contents: bytes, tensors: list[torch.Tensor]) -> Any:
    return _Unpickler(io.BytesIO(contents), tensors).load()


def _move(
    tensors: Sequence[torch.Tensor], peers: Peers, source: int, receivers: Sequence[int], group: Any
) -> int:
    """Fill the receivers' tensors with the source's, and return their total size in bytes."""
    on_host = [one for one in tensors if not peers.device.holds(one)]
    elsewhere = [one for one in tensors if peers.device.holds(one)]
    large = [one for one in on_host if one.nbytes >= _SMALL_BYTES and one.is_contiguous()]
    small = [one for one in on_host if one.nbytes < _SMALL_BYTES or not one.is_contiguous()]
    together = torch.empty(sum(one.nbytes for one in small), dtype=torch.uint8, device="cpu")
    if peers.rank == source:
        _copy(small, together, out=True)
    peers.tensors_from(source, [*large, together] if small else large, group)
    if peers.rank != source:
        _copy(small, together, out=False)
    dense = [one if _is_plain(one) else _dense(one) for one in elsewhere]
    peers.device_tensors_from(source, receivers, dense)
    for one, sent in zip(elsewhere, dense, strict=True):
        if one is not sent:
            one.copy_(sent)
    return sum(one.nbytes for one in tensors)


def _is_plain(one: torch.Tensor) -> bool:
    """Return True if the memory of the tensor is its values without gaps, in order."""
    return one.is_contiguous() and not one.is_conj() and not one.is_neg()


def _dense(one: torch.Tensor) -> torch.Tensor:
    return torch.empty(one.shape, dtype=one.dtype, device=one.device).copy_(one)


def _copy(tensors: Sequence[torch.Tensor], together: torch.Tensor, *, out: bool) -> None:
    start = 0
    for one in tensors:
        place = together[start : start + one.nbytes]
        start += one.nbytes
        if out and one.numel():
            # `contiguous()` does not help: it leaves a one-element tensor its stride, and the view as bytes
            # needs stride 1.
            place.copy_(one.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8))
        elif one.numel():
            one.copy_(place.clone().view(one.dtype).view(one.shape))  # the clone is aligned for the type
