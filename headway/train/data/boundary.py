"""The data that ranks exchange with every step, and the resulting agreement between two steps."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from operator import attrgetter

from headway.train.data.ledger import Ledger
from headway.train.data.position import Position
from headway.train.data.reported_values import ReportedValues
from headway.train.gradients.trainable import refuse_unequal_sets
from headway.train.membership.meeting import PeersLost
from headway.train.membership.peers import NoPeers, Peers, Pending

ACCUMULATE = "use max_local_batch (batch.max_local) to accumulate"


class NewRankApart(PeersLost):
    """Raised on the ranks that go on without a new one, which has taken their last batch with them but counts another way."""


class BoundaryRequest(IntEnum):
    """A rank's request for the next boundary. If ranks differ, the highest value wins."""

    CONTINUE = 0
    CHECKPOINT = 1
    STOP = 2


@dataclass(frozen=True, slots=True)
class Statement:
    """The message of one rank at the start of a step: its request, the ledger of its samples, its measurements.

    `ordered` is the generation of the newest order that it has read. `compute_s` is the time of its part of
    the last step without waits for peers. `square` is the squared norm of its last gradient before the
    all-reduce, weighted by its samples. `squared_mean` is that of the mean gradient. `noise_every` is the interval in
    steps that it proposes for measurements of the noise. 0 means unknown. `efficiency` is the statistical efficiency
    of the step; that of rank 0 counts. `stepped` is 1 if the optimizer stepped in the last step, and 2 for each of its averaged backward passes. `trainable` is the digest
    of the parameters that train.
    """

    request: int = BoundaryRequest.CONTINUE
    ordered: int = 0
    count: int = 0
    total: int = 0
    squares: int = 0
    compute_s: float = 0.0
    square: float = 0.0
    squared_mean: float = 0.0
    noise_every: int = 0
    efficiency: float = 1.0
    stepped: int = 0
    trainable: int = 0

    @property
    def ledger(self) -> Ledger:
        """This rank's samples of the step."""
        return Ledger(self.count, self.total, self.squares)

    def to_numbers(self) -> tuple[int, ...]:
        """Return the fields as integers for `Peers.gather`; reals are represented by their bits."""
        return _NUMBERS.unpack(_STATEMENT.pack(*_fields_of(self)))

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> Statement:
        """Return the statement that `to_numbers` converted."""
        return cls(*_STATEMENT.unpack(_NUMBERS.pack(*numbers)))


_fields_of = attrgetter(*(one.name for one in fields(Statement)))  # `astuple` copies deeply, at every step
_STATEMENT = struct.Struct("<5q3dqd2q")
_WIDTH = 12
_NUMBERS = struct.Struct(f"<{_WIDTH}q")


@dataclass(frozen=True, slots=True)
class Agreement:
    """The statements of all ranks about one step: the same on every rank."""

    statements: tuple[Statement, ...]

    @property
    def request(self) -> BoundaryRequest:
        """The request that all ranks follow."""
        return BoundaryRequest(max(one.request for one in self.statements))

    @property
    def ordered(self) -> int:
        """Generation whose order all ranks have; 0 while they have different orders."""
        orders = {one.ordered for one in self.statements}
        return orders.pop() if len(orders) == 1 else 0

    def uses_state(self, generation: int) -> bool:
        """Return True if a checkpoint, a stop or a change of this generation's members follows."""
        return self.ordered > generation or self.request is not BoundaryRequest.CONTINUE

    @property
    def efficiency(self) -> float:
        """Statistical efficiency of the step, the same number on every rank."""
        return self.statements[0].efficiency

    def of(self, ranks: slice) -> Agreement:
        """Return the agreement with the statements of these ranks."""
        return Agreement(self.statements[ranks])

    @property
    def ledger(self) -> Ledger:
        """The samples of the step, over all ranks."""
        return sum((one.ledger for one in self.statements), Ledger())


