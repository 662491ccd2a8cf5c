"""Levels of the ranks in a step of structured partial back-propagation, and their samples. No I/O.

A rank computes the gradients of the last layers of the model only, down to the depth of its level. Ranks take the
levels in turn, and one rank of every step computes all layers. The number of the step decides, so ranks need no communication.

Every rank of a step waits for the slowest. Therefore a rank that goes less deep takes more samples of the step.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from headway.contract.values.depths import cost

_UNITS = 10_000
"""Resolution of the division of a batch by costs."""
_MEDIAN_OF = 5
"""Steps of each rank at each level before the first evaluation."""
_LONGEST_MEDIAN_OF = 40
"""The same before a late evaluation."""
_MOST_LEVELS = 32
"""Number of levels up to which costs are measured; with more, every rank would have to remember too many times."""
_DEAD_BAND = 0.05
"""Relative change of a cost that is worth another division of the batch."""
_LEAST_COST = 0.1
"""Smallest cost that is believed."""
_LONGEST_S = 1e6
"""Longest accepted time of a step in seconds; a longer one is a clock error."""


def levels(step: int, ranks: int) -> tuple[int, ...]:
    """Return the level of each rank in a step: each rank takes every level once in `ranks` steps."""
    return tuple((rank + step) % ranks for rank in range(ranks))


@dataclass(frozen=True, slots=True)
class PartialStep:
    """The levels of a step.

    `levels` has the level of each rank, `samples` the samples of each rank.
    """

    levels: tuple[int, ...]
    samples: tuple[int, ...]

    @property
    def deepest(self) -> int:
        """The rank that computes the gradients of all layers."""
        return self.levels.index(len(self.levels) - 1)

    def samples_from(self, level: int) -> int:
        """Return the samples of the ranks at this level or a deeper one, which compute the layers of the level."""
        return sum(count for at, count in zip(self.levels, self.samples, strict=True) if at >= level)


@dataclass(frozen=True, slots=True)
class Depths:
    """Relative time of a sample at each level, ascending; the last one is 1. `even`: ranks take equal samples anyway."""

    costs: tuple[float, ...]
    even: bool = False

    def weights(self, local_batches: Sequence[int], at: Sequence[int]) -> tuple[int, ...]:
        """Return weights that divide a step so that all ranks finish together, at these levels.

        `local_batches` are the samples with which they would finish together at full depth.
        """
        if self.even:
            return tuple(local_batches)
        return tuple(
            round(_UNITS * samples / self.costs[level])
            for samples, level in zip(local_batches, at, strict=True)
        )

    def whole_s(
        self, partial: PartialStep, compute_s: Sequence[float], local_batches: Sequence[int]
    ) -> tuple[float, ...]:
        """Return the seconds that each rank would take for `local_batches` at full depth, from those of a partial step.

        A rank without samples or without a time has 0.
        """
        return tuple(
            seconds * batch / (self.costs[level] * samples) if samples else 0.0
            for level, samples, seconds, batch in zip(
                partial.levels, partial.samples, compute_s, local_batches, strict=True
            )
        )


class LevelCosts:
    """Measured costs of the levels. Every rank has an equal object, fed with the same statements.

    A rank takes every level in turn. Therefore its own time at full depth is the unit, and ranks of unequal speed agree.
    The layers of a model take unequal time, so the costs of `cost` are only the first guess.
    """

    def __init__(self, depths: Sequence[float]) -> None:
        self.costs = tuple(cost(depth) for depth in depths)
        """Present costs, ascending by level."""
        self._needed = _MEDIAN_OF
        self._rates: list[list[list[float]]] = []
        self._forget()

    def observe(self, partial: PartialStep, compute_s: Sequence[float]) -> bool:
        """Process a partial step with the seconds of each rank, without waits. True: the costs change now.

        The interval between evaluations doubles, because each change makes ranks fetch other samples.
        """
        if len(self.costs) > _MOST_LEVELS:
            return False
        if not all(0.0 < seconds < _LONGEST_S for seconds in compute_s) or not all(partial.samples):
            return False
        for rank, level in enumerate(partial.levels):
            rates = self._rates[rank][level]
            rates.append(compute_s[rank] / partial.samples[rank])
        if min(len(rates) for of_rank in self._rates for rates in of_rank) < self._needed:
            return False
        measured = self._measured()
        self._needed = min(2 * self._needed, _LONGEST_MEDIAN_OF)
        self._forget()
        if all(abs(new - old) <= _DEAD_BAND * old for new, old in zip(measured, self.costs, strict=True)):
            return False
        self.costs = measured
        return True

    def _measured(self) -> tuple[float, ...]:
        medians = [[statistics.median(rates) for rates in of_rank] for of_rank in self._rates]
        ratios = [
            statistics.median(of_rank[level] / of_rank[-1] for of_rank in medians)
            for level in range(len(self.costs))
        ]
        # A deeper level never takes less time: noise must not turn the order around.
        ascending = accumulate(ratios, max)
        return tuple(min(max(ratio, _LEAST_COST), 1.0) for ratio in ascending)

    def _forget(self) -> None:
        ranks = len(self.costs)
        self._rates = [[[] for _ in range(ranks)] for _ in range(ranks)]
