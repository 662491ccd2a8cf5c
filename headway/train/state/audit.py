"""The audit of replicas at step boundaries: unequal ranks end before a checkpoint or another rank takes their state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NoReturn

from headway.contract.runtime import EXIT_RETRY, REPLICAS_DIFFER
from headway.errors import HeadwayError
from headway.train.checkpoint.replica import Replica
from headway.train.checkpoint.saving import Saver
from headway.train.host.output import warn
from headway.train.membership.peers import Peers
from headway.train.state.guard import ReplicaGuard
from headway.train.state.sync import leave


class ReplicasDiffer(HeadwayError):
    """Raised when ranks that train one model hold different ones, and no agent can start them again."""

    code = "REPLICAS_DIFFER"


class ReplicaAudit:
    """The audit of a replicated model. `guard` None: nothing is compared. `has_agent`: an agent starts the job again."""

    def __init__(self, guard: ReplicaGuard | None, saver: Saver, *, has_agent: bool) -> None:
        self._guard = guard
        self._saver = saver
        self._has_agent = has_agent

    @classmethod
    def of(
        cls,
        replica: Replica,
        saver: Saver,
        *,
        wanted: bool,
        near: bool,
        has_agent: bool,
        local: Sequence[str] = (),
    ) -> ReplicaAudit:
        """Return the audit of a replica's model; ranks with parts of a model have nothing to compare.

        `near`: devices of two kinds train, which round differently. `local`: names or patterns of the tensors that may differ.

        Raises:
            ValueError: a pattern matches no tensor.
        """
        compares = wanted and not replica.is_sharded
        guard = (
            ReplicaGuard(replica.model, replica.optimizers, others=replica.others, local=local, near=near)
            if compares
            else None
        )
        return cls(guard, saver, has_agent=has_agent)

    def begin(self, joined: Collection[int]) -> None:
        """Compare at the next boundary, the first of a generation, in which the ranks `joined` are new."""
        if self._guard is not None:
            self._guard.begin(joined)

    def at_boundary(self, peers: Peers, *, stepped: bool, state_is_used: bool = False) -> None:
        """Compare the ranks if that is due, or if a checkpoint, a membership change or the result uses their state.

        `stepped`: this rank has called its optimizer in the last step. If they differ, the process ends with a request for a restart, as that of every other rank does.

        Raises:
            PeersLost: a peer is gone.
            RuntimeError: they differ, because only some ranks have called their optimizer in the last step.
            ReplicasDiffer: the ranks differ, and no agent can start them again.
        """
        if self._guard is None or peers.world_size == 1:
            return
        if (self._guard.due() or state_is_used) and (found := self._guard.differing(peers, stepped=stepped)):
            self._end(found)

    def _end(self, found: Sequence[str]) -> NoReturn:
        self._saver.finish()  # a checkpoint in progress is from before the difference
        sentence = f"{REPLICAS_DIFFER}{'; '.join(found)}"
        if not self._has_agent:
            raise ReplicasDiffer(
                f"{sentence}.",
                "Give every rank equal values. If the difference is meant, name the tensors in prepare(..., local=[...]), or set HEADWAY_AUDIT=none.",
            )
        warn(sentence)
        leave(EXIT_RETRY)
