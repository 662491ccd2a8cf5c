"""The GPU of each rank of a test: one each where there are enough, else all share them."""

from __future__ import annotations

import torch

from headway.selftest.members import shared_gpu_env


def device_env(member: str, rank: int) -> dict[str, str]:
    """Return the variables that give a rank its GPU; none on a machine without GPUs.

    `member` is different for every process of a job.
    """
    gpus = torch.cuda.device_count()
    return shared_gpu_env(rank % gpus, member) if gpus else {}
