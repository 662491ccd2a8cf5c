from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture(autouse=True)
def leave_groups() -> Iterator[None]:
    """Leave the process group that a test's run has formed, as the end of its process would do."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
