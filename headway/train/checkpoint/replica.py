"""The state in a checkpoint: the script's own objects, and its random number generators."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch.optim import Optimizer

from headway.train.checkpoint.model_settings import ModelSettings, freeze, frozen_of
from headway.train.checkpoint.staging import UnreadableValue, is_sharded, join, shard_bytes, split
from headway.train.data.goal import Gain
from headway.train.data.ledger import Ledger
from headway.train.data.position import Position
from headway.train.data.stream_position import StreamPosition, position_from
from headway.train.host.output import warn

_ROUNDING = 1e-6
"""Shortfall of a number of steps that counts as rounding."""


class Stateful(Protocol):
    """A model, an optimizer, a scheduler, or another object that can save its state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors, numbers, text, lists and dictionaries."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Replace the object's state by the given one."""


def kind_of(one: Stateful) -> str:
    """Return the name of the object's class, which is that of the script's own object if it is wrapped."""
    return str(getattr(one, "wrapped_kind", type(one).__qualname__))


def state_of(one: Stateful) -> dict[str, Any]:
    """Return the object's own state.

    That of an optimizer is without parameters that the script has taken out of its groups: torch has no number for them.
    """
    if not isinstance(one, Optimizer):
        return one.state_dict()
    grouped = {id(its) for group in one.param_groups for its in group["params"]}
    state: dict[Any, Any] = one.state  # some optimizers have keys that are no parameters
    left = {
        its: value for its, value in state.items() if isinstance(its, torch.Tensor) and id(its) not in grouped
    }
    for its in left:
        del state[its]
    try:
        return one.state_dict()
    finally:
        state.update(left)


_REVERT = "give it the same data and `headway resume` the job"
_INSTEAD = "or submit another job: it starts anew, or with `headway submit FILE --from JOB@CHECKPOINT` from a checkpoint that fits"
"""Remedy for a checkpoint that does not fit the script."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit of an epoch: steps committed `samples` samples, and the ledgers of all ranks count `seen`."""

    epoch: int
    samples: int
    seen: int
    dataset_samples: int
    exactly_once: bool
    exact_so_far: int
    """Number of epochs up to this one with every sample exactly once."""


@dataclass(frozen=True, slots=True)
class Place:
    """The progress of training: data position, epoch audit and step count, and the dataset to which they refer.

    `dataset_samples` and `seed` are None until a loader is known.
    """

    position: Position = field(default_factory=Position)
    ledger: Ledger = field(default_factory=Ledger)
    dataset_samples: int | None = None
    seed: int | None = None
    audited: Audit | None = None
    """Audit of the previous epoch. It is transferred with the state, because the reporting rank may be lost."""
    exact_epochs: int = 0
    """Number of earlier epochs with every sample exactly once."""
    steps: int = 0
    """Optimizer steps since the job began."""
    excess: float = 0.0
    """Committed samples beyond the progress, because samples in larger batches make less of it."""
    extra_steps: float = 0.0
    """Steps of the job's own batch that the steps are worth, beyond their number."""
    noise: Mapping[str, Any] | None = None
    """State of the estimate of the gradient noise; None while it is not measured."""
    steps_before: float = 0.0
    """`reference_steps` before the last step."""
    stream: StreamPosition | None = None
    """Shards of a stream that ranks read; None for other data."""
    accumulates: bool = False
    """True if the script carries gradients over batches until its own optimizer step."""

    @property
    def samples(self) -> int:
        """Committed samples since the job began."""
        return self.position.epoch * (self.dataset_samples or 0) + self.position.samples

    @property
    def progress(self) -> float:
        """Progress since the job began, in samples of steps of the job's own batch."""
        return self.samples - self.excess

    @property
    def reference_steps(self) -> float:
        """Progress since the job began, in steps of the job's own batch."""
        return self.steps + self.extra_steps

    def completes(self, steps: int) -> bool:
        """Return True before the first step, and if the last one completed a multiple of `steps` of the job's own batch."""
        before, now = (
            int((count + _ROUNDING) / steps) for count in (self.steps_before, self.reference_steps)
        )
        return self.steps == 0 or now > before

    @property
    def step_number(self) -> int:
        """Whole steps of the job's own batch since the job began."""
        return int(self.reference_steps + _ROUNDING)

    @property
    def first_step(self) -> int:
        """The first step for which a process that continues from here may report values.

        At the end of an epoch this is the last step again, because the script reports it after the epoch.
        """
        return self.steps + (not 0 < self.position.samples == self.dataset_samples)

    def advance(self, samples: int, trained: Ledger, gain: Gain | None = None) -> Place:
        """Return the position after a step of all ranks over `samples` more samples.

        `gain` is its progress; None: that of a step of the job's own batch.
        """
        gain = gain or Gain(float(samples), 1.0)
        return replace(
            self,
            position=self.position.advance(samples),
            ledger=self.ledger + trained,
            steps=self.steps + 1,
            excess=self.excess + (samples - gain.samples),
            extra_steps=self.extra_steps + (gain.steps - 1.0),
            steps_before=self.reference_steps,
        )

    def next_epoch(self) -> Place:
        """Return the position at the start of the next epoch."""
        assert self.dataset_samples is not None, "no epoch ends before the loader is known"
        exact = self.ledger == Ledger.of_epoch(self.dataset_samples)
        exact_epochs = self.exact_epochs + exact
        audit = Audit(
            self.position.epoch,
            self.position.samples,
            self.ledger.count,
            self.dataset_samples,
            exact,
            exact_epochs,
        )
        return replace(
            self,
            position=self.position.next_epoch(),
            ledger=Ledger(),
            audited=audit,
            exact_epochs=exact_epochs,
        )

    def with_data(self, dataset_samples: int, seed: int) -> Place:
        """Return the position with the loader's data.

        Raises:
            ValueError: the position is in the middle of an epoch of other data.
        """
        same = (self.dataset_samples, self.seed) == (dataset_samples, seed)
        if self.position.samples > 0 and not same:
            raise ValueError(
                f"the checkpoint is {self.position.samples} samples into an epoch of {self.dataset_samples} "
                f"samples with seed {self.seed}, but the loader has {dataset_samples} samples and seed {seed}; "
                f"{_REVERT}, {_INSTEAD}"
            )
        if self.position.epoch > 0 and not same:
            warn(
                f"the data have changed: epochs before {self.position.epoch} had {self.dataset_samples} samples with seed "
                f"{self.seed}, the next have {dataset_samples} with seed {seed}; if that is not meant, {_REVERT}"
            )
        return replace(self, dataset_samples=dataset_samples, seed=seed)


