"""Guard of a replicated model: ranks compare what must be equal, and name what differs.

A check compares parameters, the buffers of SyncBatchNorm, the numbers of the optimizers' groups, the trainable set, the steps of
each optimizer, and the parameters of further modules and the tensors in the state of other objects, for example of a moving
average. Other buffers may differ between steps, because each step starts with those of rank 0, and so may their copies in such a
state. A script may name tensors as local. Devices of two kinds round differently: on them tensors of floating-point numbers are
compared `near`.
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import struct
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from headway.train.checkpoint.replica import Stateful
from headway.train.data.boundary import refuse_unequal_steps
from headway.train.membership.peers import Peers
from headway.train.state.sketch import WITHIN, Sketch, sketch, within

Value = TypeVar("Value")

COST_SHARE = 0.001
"""Largest share of the training time that periodic checks take."""
RATE_WITHIN = 0.001
"""Largest relative difference between learning rates that follow from gradients of devices of two kinds.

It is smaller than that of tensors, because a rate that a script sets by rank must be found.
"""
_NAMED = 3
"""Number of differences that a message names."""


@dataclass(frozen=True, slots=True)
class ReplicaReading:
    """The values of one rank that must be equal on all ranks, by name."""

    sums: dict[str, int]
    """The sum of the words of each tensor that must be equal to the bit."""
    rates: dict[str, float]
    trainable: dict[str, bool]
    steps: dict[str, int] = field(default_factory=dict)
    """Steps of each optimizer in the present generation."""
    options: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Other numbers of the optimizers' groups."""
    rates_within: float = 0.0
    """Largest difference between rates that counts as none, relative to the larger one."""
    options_within: dict[str, float] = field(default_factory=dict)
    """The same for each of `options`; 0 where it is missing."""
    unowned: frozenset[str] = frozenset()
    """Names of parameters that no optimizer given to prepare() has."""
    shapes: dict[str, str] = field(default_factory=dict)
    sketches: dict[str, Sketch] = field(default_factory=dict)
    """Sketches of the tensors that may differ by rounding. They do not count in the `digest`."""

    @property
    def digest(self) -> int:
        """A number that is equal for equal readings; NaN equals NaN."""
        rates = [(name, struct.pack("<d", rate)) for name, rate in self.rates.items()]
        options = [(name, struct.pack(f"<{len(its)}d", *its)) for name, its in self.options.items()]
        plain = (self.sums, self.trainable, self.steps, self.shapes)
        text = repr((rates, options, *(sorted(one.items()) for one in plain)))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def differences(readings: Sequence[ReplicaReading]) -> list[str]:
    """Return a text for each value that differs between ranks: rates, steps and trainable sets first, as causes of the rest."""
    found = []
    for name, rates in _by_rank([one.rates for one in readings]).items():
        if not _are_close([None if one is None else (one,) for one in rates], readings[0].rates_within):
            each = ", ".join(f"{rate} on rank {rank}" for rank, rate in enumerate(rates))
            found.append(f"learning rate {name} is {each}")
    for name, steps in _by_rank([one.steps for one in readings]).items():
        if len(set(steps)) > 1:
            each = ", ".join(f"{taken} on rank {rank}" for rank, taken in enumerate(steps))
            found.append(f"steps of optimizer {name} since the last change of members are {each}")
    for name, values in _by_rank([one.options for one in readings]).items():
        within = max(one.options_within.get(name, 0.0) for one in readings)
        if not _are_close(values, within):
            each = ", ".join(f"{_shown(value)} on rank {rank}" for rank, value in enumerate(values))
            found.append(f"{name} is {each}")
    for name, trained in _by_rank([one.trainable for one in readings]).items():
        if len(set(trained)) > 1:
            ranks = [rank for rank, one in enumerate(trained) if one]
            found.append(f"{name} requires a gradient only on {_ranks(ranks)}")
    return found + [text for _, text in _unlike_tensors(readings)]


