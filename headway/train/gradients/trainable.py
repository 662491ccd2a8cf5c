"""The parameters of a model that train, which a script may change at any time by `requires_grad`, or by a layer that it adds or replaces."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter, is_, or_
from typing import Any, Protocol

import torch
from torch import nn

from headway.train.gradients.layers import Layers

_TRAINS = attrgetter("requires_grad")
_NAMED = 3
"""Number of parameters that a message names."""
_IS_SET = 1 << 32
"""Bit of every digest, so that 0 means unknown."""


class TrainableExchange(Protocol):
    """The exchange of digests with the peers in each step, ahead of the gradients."""

    def tell(self, digest: int) -> None:
        """Send this rank's digest, once in a step, without waiting."""
        ...

    def told(self) -> Sequence[int]:
        """Wait for the digests of all ranks, by rank; 0 for a rank without one."""
        ...


class TrainableSet:
    """The parameters that train, as `follow` found them last."""

    def __init__(self, model: nn.Module) -> None:
        self.all: list[nn.Parameter] = []
        """Parameters that train or are frozen."""
        self.parameters: list[nn.Parameter] = []
        """Parameters that train."""
        self.digest = 0
        """Number that is equal on ranks where the same parameters train; never 0."""
        self.changed: list[str] = []
        """Names of the parameters that the last change froze, unfroze, added or replaced."""
        self._model = model
        self._layers = Layers(model)
        self._listed = self._followed = -1
        self._flags: list[bool] = []
        self._seen: list[bool] = []
        self._known: list[tuple[nn.Parameter, bool]] = []
        self._places: list[int] = []
        self._plain: list[nn.Parameter] = []
        self._nodes: list[Any] = []
        self.follow()

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The buffers that are not empty, of the layers that were found last."""
        return [one for one in self._layers.buffers() if one.numel()]

    def list_again(self) -> None:
        """List the parameters of the model again, of which the script may have added or replaced some."""
        if (present := self._layers.look()) != self._listed:
            self._listed, self.all = present, list(self._model.parameters())
            self._plain = [one for one in self.all if type(one) is nn.Parameter]

    def follow(self) -> bool:
        """Look at the parameters again, and return True if others train than before."""
        self.list_again()
        # In each step, so without Python code for each parameter.
        self._seen = list(map(_TRAINS, self.all))
        return self._follow(self._seen)

    def see(self) -> None:
        """Look at the parameters in a further pass of a step, for `follow_seen`."""
        self.list_again()
        flags = list(map(_TRAINS, self.all))
        if flags != self._seen:
            self._seen = _either(self._seen, flags)

    def follow_seen(self) -> bool:
        """Look at the parameters in a further pass of a step, and return True if one trains that did not before."""
        self.see()
        return self._follow(_either(self._flags, self._seen))

    def _follow(self, flags: list[bool]) -> bool:
        """Take the parameters with a flag as those that train, and return True if they are others than before."""
        # Only a parameter whose values are elsewhere may have another node.
        places = list(map(torch.Tensor.data_ptr, self._plain))
        if self._listed == self._followed and flags == self._flags and places == self._places:
            return False
        self._followed, self._flags, self._places = self._listed, flags, places
        before_nodes, self._nodes = self._nodes, [_node_of(one) for one in self.all]
        found = list(zip(self.all, flags, strict=True))
        same_nodes = len(before_nodes) == len(found) and all(map(is_, self._nodes, before_nodes))
        if (
            same_nodes
            and len(found) == len(self._known)
            and all(
                now[0] is before[0] and now[1] is before[1]
                for now, before in zip(found, self._known, strict=True)
            )
        ):
            return False
        before, now = ({id(one): trains for one, trains in known} for known in (self._known, found))
        self.changed = [
            name
            for name, one in self._model.named_parameters()
            if before.get(id(one)) is not now.get(id(one))
        ]
        self._known = found
        self.parameters = [one for one, trains in found if trains]
        shapes = [(tuple(one.shape), trains) for one, trains in found]
        self.digest = _IS_SET | zlib.crc32(repr(shapes).encode())
        return True

    def follow_with_peers(self, exchange: TrainableExchange | None) -> bool:
        """Tell the peers of `exchange` which parameters train, and return True if these are others than before.

        Raises:
            PeersLost: a peer is gone.
            RuntimeError: other parameters train on a peer.
        """
        self.list_again()
        flags = list(map(_TRAINS, self.all))
        before, self._seen = self._seen, flags
        changed = self._follow(_either(before, flags))
        if exchange is not None:
            exchange.tell(self.digest)
            if changed:
                refuse_unequal_sets(exchange.told(), self.changed)
        return changed

    def hooked(self) -> str:
        """Return the name of the first parameter with a hook of the script on its gradient; empty if there is none."""
        if not any(_has_hook(one) for one in self.parameters):
            return ""
        return next(name for name, one in self._model.named_parameters() if _has_hook(one))


@contextmanager
def unfrozen(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Let the frozen ones of these parameters train within the block."""
    frozen = [one.requires_grad_() for one in parameters if not one.requires_grad]
    try:
        yield
    finally:
        for one in frozen:
            one.requires_grad = False


def _either(some: list[bool], others: list[bool]) -> list[bool]:
    """Return which parameters have one of two flags; those of `others` if layers were added or replaced."""
    return list(map(or_, some, others)) if some != others and len(some) == len(others) else others


def _node_of(parameter: nn.Parameter) -> Any:
    """Return the node that adds a parameter's gradient, None without one.

    It has the library's hooks, and torch makes another when the parameter changes its type or device (`model.to`).
    """
    if type(parameter) is not nn.Parameter or not parameter.requires_grad:
        return None
    return torch.autograd.graph.get_gradient_edge(parameter).node


def _has_hook(parameter: nn.Parameter) -> bool:
    if parameter._backward_hooks:  # noqa: SLF001  # torch has no other way to see them
        return True
    added = getattr(parameter, "_post_accumulate_grad_hooks", None)
    # The library's hooks are its own functions, or methods of Python's types, which have no module.
    return any(
        (where := getattr(one, "__module__", None)) is not None and not where.startswith("headway.")
        for one in (added or {}).values()
    )


def refuse_unequal_sets(digests: Sequence[int], changed: Sequence[str] = ()) -> None:
    """Raise RuntimeError if other parameters train on some ranks. `changed`: those that have changed on this rank."""
    known = {rank: digest for rank, digest in enumerate(digests) if digest}
    if len(set(known.values())) <= 1:
        return
    first = next(iter(known))
    others = ", ".join(str(rank) for rank, digest in known.items() if digest != known[first])
    more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
    here = f"; on this rank {', '.join(changed[:_NAMED])}{more} changed" if changed else ""
    raise RuntimeError(
        "the ranks disagree on which parameters train, so their gradients cannot be averaged: "
        f"rank {others} differs from rank {first}{here}; set requires_grad in the same step on every rank"
    )