class Replica:
    """The objects given to `prepare`, in the same order. Their state is equal on all ranks.

    `will_shard`: the model is still plain, and the library will shard it.
    """

    def __init__(self, objects: Sequence[Stateful], *, will_shard: bool = False) -> None:
        self.objects = list(objects)
        self.shards = 0
        """Number of ranks that divide a parameter, of a model that the library shards; 0 for others."""
        self.stages = 1
        """Number of pipeline stages of the model, of which this rank has one."""
        self.replicates = False
        """True if the ranks hold replicas of a sharded model on a mesh that has such (HSDP)."""
        self._will_shard = will_shard
        self.settings = ModelSettings(lambda: self._models)
        """The settings that the script has changed of the models beside their tensors."""

    @property
    def optimizer(self) -> Optimizer:
        """The first optimizer of the model."""
        return self.optimizers[0]

    @property
    def optimizers(self) -> list[Optimizer]:
        """All optimizers, that of `optimizer` first."""
        return [one for one in self.objects if isinstance(one, Optimizer)]

    @property
    def model(self) -> torch.nn.Module:
        """The model whose gradients are averaged."""
        return self._models[0]

    @property
    def others(self) -> dict[str, Stateful]:
        """The objects beside the model and the optimizers, by their numbers in `prepare`."""
        return {
            f"object {number}": one
            for number, one in enumerate(self.objects)
            if not isinstance(one, Optimizer) and one is not self.model
        }

    @property
    def loose(self) -> list[Stateful]:
        """The objects beside the model and the optimizers."""
        return [one for one in self.objects[1:] if not isinstance(one, Optimizer)]

    @property
    def is_sharded(self) -> bool:
        """True if ranks hold parts of the model's parameters (FSDP2) instead of complete ones."""
        return self._will_shard or any(is_sharded(dict(model.named_parameters())) for model in self._models)

    @property
    def shard_bytes(self) -> int:
        """Bytes of this rank's part of a sharded model: its parameters with their gradients, and the optimizers' states."""
        parameters = [one for model in self._models for one in model.parameters()]
        states = [
            value for one in self.optimizers for state in one.state.values() for value in state.values()
        ]
        return shard_bytes([*parameters, *(one for one in parameters if one.requires_grad), *states])

    def check(self) -> None:
        """Check before training that a checkpoint of the state can be read back.

        Raises:
            TypeError: it holds objects that a checkpoint must not contain, because loading them could run code.
        """
        for one in self.objects:
            try:
                join(*split(state_of(one)))
            except TypeError as error:
                raise _unkept(one, str(error)) from error

    def explained(self, error: UnreadableValue) -> TypeError:
        """Return an error that names the object, for one that names the path in what `state` returned."""
        _, _, path = error.path.partition(".")
        number, _, key = path.partition(".")
        return _unkept(self.objects[int(number)], f"{key} {error.why}") if number.isdigit() else error

    def state(self, place: Place) -> dict[str, Any]:
        """Return the contents of a checkpoint. Its tensors are the live ones."""
        return {
            "objects": [self._state_of(one) for one in self.objects],
            "place": asdict(place),
            "frozen": [frozen_of(model) for model in self._models],
            "settings": self.settings.changed,
        }

    def take_over(self, state: Mapping[str, Any]) -> Place:
        """Load a state that `state` returned.

        Raises:
            ValueError: the script that wrote it had other objects, or an optimizer more or fewer groups.
            RuntimeError, KeyError: an object does not fit.
        """
        states, place = state["objects"], state["place"]
        if len(states) != len(self.objects):
            raise ValueError(
                f"the checkpoint holds {len(states)} objects, but prepare() was given {len(self.objects)}; "
                f"give it the same objects in the same order, {_INSTEAD}"
            )
        for one, its in zip(self.objects, states, strict=True):
            _check_groups(one, its)
            try:
                self._load_into(one, its)
            except (RuntimeError, ValueError, KeyError) as error:
                error.add_note(
                    f"The checkpoint does not fit this {kind_of(one)}, which differs from the saved one: make it as it was, "
                    f"{_INSTEAD}."
                )
                raise
        # Checkpoints of older libraries do not say which parameters train, or what a module was set to.
        for model, names in zip(self._models, state.get("frozen", ()), strict=False):
            freeze(model, names)
        self.settings.take_over(state.get("settings", ()))
        return Place(
            Position(**place["position"]),
            Ledger(**place["ledger"]),
            place["dataset_samples"],
            place["seed"],
            exact_epochs=place["exact_epochs"],
            steps=place["steps"],
            # Checkpoints of older libraries have none of these: their batch was the job's own.
            excess=place.get("excess", 0.0),
            extra_steps=place.get("extra_steps", 0.0),
            noise=place.get("noise"),
            steps_before=place.get("steps_before", 0.0),
            stream=position_from(stream) if (stream := place.get("stream")) else None,
            accumulates=place.get("accumulates", False),
        )

    @property
    def _models(self) -> list[torch.nn.Module]:
        return [one for one in self.objects if isinstance(one, torch.nn.Module)]

    def _state_of(self, one: Stateful) -> dict[str, Any]:
        if isinstance(one, Optimizer) and self.is_sharded:
            from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict  # noqa: PLC0415  # slow

            # Torch names the state by parameter, and creates it before the first step: loading needs the tensors.
            return get_optimizer_state_dict(self._models[0], one)
        return state_of(one)

    def _load_into(self, one: Stateful, state: dict[str, Any]) -> None:
        if isinstance(one, Optimizer) and self.is_sharded:
            from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict  # noqa: PLC0415

            if self.stages > 1:
                state = _of_stage(state, self._state_of(one))
            set_optimizer_state_dict(self._models[0], one, state)
            for group, its in zip(one.param_groups, state["param_groups"], strict=False):
                if not group["params"]:  # torch gives settings only to groups with parameters on this stage
                    group.update({**its, "params": []})
        elif isinstance(one, torch.nn.Module) and self.stages > 1:
            own = one.state_dict().keys()
            one.load_state_dict({name: value for name, value in state.items() if name in own})
        else:
            one.load_state_dict(state)


