"""Ranks that leave a loop early, by `break`, while others train on: each leaves a mark in the members' store."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from headway.errors import HeadwayError
from headway.train.membership.meeting import peers_may_be_lost

_MARK = "headway/left_loop"
_BATCH_MARK = "headway/left_batch"
_FOUND_MARK = "headway/found_left_batch"


class BatchPosition(Protocol):
    """Position of a batch of the training data: its epoch, and the samples of the epoch that come before it."""

    @property
    def epoch(self) -> int:
        """The epoch."""

    @property
    def samples(self) -> int:
        """The samples before the batch."""


class LoopLeft(HeadwayError):
    """Raised on a rank that trains on when another has left the loop, so that they would train different steps."""

    code = "LOOP_LEFT"


def mark_left(store: Any, rank: int, steps: int) -> None:
    """Leave the mark of a rank that has left the loop after so many steps, unless its process ends by an error.

    Raises:
        PeersLost: the store is gone.
    """
    if getattr(sys, "last_value", None) is None:  # set by the interpreter and by the launcher
        with peers_may_be_lost():
            store.set(_MARK, f"{rank} {steps}")


def mark_left_batch(store: Any, rank: int, position: BatchPosition) -> None:
    """Leave the mark of a rank that has ended an epoch at this position without the batch there, which it had begun.

    Raises:
        PeersLost: the store is gone.
    """
    with peers_may_be_lost():
        store.set(_BATCH_MARK, f"{rank} {position.epoch} {position.samples}")


def find_left_batch(store: Any, position: BatchPosition) -> LoopLeft | None:
    """Return the error of the ranks if one has left the batch at this position, which this rank trains; None if none is known.

    The others learn it from the store by `refuse_left_batch`, once this rank has given up.

    Raises:
        PeersLost: the store is gone.
    """
    with peers_may_be_lost():
        mark = _read(store, _BATCH_MARK)
        if mark is None or mark.split()[1:] != [str(position.epoch), str(position.samples)]:
            return None
        store.set(_FOUND_MARK, mark)
    return _left_batch(mark)


def refuse_left_batch(store: Any) -> None:
    """Raise an error if a rank has given up because another one has left its batch.

    Raises:
        LoopLeft: a rank has.
        PeersLost: the store is gone.
    """
    with peers_may_be_lost():
        mark = _read(store, _FOUND_MARK)
    if mark is not None:
        raise _left_batch(mark)


def _read(store: Any, name: str) -> str | None:
    return str(store.get(name).decode()) if store.check([name]) else None


def _left_batch(mark: str) -> LoopLeft:
    rank, epoch, samples = mark.split()
    return LoopLeft(
        f"LOOP_LEFT: rank {rank} left the loop over the data in epoch {epoch}, within the batch at sample {samples}, before it "
        "was trained, but another rank trains this batch.",
        "Have every rank leave before the same batch, and decide by a value that is equal on all of them, such as "
        "run.steps or the mean of the loss by torch.distributed.all_reduce.",
    )


def refuse_left(store: Any, steps: int) -> None:
    """Raise an error if a rank has left its loop and ended, while this one has taken `steps` steps and trains on.

    Raises:
        LoopLeft: a rank has.
        PeersLost: the store is gone.
    """
    with peers_may_be_lost():
        mark = _read(store, _MARK)
    if mark is not None:
        rank, its = mark.split()
        raise LoopLeft(
            f"LOOP_LEFT: rank {rank} left the training loop after step {its}, but this rank trains on after step {steps}.",
            "Have every rank leave after the same step: decide by a value that is equal on all of them, such as the mean of the "
            "loss by torch.distributed.all_reduce, or end the job by goal.target.",
        )
