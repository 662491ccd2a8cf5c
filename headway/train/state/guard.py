"""Guard of a replicated model: ranks compare what must be equal, and name what differs.

A check compares parameters, the buffers of SyncBatchNorm, the numbers of the optimizers' groups, the
trainable set, the steps of each optimizer, and the parameters of further modules, for example of a moving average. Other buffers may differ between steps, because each step
starts with those of rank 0. A script may name tensors as local.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from headway.train.data.boundary import refuse_unequal_steps
from headway.train.membership.peers import Peers

Value = TypeVar("Value")

COST_SHARE = 0.001
"""Largest share of the training time that periodic checks take."""
_NAMED = 3
"""Number of differences that a message names."""


@dataclass(frozen=True, slots=True)
class ReplicaReading:
    """The values of one rank that must be equal on all ranks, by name."""

    sums: dict[str, int]
    rates: dict[str, float]
    trainable: dict[str, bool]
    steps: dict[str, int] = field(default_factory=dict)
    """Steps of each optimizer in the present generation."""
    options: dict[str, str] = field(default_factory=dict)
    """Other settings of the optimizers' groups."""
    unowned: frozenset[str] = frozenset()
    """Names of parameters that no optimizer given to prepare() has."""

    @property
    def digest(self) -> int:
        """A number that is equal for equal readings; NaN equals NaN."""
        rates = [(name, struct.pack("<d", rate)) for name, rate in self.rates.items()]
        others = (self.sums, self.trainable, self.steps, self.options)
        text = repr((rates, [list(one.items()) for one in others]))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def differences(readings: Sequence[ReplicaReading]) -> list[str]:
    """Return a text for each value that differs between ranks: rates, steps and trainable sets first, as causes of the rest."""
    found = []
    for name, rates in _by_rank([one.rates for one in readings]).items():
        if len({repr(rate) for rate in rates}) > 1:
            each = ", ".join(f"{rate} on rank {rank}" for rank, rate in enumerate(rates))
            found.append(f"learning rate {name} is {each}")
    for name, steps in _by_rank([one.steps for one in readings]).items():
        if len(set(steps)) > 1:
            each = ", ".join(f"{taken} on rank {rank}" for rank, taken in enumerate(steps))
            found.append(f"steps of optimizer {name} since the last change of members are {each}")
    for name, values in _by_rank([one.options for one in readings]).items():
        if len(set(values)) > 1:
            each = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
            found.append(f"{name} is {each}")
    for name, trained in _by_rank([one.trainable for one in readings]).items():
        if len(set(trained)) > 1:
            ranks = [rank for rank, one in enumerate(trained) if one]
            found.append(f"{name} requires a gradient only on {_ranks(ranks)}")
    for name, sums in _by_rank([one.sums for one in readings]).items():
        usual = Counter(sums).most_common(1)[0][0]
        if others := [rank for rank, one in enumerate(sums) if one != usual]:
            unowned = any(name in one.unowned for one in readings)
            cause = ", which no optimizer given to prepare() has," if unowned else ""
            found.append(f"{name}{cause} differs on {_ranks(others)}")
    return found


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


def refuse_unmatched(model: nn.Module, others: Mapping[str, nn.Module], local: Sequence[str]) -> None:
    """Raise ValueError if a name or pattern in `local` matches no parameter or buffer of the model, or parameter of the others."""
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    names += _parameters_of(others)
    for pattern in local:
        if not any(_matches(name, [pattern]) for name in names):
            raise ValueError(
                f"prepare() got local={pattern!r}, which matches no parameter or buffer of the model; "
                f"give a name such as {', '.join(names[:_NAMED])}, or a pattern with *"
            )


def _parameters_of(others: Mapping[str, nn.Module]) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}, {name}": one for prefix, other in others.items() for name, one in other.named_parameters()
    }


