"""The state of a sharded model as its synchronisation needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headway.contract.values.meshes import MeshShape
from headway.errors import HeadwayError
from headway.train.checkpoint.replica import Place
from headway.train.membership.peers import Peers


class ShardMismatch(HeadwayError):
    """Raised when the shards of a tensor after a transfer are not those before it."""

    code = "SHARD_MISMATCH"


class ShardsLost(HeadwayError):
    """Raised when neither a rank nor a copy on another rank has some of the shards."""

    code = "SHARDS_LOST"


class ShardedState(Protocol):
    """A model and an optimizer whose shards move when the ranks change. `mesh` is that of the present or next ranks."""

    @property
    def has_begun(self) -> bool:
        """True if the model is sharded already, so that `start` is no longer possible."""

    @property
    def movable(self) -> bool:
        """True if every sharded tensor can change its layout in place."""

    @property
    def recoverable(self) -> bool:
        """True if the shards of a lost rank may have a copy on another rank."""

    def start(self, peers: Peers, mesh: MeshShape) -> None:
        """Shard the plain model over the first ranks, or over new ones that load a checkpoint."""

    def collect(self, peers: Peers, before: Sequence[int | None], mesh: MeshShape) -> int:
        """Take the state out of the model and move the shards of leaving ranks to those that stay.

        All ranks call it before they leave their group. `before` has the present rank of each rank under the order, and
        `mesh` is their mesh. Returns the bytes that this rank sent or received.

        Raises:
            PeersLost: a peer is gone, and the state with it.
            ShardMismatch: the transfer was not exact.
        """

    def join(self, peers: Peers, source: int, place: Place, mesh: MeshShape) -> tuple[Place, int]:
        """Rebuild the model for the present ranks, with the state of the ranks that hold it. All ranks call it.

        `source` is the first of these ranks. Returns its position, and the bytes that this rank sent or received.

        Raises:
            PeersLost: a peer is gone, and the state with it.
            ShardMismatch: the transfer was not exact.
        """

    def protect(self, peers: Peers) -> int:
        """Prepare for losses where shards have replicas, or the job asks for copies. All ranks call it with equal states.

        Returns the bytes that this rank sent or received.

        Raises:
            PeersLost: a peer is gone.
        """

    def recover(self, peers: Peers, *, has_state: bool, is_behind: bool) -> int:
        """Take the state out of the model after a loss, with the copies of the lost shards, for `join`.

        All remaining ranks call it. A rank that `is_behind` takes the step that others have taken. One without a state, or
        that cannot take the step, gets its shards from others. Returns the bytes that this rank sent or received.

        Raises:
            PeersLost: a peer is gone.
            ShardsLost: all ranks with a part of the model are lost.
        """
