"""What the ranks say to one another with every step, and what follows from it between two steps."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from headway.train.ledger import Ledger
from headway.train.peers import Alone, Peers, Pending


class Wish(IntEnum):
    """What a rank wants to happen at the next boundary. When ranks want different things, the highest wins."""

    CONTINUE = 0
    CHECKPOINT = 1
    STOP = 2


@dataclass(frozen=True, slots=True)
class Statement:
    """What one rank says as a step begins: its wish, the samples that it is about to train (as a ledger), and
    what it has measured of the steps before.

    `ordered` is the generation of the newest order that it has seen. `compute_s` is the time that its part of the last
    step took without waiting for peers, 0 if it does not say. `square` is the squared norm of its last gradient before it
    was added to those of its peers, weighted by its samples; `squared_mean` that of their mean; 0 likewise.
    """

    wish: int = Wish.CONTINUE
    ordered: int = 0
    count: int = 0
    total: int = 0
    squares: int = 0
    compute_s: float = 0.0
    square: float = 0.0
    squared_mean: float = 0.0

    @property
    def ledger(self) -> Ledger:
        """The samples of the step that are this rank's."""
        return Ledger(self.count, self.total, self.squares)

    def to_numbers(self) -> tuple[int, ...]:
        """For `Peers.gather`: reals as the bits that they are made of."""
        packed = _STATEMENT.pack(
            self.wish,
            self.ordered,
            self.count,
            self.total,
            self.squares,
            self.compute_s,
            self.square,
            self.squared_mean,
        )
        return _NUMBERS.unpack(packed)

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> Statement:
        """The reverse of `to_numbers`."""
        return cls(*_STATEMENT.unpack(_NUMBERS.pack(*numbers)))


_STATEMENT = struct.Struct("<5q3d")
_NUMBERS = struct.Struct("<8q")


@dataclass(frozen=True, slots=True)
class Agreement:
    """The statements of all ranks about one step: the same on every rank."""

    statements: tuple[Statement, ...]

    @property
    def wish(self) -> Wish:
        """What happens."""
        return Wish(max(one.wish for one in self.statements))

    @property
    def ordered(self) -> int:
        """The generation that everyone has the order for; 0 while they have seen different ones."""
        seen = {one.ordered for one in self.statements}
        return seen.pop() if len(seen) == 1 else 0

    @property
    def ledger(self) -> Ledger:
        """The samples of the step, of all ranks together."""
        return sum((one.ledger for one in self.statements), Ledger())


class Boundary:
    """Each rank makes its statement as a step begins and learns those of all as it ends.

    They travel while the step computes, and every rank gets the same ones at the same boundary. What comes up
    during a step counts at the end of the next one.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._pending: Pending | Alone | None = None

    def begin(self, statement: Statement) -> None:
        """A step begins.

        Raises:
            PeersLost: a peer is gone.
        """
        if self._pending is not None:  # the script left the step before without ending it
            self._pending.wait()
        self._pending = self._peers.begin_gather(statement.to_numbers())

    def agree(self, samples: int) -> Agreement:
        """The step has ended, which takes so many samples of all ranks together; 0 where no step was taken.

        Raises:
            PeersLost: a peer is gone.
            RuntimeError: peers are in another step, so that their gradients do not belong together.
        """
        assert self._pending is not None, "begin() comes first"
        pending, self._pending = self._pending, None
        agreement = Agreement(tuple(map(Statement.from_numbers, pending.wait())))
        if (taken := agreement.ledger.count) != samples:
            raise RuntimeError(
                f"the ranks are not in the same step: all of them took {taken} samples, but it has {samples} here; "
                "have every rank leave its loop after the same step, over the same data"
            )
        return agreement