def _unlike_tensors(readings: Sequence[ReplicaReading]) -> list[tuple[str, str]]:
    """Return the name of each tensor that differs, with a text."""
    found = []
    for name, shapes in _by_rank([one.shapes for one in readings]).items():
        if len(set(shapes)) > 1:
            each = ", ".join(f"{its} on rank {rank}" for rank, its in enumerate(shapes))
            found.append((name, f"{name} is {each}"))
    for name, sketches in _by_rank([one.sketches for one in readings]).items():
        far = [rank for rank, one in enumerate(sketches) if not _near(sketches[0], one)]
        if len(far) > len(sketches) / 2:
            far = [rank for rank in range(len(sketches)) if rank not in far]
        if far:
            found.append((name, f"{name} differs on {_ranks(far)} by more than rounding"))
    for name, sums in _by_rank([one.sums for one in readings]).items():
        usual = Counter(sums).most_common(1)[0][0]
        if others := [rank for rank, one in enumerate(sums) if one != usual]:
            unowned = any(name in one.unowned for one in readings)
            cause = ", which no optimizer given to prepare() has," if unowned else ""
            found.append((name, f"{name}{cause} differs on {_ranks(others)}"))
    return found


def local_remedy(names: Sequence[str]) -> str:
    """Return the sentence that says how to allow that these tensors of registered objects differ; of many it names the objects."""
    if len(names) > _NAMED:
        names = [f"{one}, *" for one in dict.fromkeys(name.partition(", ")[0] for name in names)]
    else:
        names = [escape(name) for name in names]
    return f"if that is meant, write prepare(..., local={json.dumps(names)})"


def interval_steps(cost_s: float, trained_s: float, step_s: float) -> int:
    """Return the steps until checks that took `cost_s` in all are at most their share of the time, `trained_s` so far."""
    missing_s = cost_s / COST_SHARE - trained_s
    return max(1, math.ceil(missing_s / step_s)) if step_s > 0.0 else 1


class StepCount:
    """Count of the steps that each optimizer has taken since `restart`."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._counts = [0] * len(optimizers)
        for number, one in enumerate(optimizers):
            one.register_step_post_hook(self._counter(number))

    def restart(self) -> None:
        """Forget the steps so far."""
        self._counts[:] = [0] * len(self._counts)

    @property
    def steps(self) -> dict[str, int]:
        """The steps of each optimizer, by its number."""
        return {str(number): steps for number, steps in enumerate(self._counts)}

    def _counter(self, number: int) -> Callable[..., None]:
        def count(*_: Any) -> None:
            self._counts[number] += 1

        return count


def refuse_unmatched(model: nn.Module, others: Mapping[str, Stateful], local: Sequence[str]) -> None:
    """Raise ValueError if a name or pattern in `local` matches no parameter or buffer of the model, or tensor of the others.

    The state of an object that is no module may get its tensors later.
    """
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    names += _tensors_of(others, _compared_buffers(model)[1])
    growing = [f"{name}, " for name, one in others.items() if not isinstance(one, nn.Module)]
    for pattern in local:
        if not any(_matches(name, [pattern]) for name in names) and not pattern.startswith(tuple(growing)):
            raise ValueError(
                f"prepare() got local={pattern!r}, which matches no parameter or buffer of the model; "
                f"give a name such as {', '.join(names[:_NAMED])}, or a pattern with *"
            )


def _tensors_of(others: Mapping[str, Stateful], free: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of further objects that ranks compare. Those named like a buffer in `free` may differ as it does."""
    found: dict[str, torch.Tensor] = {}
    endings = tuple(f".{name}" for name in free)
    for prefix, other in others.items():
        if isinstance(other, nn.Module):
            its: dict[str, torch.Tensor] = dict(other.named_parameters())
        else:
            its = {name: one for name, one in _within(other.state_dict()) if not f".{name}".endswith(endings)}
        found |= {f"{prefix}, {name}": one for name, one in its.items()}
    return found