class Boundary:
    """The exchange of statements: each rank makes one at the start of a step and receives all at its end.

    The exchange overlaps with the computation, and every rank gets the same statements at the same boundary.
    An event during a step takes effect at the end of the next one.
    """

    def __init__(self, peers: Peers, values: ReportedValues, joined: Collection[int] = ()) -> None:
        """Exchange with these peers, of whom the ranks `joined` are new; `values` of the script travel with the statements."""
        self._peers = peers
        self._joined = joined
        self._values = values
        self._held: Statement | None = None
        self._pending: Pending | NoPeers | None = None
        self._begun_at: Position | None = None
        self._step_before = False  # whether the ranks have taken their last step together

    def begin(self, statement: Statement, at: Position | None = None, *, held: bool = False) -> None:
        """Make this rank's statement at the start of a step at this position in the data; None: of no step.

        If `held`, it is sent with the digest of `tell`. If the script left the step before it was taken and begins it again,
        the statement of its first beginning stays: a new member may not have begun it before, for example to look at a
        batch, and each rank states a step once.

        Raises:
            PeersLost: a peer is gone.
        """
        if at is not None and at == self._begun_at and (self._held is not None or self._pending is not None):
            return
        self._send()
        if self._pending is not None:  # the script left the previous step without ending it
            self._pending.wait()
        self._begun_at = at
        self._held = statement
        if not held:
            self._send()

    def tell(self, digest: int) -> None:
        """Send the statement that is held, with the digest of the parameters that train.

        Raises:
            PeersLost: a peer is gone.
        """
        if self._held is not None:
            self._held = replace(self._held, trainable=digest)
            self._send()

    def told(self) -> list[int]:
        """Wait for the statements of the present step, and return their digests, by rank; 0 for one without.

        Raises:
            PeersLost: a peer is gone.
        """
        if self._pending is None:
            return []
        return [Statement.from_numbers(numbers[:_WIDTH]).trainable for numbers in self._pending.wait()]

    def _send(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._pending = self._peers.begin_gather((*held.to_numbers(), *self._values.numbers()))

    def agree(self, samples: int) -> Agreement:
        """Return the agreement at the end of a step of `samples` samples over all ranks, or of no step (0).

        Raises:
            PeersLost: a peer is gone.
            RuntimeError: peers are in another step, so their gradients cannot be combined; or some have taken an
                optimizer step after the last one, and others have not; or other parameters train on some ranks.
        """
        self._send()  # if the script has called no model
        assert self._pending is not None, "begin() comes first"
        pending, self._pending = self._pending, None
        everyone = pending.wait()
        self._values.deliver([numbers[_WIDTH:] for numbers in everyone], self._peers.rank)
        agreement = Agreement(tuple(Statement.from_numbers(numbers[:_WIDTH]) for numbers in everyone))
        refuse_unequal_sets([one.trainable for one in agreement.statements])
        if (taken := agreement.ledger.count) != samples:
            raise RuntimeError(
                f"the ranks are not in the same step: together they took {taken} samples, but the step of this rank has {samples}; "
                "have every rank leave its loop after the same step, over the same data"
            )
        if self._step_before:
            refuse_unequal_passes([one.stepped >> 1 for one in agreement.statements])
            stepped = [bool(one.stepped & 1) for one in agreement.statements]
            refuse_unequal_steps(stepped, self._peers.rank, self._joined)
        self._step_before = samples > 0
        return agreement


def refuse_unequal_passes(passes: Sequence[int]) -> None:
    """Raise RuntimeError if the ranks averaged the gradients of different numbers of backward passes in their last step.

    Then a pass of one rank was added to another pass of the rest.
    """
    if len(set(passes)) > 1:
        counts = ", ".join(f"rank {rank} {number}" for rank, number in enumerate(passes))
        raise RuntimeError(
            f"the ranks called backward() differently often in the last step ({counts}), so gradients of different losses were added "
            "up; decide on each backward pass after the first by a value that is equal on all ranks, such as the step"
        )


def refuse_unequal_steps(stepped: Sequence[bool], rank: int, joined: Collection[int]) -> None:
    """Raise an error if some ranks have called the optimizer in their last step, and others have not.

    A new rank counts its batches from another number than those that train. If only such ranks are apart, they alone end
    with an error, so that the others go on without them.

    Raises:
        NewRankApart: this rank has stepped as those did that are not new, and a new one has not.
        RuntimeError: this rank is to end.
    """
    usual = {one for number, one in enumerate(stepped) if number not in joined}
    if len(set(stepped)) > 1:
        if joined and usual == {stepped[rank]}:
            raise NewRankApart("a new rank steps its optimizer in other steps")
        which = ", ".join(str(rank) for rank, one in enumerate(stepped) if not one)
        raise RuntimeError(
            "the ranks disagree on stepping, so their models differ: in the last step some called optimizer.step(), and "
            f"rank {which} did not; have every rank step in every step, without a break or continue before optimizer.step() that "
            f"only some of them reach, and {ACCUMULATE}"
        )