def read_replica(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    *,
    others: Mapping[str, nn.Module] | None = None,
    steps: Mapping[str, int] | None = None,
    local: Sequence[str] = (),
) -> ReplicaReading:
    """Return this rank's values, with those of `others`, which are modules by their names.

    Tensors that match a pattern in `local` are left out. Waits for the device once.
    """
    tensors: dict[str, torch.Tensor] = dict(model.named_parameters()) | _parameters_of(others or {})
    for prefix, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            tensors |= {f"{prefix}.{name}": one for name, one in module.named_buffers(recurse=False)}
    if local:
        tensors = {name: one for name, one in tensors.items() if not _matches(name, local)}
    sums = [_sum(one) for one in tensors.values()]
    values = torch.stack(sums).tolist() if sums else []
    rates = {
        f"{number}.{index}": float(group["lr"])
        for number, one in enumerate(optimizers)
        for index, group in enumerate(one.param_groups)
        if "lr" in group
    }
    trainable = {
        name: one.requires_grad for name, one in model.named_parameters() if not _matches(name, local)
    }
    owned = {id(its) for one in optimizers for group in one.param_groups for its in group["params"]}
    unowned = frozenset(
        name for name, one in model.named_parameters() if owned and one.requires_grad and id(one) not in owned
    )
    sums_by_name = dict(zip(tensors, values, strict=True))
    return ReplicaReading(sums_by_name, rates, trainable, dict(steps or {}), _options_of(optimizers), unowned)


def _options_of(optimizers: Sequence[Optimizer]) -> dict[str, str]:
    """Return the numbers of each optimizer's groups beside the learning rate, as text."""
    found = {}
    for number, one in enumerate(optimizers):
        for index, group in enumerate(one.param_groups):
            for key, value in group.items():
                parts = value if isinstance(value, tuple) else (value,)
                if key != "lr" and all(isinstance(part, (bool, int, float)) for part in parts):
                    numbers = [float(part) for part in parts]
                    found[f"{key} {number}.{index}"] = repr(numbers if len(numbers) > 1 else numbers[0])
    return found


class ReplicaGuard:
    """The checks of this rank with its peers. Every rank calls `due` and `differing` at the same boundaries.

    `others` are further modules by their names, `local` names or patterns of the tensors that may differ.

    Raises:
        ValueError: a pattern matches no tensor.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        others: Mapping[str, nn.Module],
        local: Sequence[str] = (),
    ) -> None:
        refuse_unmatched(model, others, local)
        self._model = model
        self._local = tuple(local)
        self._counted = StepCount(optimizers)
        self._optimizers = optimizers
        self._others = others
        self._began_s = self._checked_s = time.perf_counter()
        self._cost_s = 0.0
        self._steps = self._checked_step = 0
        self._next_step = 1

    def begin(self) -> None:
        """Check after the next step, the first of a generation."""
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
        )
        times_us = [round(one * 1e6) for one in (self._cost_s, began_s - self._began_s, step_s)]
        read_us = round((time.perf_counter() - began_s) * 1e6)
        gathered = peers.gather(mine.digest, int(stepped), read_us, *times_us)
        costs, trained, steps = (max(column) / 1e6 for column in list(zip(*gathered, strict=True))[3:])
        read_s = max(one[2] for one in gathered) / 1e6
        self._cost_s = costs + read_s
        self._checked_s, self._checked_step = time.perf_counter(), self._steps
        self._next_step = self._steps + interval_steps(self._cost_s, trained, steps)
        if len({digest for digest, *_ in gathered}) == 1:
            return []
        refuse_unequal_steps([bool(one[1]) for one in gathered])
        packed = pickle.dumps(mine)
        every = [pickle.loads(peers.bytes_from(rank, packed)) for rank in range(peers.world_size)]  # noqa: S301  # from peers of the job
        return differences(every)[:_NAMED]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _by_rank(values: Sequence[dict[str, Value]]) -> dict[str, list[Value | None]]:
    names = dict.fromkeys(name for one in values for name in one)
    return {name: [one.get(name) for one in values] for name in names}


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of the tensor's words modulo 2^64, on its device."""
    values = tensor.detach().contiguous().view(-1)
    if values.is_complex():
        values = torch.view_as_real(values).view(-1)
    whole = values.nbytes % 8 == 0 and values.storage_offset() * values.element_size() % 8 == 0
    words = values.view(torch.int64 if whole else _WORDS[values.element_size()])
    return words.sum(dtype=torch.int64)


_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