def _within(state: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the dense tensors of a nested state with their paths; those of a part that occurs twice once."""
    left: list[tuple[str, object]] = [("", state)]
    seen: set[int] = set()
    while left:
        path, value = left.pop()
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided and not value.is_meta and not value.is_quantized:
                yield path, value
        elif isinstance(value, Mapping | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            parts = value.items() if isinstance(value, Mapping) else enumerate(value)
            left += [(f"{path}.{key}" if path else str(key), one) for key, one in parts]


def _compared_buffers(model: nn.Module) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return the buffers that ranks compare, by name, and the names of all others."""
    compared: dict[str, torch.Tensor] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            compared |= {f"{prefix}.{name}": one for name, one in module.named_buffers(recurse=False)}
    return compared, [name for name, _ in model.named_buffers() if name not in compared]


def read_replica(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    *,
    others: Mapping[str, Stateful] | None = None,
    steps: Mapping[str, int] | None = None,
    local: Sequence[str] = (),
    near: bool = False,
) -> ReplicaReading:
    """Return this rank's values, with those of `others`, which are modules and other objects by their names.

    Tensors that match a pattern in `local` are left out. `near`: those of floating-point numbers may differ by rounding. Waits
    for each device once.
    """
    buffers, free = _compared_buffers(model)
    tensors = dict(model.named_parameters()) | buffers | _tensors_of(others or {}, free)
    if local:
        tensors = {name: one for name, one in tensors.items() if not _matches(name, local)}
    rates = {
        f"{number}.{index}": float(group["lr"])
        for number, one in enumerate(optimizers)
        for index, group in enumerate(one.param_groups)
        if "lr" in group
    }
    trainable = {
        name: one.requires_grad for name, one in model.named_parameters() if not _matches(name, local)
    }
    rounded = {name: one for name, one in tensors.items() if near and _rounds(one)}
    exact = {name: one for name, one in tensors.items() if name not in rounded}
    owned = {id(its) for one in optimizers for group in one.param_groups for its in group["params"]}
    return ReplicaReading(
        sums=_read(exact, _sum),
        rates=rates,
        trainable=trainable,
        steps=dict(steps or {}),
        options=_options_of(optimizers),
        rates_within=RATE_WITHIN if near else 0.0,
        options_within=_rounding_of(optimizers) if near else {},
        unowned=frozenset(
            name
            for name, one in model.named_parameters()
            if owned and one.requires_grad and id(one) not in owned
        ),
        shapes={name: f"{tuple(one.shape)} {one.dtype}" for name, one in tensors.items()},
        sketches={
            name: Sketch(square, tuple(products), within(rounded[name].dtype))
            for name, (square, *products) in _read(rounded, sketch).items()
        },
    )


def _rounding_of(optimizers: Sequence[Optimizer]) -> dict[str, float]:
    """Return, for each option that is no integer, up to which difference it may follow from gradients that round differently."""
    found = {}
    for number, one in enumerate(optimizers):
        for index, group in enumerate(one.param_groups):
            share = max((within(its.dtype) for its in group["params"] if _rounds(its)), default=WITHIN)
            for key, value in group.items():
                parts = value if isinstance(value, tuple) else (value,)
                if any(isinstance(part, float) for part in parts):
                    found[f"{key} {number}.{index}"] = share
    return found


def _options_of(optimizers: Sequence[Optimizer]) -> dict[str, tuple[float, ...]]:
    """Return the numbers of each optimizer's groups beside the learning rate."""
    found = {}
    for number, one in enumerate(optimizers):
        for index, group in enumerate(one.param_groups):
            for key, value in group.items():
                parts = value if isinstance(value, tuple) else (value,)
                if key != "lr" and all(isinstance(part, (bool, int, float)) for part in parts):
                    found[f"{key} {number}.{index}"] = tuple(float(part) for part in parts)
    return found


class ReplicaGuard:
    """The checks of this rank with its peers. Every rank calls `due` and `differing` at the same boundaries.

    `others` are further modules and other objects by their names, `local` names or patterns of the tensors that may differ.
    `near`: devices of two kinds train.

    Raises:
        ValueError: a pattern matches no tensor.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        others: Mapping[str, Stateful],
        local: Sequence[str] = (),
        near: bool = False,
    ) -> None:
        refuse_unmatched(model, others, local)
        self._model = model
        self._local = tuple(local)
        self._near = near
        self._counted = StepCount(optimizers)
        self._optimizers = optimizers
        self._others = others
        self._began_s = self._checked_s = time.perf_counter()
        self._cost_s = 0.0
        self._steps = self._checked_step = 0
        self._next_step = 1
        self._joined: Collection[int] = ()

    def begin(self, joined: Collection[int] = ()) -> None:
        """Check after the next step, the first of a generation, in which the ranks `joined` are new."""
        self._joined = joined
        self._began_s = self._checked_s = time.perf_counter()
        self._counted.restart()
        self._cost_s, self._steps, self._checked_step, self._next_step = 0.0, 0, 0, 1

    def due(self) -> bool:
        """Count a step, and return True if a check follows it."""
        self._steps += 1
        return self._steps >= self._next_step

    def differing(self, peers: Peers, *, stepped: bool) -> list[str]:
        """Compare this rank's values with those of its peers, and return what differs: the same on every rank.

        `stepped`: this rank has called its optimizer in the last step.

        Raises:
            PeersLost: a peer is gone.
            RuntimeError: the values differ, because some ranks have called their optimizer and others have not.
        """
        began_s = time.perf_counter()
        step_s = (began_s - self._checked_s) / max(1, self._steps - self._checked_step)
        mine = read_replica(
            self._model,
            self._optimizers,
            others=self._others,
            steps=self._counted.steps,
            local=self._local,
            near=self._near,
        )
        times_us = [round(one * 1e6) for one in (self._cost_s, began_s - self._began_s, step_s)]
        read_us = round((time.perf_counter() - began_s) * 1e6)
        gathered = peers.gather(mine.digest, int(stepped), read_us, *times_us)
        costs, trained, steps = (max(column) / 1e6 for column in list(zip(*gathered, strict=True))[3:])
        read_s = max(one[2] for one in gathered) / 1e6
        self._cost_s = costs + read_s
        self._checked_s, self._checked_step = time.perf_counter(), self._steps
        self._next_step = self._steps + interval_steps(self._cost_s, trained, steps)
        is_same = len({digest for digest, *_ in gathered}) == 1
        if is_same and not self._near:
            return []
        if not is_same:
            refuse_unequal_steps([bool(one[1]) for one in gathered], peers.rank, self._joined)
        packed = pickle.dumps(mine)
        every = [pickle.loads(peers.bytes_from(rank, packed)) for rank in range(peers.world_size)]  # noqa: S301  # from peers of the job
        self._cost_s += time.perf_counter() - self._checked_s  # the ranks agree on it in their next check
        found = differences(every)
        kept = tuple(f"{name}, " for name, one in self._others.items() if not isinstance(one, nn.Module))
        named = [name for name, _ in _unlike_tensors(every) if name.startswith(kept)]
        return found[:_NAMED] + ([local_remedy(named)] if named else [])


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _by_rank(values: Sequence[dict[str, Value]]) -> dict[str, list[Value | None]]:
    names = dict.fromkeys(name for one in values for name in one)
    return {name: [one.get(name) for one in values] for name in names}


def _shown(values: Sequence[float] | None) -> str:
    return str(values and (list(values) if len(values) > 1 else values[0]))


def _are_close(values: Sequence[tuple[float, ...] | None], share: float) -> bool:
    """Return True if the numbers of all ranks differ by at most this share of the larger one. NaN equals NaN."""
    if len(set(map(repr, values))) == 1:
        return True
    known = [one for one in values if one is not None]
    if share == 0.0 or len(known) < len(values) or len({len(one) for one in known}) > 1:
        return False
    return all(
        len(set(map(repr, of_ranks))) == 1
        or (
            all(map(math.isfinite, of_ranks))
            and max(of_ranks) - min(of_ranks) <= share * max(map(abs, of_ranks))
        )
        for of_ranks in zip(*known, strict=True)
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _near(first: Sketch | None, second: Sketch | None) -> bool:
    return first.is_near(second) if first is not None and second is not None else first is second


def _rounds(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _read(tensors: Mapping[str, torch.Tensor], of: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """Return what a function computes of each tensor on its device."""
    by_device: dict[torch.device, dict[str, torch.Tensor]] = {}
    for name, one in tensors.items():
        by_device.setdefault(one.device, {})[name] = of(one)
    found: dict[str, Any] = {}
    for values in by_device.values():
        found |= zip(values, torch.stack(list(values.values())).tolist(), strict=True)
    return {name: found[name] for name in tensors}


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of the tensor's words modulo 2^64, on its device."""
    values = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    if values.is_complex():
        values = torch.view_as_real(values).view(-1)
    whole = values.nbytes % 8 == 0 and values.storage_offset() * values.element_size() % 8 == 0
    words = values.view(torch.int64 if whole else _WORDS[values.element_size()])
    return words.sum(dtype=torch.int64)


_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
