"""The state that a checkpoint holds of the script's own objects, as bytes and back."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch

from headway.train.ledger import Ledger
from headway.train.position import Position


class Stateful(Protocol):
    """A model, an optimizer, a scheduler, or anything else that can save itself."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers, text, lists and dictionaries."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Take over a state."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far training is: the position, its audit, and the data that both are about.

    `dataset_samples` and `seed` are None until a loader is known.
    """

    position: Position = field(default_factory=Position)
    ledger: Ledger = field(default_factory=Ledger)
    dataset_samples: int | None = None
    seed: int | None = None

    @property
    def samples(self) -> int:
        """Committed samples since the job began."""
        return self.position.epoch * (self.dataset_samples or 0) + self.position.samples


class Replica:
    """The objects given to `prepare`, in its order. Every rank holds the same state of them."""

    def __init__(self, objects: Sequence[Stateful]) -> None:
        self.objects = objects

    def check(self) -> None:
        """Find out now, not after a failure, whether the state can be read back.

        Raises:
            TypeError: it holds objects that a checkpoint must not (loading them could run code).
        """
        for one in self.objects:
            if isinstance(one, torch.nn.Module):
                continue  # tensors; to copy them here would cost time
            try:
                _load(_dump(one.state_dict()))
            except (pickle.PickleError, TypeError, AttributeError) as error:
                raise TypeError(
                    f"the state of {type(one).__name__} cannot be kept in a checkpoint; make its state_dict() "
                    f"of tensors, numbers, text, lists and dictionaries only ({error})"
                ) from error

    def dump(self, place: Place) -> memoryview:
        """The contents of a checkpoint."""
        return _dump({"objects": [one.state_dict() for one in self.objects], "place": asdict(place)})

    def load(self, data: bytes) -> Place:
        """Take over the contents of a checkpoint.

        Raises:
            ValueError: it was written by a script with other objects.
        """
        contents = _load(data)
        states, place = contents["objects"], contents["place"]
        if len(states) != len(self.objects):
            raise ValueError(
                f"the checkpoint holds {len(states)} objects, but prepare() was given {len(self.objects)}; "
                "give it the same ones in the same order, or start anew with another checkpoint URI"
            )
        for one, state in zip(self.objects, states, strict=True):
            try:
                one.load_state_dict(state)
            except (RuntimeError, ValueError, KeyError) as error:
                error.add_note(
                    f"The checkpoint does not fit this {type(one).__name__}: the script has changed since. "
                    "Change it back, or start anew with another checkpoint URI."
                )
                raise
        return Place(
            Position(**place["position"]), Ledger(**place["ledger"]), place["dataset_samples"], place["seed"]
        )


def _dump(value: Any) -> memoryview:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getbuffer()


def _load(data: bytes | memoryview) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
