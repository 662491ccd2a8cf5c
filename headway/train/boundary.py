"""What the ranks do between two steps, agreed on by all of them without holding up a step."""

from __future__ import annotations

from enum import IntEnum

from headway.train.peers import Peers, Pending


class Decision(IntEnum):
    """What happens at a boundary. When ranks wish for different things, the highest wins."""

    CONTINUE = 0
    CHECKPOINT = 1
    STOP = 2


class Boundary:
    """Each rank states its wish as a step begins and learns the decision as it ends.

    The agreement travels while the step computes, and every rank gets the same answer at the same
    boundary. A wish that comes up during a step counts at the end of the next one.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._pending: Pending | None = None

    def begin(self, wish: Decision) -> None:
        """A step begins. One that the script left without ending it loses no rank's wish."""
        left_over = self._pending.wait() if self._pending is not None else Decision.CONTINUE
        self._pending = self._peers.begin_maximum(max(wish, left_over))

    def agree(self) -> Decision:
        """The step has ended: the decision."""
        assert self._pending is not None, "begin() comes first"
        decision, self._pending = Decision(self._pending.wait()), None
        return decision
