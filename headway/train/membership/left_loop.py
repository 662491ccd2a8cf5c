"""Ranks that leave the training loop early, by `break`, while others train on: each leaves a mark in the members' store."""

from __future__ import annotations

import sys
from typing import Any

from headway.errors import HeadwayError
from headway.train.membership.meeting import peers_may_be_lost

_MARK = "headway/left_loop"


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


def refuse_left(store: Any, steps: int) -> None:
    """Raise an error if a rank has left its loop and ended, while this one has taken `steps` steps and trains on.

    Raises:
        LoopLeft: a rank has.
        PeersLost: the store is gone.
    """
    with peers_may_be_lost():
        mark = store.get(_MARK).decode() if store.check([_MARK]) else None
    if mark is not None:
        rank, its = mark.split()
        raise LoopLeft(
            f"LOOP_LEFT: rank {rank} left the training loop after step {its}, but this rank trains on after step {steps}.",
            "Have every rank leave after the same step: decide by a value that is equal on all of them, such as the mean of the "
            "loss by torch.distributed.all_reduce, or end the job by goal.target.",
        )
