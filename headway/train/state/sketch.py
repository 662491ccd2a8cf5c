"""Short descriptions of tensors from which ranks estimate how far apart theirs are, without sending them.

A sketch has the products of a tensor with a few vectors of random signs, the same on every rank. If D is the difference of two
tensors, the mean square of the differences of their products is |D|^2 on average.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_ROW = 2**14
_SLAB_ROWS = 2**8
"""Rows of a tensor that are processed at a time: temporaries take 32 MiB."""
_VECTORS = 4
_SEED = 20177


@dataclass(frozen=True, slots=True)
class Sketch:
    """The squared norm of a tensor and its products with the vectors of signs.

    `within` is the difference, relative to the norm, up to which such tensors count as equal.
    """

    square: float
    products: tuple[float, ...]
    within: float

    def is_near(self, other: Sketch) -> bool:
        """Return True if the tensors differ by rounding, or if neither has a finite norm."""
        if not math.isfinite(self.square) or not math.isfinite(other.square):
            return math.isfinite(self.square) == math.isfinite(other.square)
        apart = sum((mine - its) ** 2 for mine, its in zip(self.products, other.products, strict=True))
        return apart / _VECTORS <= self.within**2 * max(self.square, other.square)


def sketch(tensor: Tensor) -> Tensor:
    """Return the numbers of a floating-point tensor's sketch, on its device."""
    values = tensor.detach().contiguous()
    values = (torch.view_as_real(values) if values.is_complex() else values).view(-1)
    signs = _signs(values.device)
    found = torch.zeros(1 + _VECTORS, dtype=torch.float64, device=values.device)
    for number, slab in enumerate(torch.split(values, _ROW * _SLAB_ROWS)):
        exact = slab.to(torch.float64)
        missing = -exact.numel() % _ROW if exact.numel() > _ROW else 0
        rows = torch.nn.functional.pad(exact, (0, missing)).view(
            -1, min(_ROW, max(1, exact.numel() + missing))
        )
        products = rows @ signs[: rows.shape[1]]
        first = number * _SLAB_ROWS
        found[0] += exact.square().sum()
        found[1:] += (products * _row_signs(first, len(rows), values.device)).sum(0)
    return found


def within(dtype: torch.dtype) -> float:
    """Return the relative difference up to which tensors of this type count as equal."""
    return WITHIN if torch.finfo(dtype).eps < _SHORT_EPS else WITHIN_SHORT


WITHIN = 0.01
"""Largest difference by rounding, relative to the norm. That of 32-bit parameters grows to about 1e-4 in a million steps."""
WITHIN_SHORT = 0.1
"""The same of 16-bit numbers, which may round by 0.004 in each step."""
_SHORT_EPS = 1e-5


@functools.cache
def _signs(device: torch.device) -> Tensor:
    return _drawn(_SEED, _ROW).to(device)


def _row_signs(first: int, rows: int, device: torch.device) -> Tensor:
    """Return the signs by which the products of these rows count: otherwise equal differences in all rows would add up."""
    return _drawn(_SEED + 1 + first, rows).to(device)


def _drawn(seed: int, rows: int) -> Tensor:
    # NumPy's generator draws the same numbers on every machine, and in every version.
    drawn = np.random.RandomState(seed % 2**32).randint(0, 2, (rows, _VECTORS))
    return torch.from_numpy(2.0 * drawn - 1.0)
