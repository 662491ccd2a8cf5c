"""Checksum of a tensor that does not depend on its division into shards.

    sum over words of  bits(word) * (w_d(i_d) + ...)   mod 2^64, over the dimensions d that a layout divides

where `i_d` is the position of the word in dimension d of the whole tensor, and `w_d` a fixed pseudo-random number for each
index. A word is 8 bytes where the dimensions behind the divided ones allow it, else an element. The checksums of disjoint
boxes add up to that of the tensor. An element that is lost, doubled or at a wrong position changes the sum.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch

from headway.train.sharding.boxes import Box

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD_BYTES = 8
_ODD = 0x1E3779B97F4A7C15
_MIX = 0x3F58476D1CE4E5B9


def checksum(values: torch.Tensor, box: Box, divided: Collection[int]) -> int:
    """Return the checksum of the elements of `box`, as a signed 64-bit number.

    `divided` has the dimensions that the old or the new layout divides.
    """
    if values.is_complex():
        values = torch.view_as_real(values)
        box = Box((*box.offsets, 0), (*box.sizes, 2))
    if not values.numel():
        return 0
    dims = sorted(divided) or [0]
    front = box.sizes[: dims[-1] + 1] or (1,)
    behind = math.prod(box.sizes[dims[-1] + 1 :])
    rows = values.detach().contiguous().view(*front, behind)
    whole = behind * rows.element_size() % _WORD_BYTES == 0
    # Whole words are added four times as fast as elements, which must be widened first.
    words = rows.view(torch.int64 if whole else _BITS[rows.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for dim in dims:
        others = [one for one, size in enumerate(words.shape) if one != dim and size > 1]
        offset = box.offsets[dim] if box.offsets else 0
        sums = words.sum(dim=others, dtype=torch.int64) if others else words.to(torch.int64)
        total += (sums.flatten() * _weights(dim, offset, front[dim], words.device)).sum()
    return int(total)


def _weights(dim: int, offset: int, size: int, device: torch.device) -> torch.Tensor:
    """Return pseudo-random numbers for the indices from `offset`, by two rounds of multiplication and shift."""
    index = torch.arange(offset, offset + size, dtype=torch.int64, device=device)
    mixed = (index + 1 + (dim << 40)) * _ODD
    mixed = (mixed ^ (mixed >> 29)) * _MIX
    return mixed ^ (mixed >> 32)
