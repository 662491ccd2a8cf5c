"""Objects of `prepare` whose methods wait for the whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from headway.train.gradients.averaging import Gradients
from headway.train.gradients.scaler import ScalerOncePerBatch
from headway.train.gradients.schedule import OncePerBatch


def once_per_batch(one: Any, gradients: Gradients) -> Any:
    """Return an object of `prepare` whose `step` or `update` waits for the whole batch, if it has one."""
    if isinstance(one, LRScheduler):
        return OncePerBatch(one, gradients)
    return ScalerOncePerBatch(one, gradients) if isinstance(one, torch.amp.GradScaler) else one
