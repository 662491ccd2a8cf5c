"""Memory of a host, at hand before it is needed: pages that a process touches first are slow to come.

On a machine that is itself virtual, the first touch of a page may take ten times as long as the use of it. A change of
members needs much memory at once (a newcomer's optimizer state and gradients, everyone's buckets), while training stands
still. Accelerators need none of this: torch keeps their memory.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h
_PAGE_BYTES = 4096
_MOST_SHARE = 0.25
"""Of the memory that is free: other processes need some, and newcomers come in numbers."""


def keep_freed_memory() -> None:
    """Have this process keep what it frees, and take large blocks from that. Does nothing where the C library is
    not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def touch(nbytes: int) -> None:
    """Have so much memory at hand, but not more than a share of what is free. After `keep_freed_memory`, and in the
    main thread: others have heaps of their own.
    """
    count = min(nbytes, int(_free_bytes() * _MOST_SHARE))
    torch.empty(count, dtype=torch.uint8)[::_PAGE_BYTES].fill_(0)


def _free_bytes() -> int:
    """What the host could give without swapping; 0 where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