def _check_groups(one: Stateful, state: Mapping[str, Any]) -> None:
    """Raise ValueError if an optimizer has another number of groups than its saved state."""
    if not isinstance(one, Optimizer):
        return
    saved, built = len(state["param_groups"]), len(one.param_groups)
    if saved != built:
        raise ValueError(
            f"{kind_of(one)} had {saved} parameter groups when it was saved, and has {built} here; make all groups before "
            "prepare(), with a learning rate of 0 until they train"
        )


def _unkept(one: Stateful, why: str) -> TypeError:
    return TypeError(
        f"the state of {kind_of(one)} cannot be kept in a checkpoint; make its state_dict() "
        f"of tensors, numbers, text, lists and dictionaries only ({why})"
    )


def _of_stage(state: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an optimizer's state whose parameters are in `mine`, the state of this rank's stage."""
    names = {name for group in mine["param_groups"] for name in group["params"]}
    return {
        "state": {name: value for name, value in state["state"].items() if name in names},
        "param_groups": [
            {**group, "params": [name for name in group["params"] if name in names]}
            for group in state["param_groups"]
        ],
    }


def random_state() -> dict[str, Any]:
    """Return the states of this process's random number generators."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": (version, torch.tensor(words, dtype=torch.int64, device="cpu"), gauss),
        "numpy": (kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore the generators. Call it on one rank only: otherwise all ranks would draw the same numbers."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
