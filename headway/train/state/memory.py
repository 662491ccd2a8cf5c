"""Host memory allocated ahead of use, because the first touch of a page is slow.

On a virtual machine, the first touch of a page may take ten times as long as its use. A membership change
needs much memory at once, for a new member's optimizer state and gradients and for the buckets of all ranks,
while training is paused. Accelerators need none of this, because torch caches their memory.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h
_PAGE_BYTES = 4096
_MOST_SHARE = 0.25
"""Largest share of free memory to touch, because other processes and new members need memory too."""

_HELD_BESIDE_PARAMETERS = 4
"""Host memory that a rank holds besides its parameters, in multiples of their size.

Optimizers usually keep two averages of each parameter. DDP keeps gradient buckets, and rearranges them in its
second step.
"""


def keep_freed_memory() -> None:
    """Make this process keep freed memory and reuse it for large blocks. Does nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def touch(nbytes: int) -> None:
    """Allocate and touch `nbytes` of memory in advance, up to a share of the free memory.

    Call it after `keep_freed_memory` and in the main thread, because other threads have their own heaps.
    """
    count = min(nbytes, int(_free_bytes() * _MOST_SHARE))
    torch.empty(count, dtype=torch.uint8, device="cpu")[::_PAGE_BYTES].fill_(0)


def _free_bytes() -> int:
    """Return the memory that the host has without swapping; 0 if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def touch_for_training(parameter_bytes: int) -> None:
    """Touch the host memory that a rank will hold besides so many bytes of parameters."""
    touch(_HELD_BESIDE_PARAMETERS * parameter_bytes)
