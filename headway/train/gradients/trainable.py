"""The parameters of a model that train, which a script may change at any time by `requires_grad`."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import Protocol

from torch import nn

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
        self._model = model
        self._flags: list[bool] = []
        self._before: list[bool] = []
        self.list_again()
        self.follow()

    def list_again(self) -> None:
        """List the parameters of the model again, to which the script may have added some."""
        self.all = list(self._model.parameters())

    def follow(self) -> bool:
        """Look at the parameters again, and return True if others train than before."""
        flags = [one.requires_grad for one in self.all]
        if flags == self._flags:
            return False
        self._before, self._flags = self._flags, flags
        self.parameters = [one for one in self.all if one.requires_grad]
        self.digest = _IS_SET | zlib.crc32(bytes(flags))
        return True

    def follow_with_peers(self, exchange: TrainableExchange | None) -> bool:
        """Tell the peers of `exchange` which parameters train, and return True if these are others than before.

        Raises:
            PeersLost: a peer is gone.
            RuntimeError: other parameters train on a peer.
        """
        changed = self.follow()
        if exchange is not None:
            exchange.tell(self.digest)
            if changed:
                refuse_unequal_sets(exchange.told(), self._changed)
        return changed

    @property
    def _changed(self) -> list[str]:
        """Names of the parameters that the last change froze, unfroze or added."""
        names = [name for name, _ in self._model.named_parameters()]
        pairs = zip_longest(names, self._before, self._flags)
        return [name for name, before, now in pairs if before is not now]


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
