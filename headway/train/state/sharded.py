"""The state of a sharded model as its synchronisation needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headway.errors import HeadwayError
from headway.train.checkpoint.replica import Place
from headway.train.membership.peers import Peers


class ShardMismatch(HeadwayError):
    """Raised when the shards of a tensor after a transfer are not those before it."""

    code = "SHARD_MISMATCH"


class ShardedState(Protocol):
    """A model and an optimizer whose shards move when the ranks change."""

    @property
    def movable(self) -> bool:
        """True if every sharded tensor can change its layout in place."""

    def start(self, peers: Peers) -> None:
        """Shard the plain model over the first ranks, or over new ones that load a checkpoint."""

    def collect(self, peers: Peers, before: Sequence[int | None]) -> int:
        """Take the state out of the model and move the shards of leaving ranks to those that stay.

        All ranks call it before they leave their group. `before` has the present rank of each rank under the order.
        Returns the bytes that this rank sent or received.

        Raises:
            PeersLost: a peer is gone, and the state with it.
            ShardMismatch: the transfer was not exact.
        """

    def join(self, peers: Peers, source: int, place: Place) -> tuple[Place, int]:
        """Rebuild the model for the present ranks, with the state of the ranks that hold it. All ranks call it.

        `source` is the first of these ranks. Returns its position, and the bytes that this rank sent or received.

        Raises:
            PeersLost: a peer is gone, and the state with it.
            ShardMismatch: the transfer was not exact.
        """
