"""The audit of an epoch: the trained samples in three numbers that add up over ranks. The module does no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

MODULUS = 2**61
"""A power of two, so that 64-bit sums stay correct when they wrap around."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Count, sum, and sum of squares (modulo `MODULUS`) of the dataset indices in committed steps.

    A sample that was left out, repeated or exchanged for another changes at least one of them, except by a
    deliberate construction.
    """

    count: int = 0
    total: int = 0
    squares: int = 0

    def add(self, indices: NDArray[np.int64]) -> Ledger:
        """Return the ledger with the samples of one more step."""
        unsigned = indices.view(np.uint64)
        return Ledger(
            self.count + len(indices),
            (self.total + int(np.add.reduce(unsigned))) % MODULUS,
            (self.squares + int(np.dot(unsigned, unsigned))) % MODULUS,
        )

    def __add__(self, other: Ledger) -> Ledger:
        """Return the sum of both ledgers."""
        return Ledger(
            self.count + other.count,
            (self.total + other.total) % MODULUS,
            (self.squares + other.squares) % MODULUS,
        )

    def __sub__(self, other: Ledger) -> Ledger:
        """Return the ledger without the samples of another."""
        return Ledger(
            self.count - other.count,
            (self.total - other.total) % MODULUS,
            (self.squares - other.squares) % MODULUS,
        )

    @classmethod
    def of_epoch(cls, dataset_samples: int) -> Ledger:
        """Return the ledger of 0..n-1, each exactly once."""
        return cls.of_range(0, dataset_samples)

    @classmethod
    def of_range(cls, start: int, stop: int) -> Ledger:
        """Return the ledger of start..stop-1, each exactly once."""
        total = (stop * (stop - 1) - start * (start - 1)) // 2
        squares = (_six_squares(stop) - _six_squares(start)) // 6
        return cls(stop - start, total % MODULUS, squares % MODULUS)


def _six_squares(n: int) -> int:
    """Return six times the sum of the squares of 0..n-1."""
    return (n - 1) * n * (2 * n - 1)


LedgerOf: TypeAlias = Callable[[range], Ledger]
"""Function that returns the ledger of the samples at a range of positions."""
