"""Headway schedules elastic PyTorch training; this package is its client side and its training library.

A training script needs one name of it, `headway.init()`; one that checkpoints by itself may ask
`headway.preempted()`. Importing the package imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.preemption import preempted

if TYPE_CHECKING:
    from headway.train import Run

__all__ = ["init", "preempted"]


def init(*, timeout_s: float = 300.0) -> Run:
    """Join the training run that this process is a part of. See `headway.train.init`."""
    from headway.train import init as join  # noqa: PLC0415  # torch, which only ranks need

    return join(timeout_s=timeout_s)
