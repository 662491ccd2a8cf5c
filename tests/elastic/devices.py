"""The GPU of each rank of a test: one each where there are enough, else all share them."""

from __future__ import annotations

import pytest
import torch

from headway.selftest.members import shared_gpu_env
from tests.elastic.streamed import NAME, SILENT

OVER_STREAMS = pytest.mark.parametrize("collective", [pytest.param(None, id="default"), NAME])
"""Runs a test over the default backend, and over one whose operations end after their calls, as on a device."""
OVER_SLOW_STREAMS = pytest.mark.parametrize(
    "collective", [pytest.param(None, id="default"), pytest.param(NAME, marks=pytest.mark.slow)]
)
"""The same, where another test in the gate shows the subject over streams."""
OVER_SILENT_STREAMS = pytest.mark.parametrize("collective", [pytest.param(None, id="default"), SILENT])
"""The same, where an aborted operation ends like a complete one."""


def device_env(member: str, rank: int) -> dict[str, str]:
    """Return the variables that give a rank its GPU; none on a machine without GPUs.

    `member` is different for every process of a job.
    """
    gpus = torch.cuda.device_count()
    return shared_gpu_env(rank % gpus, member) if gpus else {}
