"""Local batches for ranks of unequal speed, chosen so that all finish a step together. No I/O.

The time that rank k takes for b samples is modelled as t_k = a_k + c_k b. Where all finish at one time t*,

    t*  =  (B + sum a_k / c_k) / sum (1 / c_k),      b_k  =  (t* - a_k) / c_k

which minimises max t_k among all b_k that add up to B. Local batches are whole numbers within bounds, and
always add up to the global batch exactly. A rule that scales each by its own time would let the global batch
drift.

Every rank feeds its `Balancer` the same times of all ranks and computes the same local batches without
communication. Therefore all arithmetic must round alike on every host: there are no vector instructions, and
sums use `math.fsum`, because the sum of floats depends on the version of Python.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headway.contract.values.balance import USUAL_BALANCE, BalanceRule

STANDARD_ERRORS = 3.0
"""Number of standard errors of the measured times that the saving must exceed as well."""
MEDIAN_OF = 5
"""Steps at a size before its evaluation, and window of the median, which hides two outliers of five."""
SMOOTHING = 0.05
"""Weight of the newest median in the average of a size's times."""
OUTLIER = 0.25
"""Largest relative distance of a median from the average that counts fully. It dampens bursts."""
FITTED_STEPS = 25
"""Steps for which a size is compared with the previous one; later, the machine itself may have changed."""
STRIDE = 4
"""Largest factor of one change of a local batch: beyond it the model is unreliable."""
WEIGHED_RANKS = 32
"""Number of ranks up to which every step is evaluated; with twice as many, every second step, and so on."""
_ROUNDING = 1e-6
"""Excess in samples over a whole number that is an error of rounding."""
LONGEST_S = 1e6
"""Longest accepted step time in seconds; a longer one is a clock error."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of a step as a function of its samples: `fixed_s` + `sample_s` * samples."""

    fixed_s: float
    sample_s: float

    def seconds(self, samples: int) -> float:
        """Return the seconds of a step with this number of samples."""
        return self.fixed_s + self.sample_s * samples


def divide(costs: Sequence[Cost], total: int, least: Sequence[int], most: Sequence[int]) -> tuple[int, ...]:
    """Return local batches that add up to `total`, within bounds, and minimise the time of the slowest rank.

    Raises:
        ValueError: no local batches within the bounds add up to it, or a cost does not grow with the samples.
    """
    if any(low > high for low, high in zip(least, most, strict=True)):
        raise ValueError("a rank's smallest local batch is above its largest")
    if not sum(least) <= total <= sum(most):
        raise ValueError(
            f"no local batches add up to {total}: the bounds of the {len(costs)} ranks allow "
            f"{sum(least)} to {sum(most)}; change the global batch or the bounds"
        )
    if any(not (0.0 < one.sample_s < math.inf and 0.0 <= one.fixed_s < math.inf) for one in costs):
        raise ValueError("a rank's time must grow with its samples, from a fixed cost that is not negative")
    level_s = _common_time(costs, total, least, most)
    samples = [
        min(max(math.floor((level_s - cost.fixed_s) / cost.sample_s), low), high)
        for cost, low, high in zip(costs, least, most, strict=True)
    ]
    # Less than one sample per rank is left. Each goes to the rank that ends first with it, which is optimal.
    ends = [
        (cost.seconds(samples[rank] + 1), rank)
        for rank, cost in enumerate(costs)
        if samples[rank] < most[rank]
    ]
    heapq.heapify(ends)
    for _ in range(total - sum(samples)):
        _, rank = ends[0]
        samples[rank] += 1
        if samples[rank] < most[rank]:
            heapq.heapreplace(ends, (costs[rank].seconds(samples[rank] + 1), rank))
        else:
            heapq.heappop(ends)
    return tuple(samples)


def _common_time(costs: Sequence[Cost], total: int, least: Sequence[int], most: Sequence[int]) -> float:
    """Return the time at which the ranks, each within its bounds, have processed `total` samples."""

    def done(level_s: float) -> float:
        return math.fsum(
            min(max((level_s - cost.fixed_s) / cost.sample_s, low), high)
            for cost, low, high in zip(costs, least, most, strict=True)
        )

    begins = [cost.seconds(low) for cost, low in zip(costs, least, strict=True)]
    ends = [cost.seconds(high) for cost, high in zip(costs, most, strict=True)]
    times = sorted({*begins, *ends})
    low, high = 0, len(times) - 1  # done(times[high]) is the maximum
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if done(times[middle]) >= total else (middle + 1, high)
    # No rank reaches a bound between the time before this one and this one: the closed form holds.
    working = [rank for rank in range(len(costs)) if begins[rank] < times[low] <= ends[rank]]
    if not working:
        return times[low]
    resting = sum(
        least[rank] if begins[rank] >= times[low] else most[rank]
        for rank in range(len(costs))
        if rank not in set(working)
    )
    shift = math.fsum(costs[rank].fixed_s / costs[rank].sample_s for rank in working)
    return (total - resting + shift) / math.fsum(1.0 / costs[rank].sample_s for rank in working)


@dataclass(frozen=True, slots=True)
class Pace:
    """The measured speed of one rank. Times are of `samples`, its present local batch.

    `fixed_samples` is a / c: the fixed cost of a step, expressed in samples. A change of the machine's speed
    multiplies a and c alike, and leaves it unchanged. `spread` is the mean relative deviation of recent times from their median,
    without the farthest time. `before` is the previous local batch and its time.
    """

    samples: int
    count: int = 0
    recent_s: tuple[float, ...] = ()
    average_s: float = 0.0
    spread: float = 0.0
    fixed_samples: float = 0.0
    before: tuple[int, float] | None = None

    def observe(self, time_s: float) -> Pace:
        """Return the speed after a step of `samples` samples that took `time_s` seconds."""
        count = self.count + 1
        recent_s = (*self.recent_s, time_s)[-MEDIAN_OF:]
        median_s = sorted(recent_s)[len(recent_s) // 2]
        weight = max(1.0 / max(count - MEDIAN_OF + 1, 1), SMOOTHING)
        step_s = weight * (median_s - self.average_s)
        if count > MEDIAN_OF:
            step_s = min(max(step_s, -OUTLIER * weight * self.average_s), OUTLIER * weight * self.average_s)
        average_s = self.average_s + step_s
        deviations = sorted(abs(one - median_s) for one in recent_s)[: MEDIAN_OF - 1]
        deviation = math.fsum(deviations) / (len(deviations) * median_s)
        spread = self.spread + weight * (deviation - self.spread)
        pace = Pace(self.samples, count, recent_s, average_s, spread, self.fixed_samples, self.before)
        return pace if count > FITTED_STEPS else replace(pace, fixed_samples=pace.fitted())

    def fitted(self) -> float:
        """Return the fixed cost from this size and the one before, or the old value if the two are too close."""
        if self.before is None or self.count < MEDIAN_OF:
            return self.fixed_samples
        samples, time_s = self.before
        if abs(samples - self.samples) < 0.25 * max(samples, self.samples):
            return self.fixed_samples
        sample_s = (self.average_s - time_s) / (self.samples - samples)
        if sample_s <= 0.0:
            return self.fixed_samples
        most = float(STRIDE * max(samples, self.samples))
        return min(max(self.average_s / sample_s - self.samples, 0.0), most)

    @property
    def known(self) -> bool:
        """True if some size was measured."""
        return self.count >= MEDIAN_OF or self.before is not None

    @property
    def cost(self) -> Cost:
        """The cost model fitted to the time of this size, or of the previous size while this one is new."""
        samples, time_s = self.samples, self.average_s
        if self.count < MEDIAN_OF:
            assert self.before is not None
            samples, time_s = self.before
        sample_s = time_s / (self.fixed_samples + samples)
        return Cost(self.fixed_samples * sample_s, sample_s)

    @property
    def error(self) -> float:
        """The relative standard error of the average.

        The factor 2.6 is from simulations with normally distributed times: `spread` is 0.45 of their standard
        deviation, and an average of medians varies 1.2 times as much as an average of times.
        """
        return 2.6 * self.spread / math.sqrt(min(self.count, 2.0 / SMOOTHING))

    def resized(self, samples: int) -> Pace:
        """Return the speed with another local batch."""
        if self.count < MEDIAN_OF:
            return replace(self, samples=samples, count=0, recent_s=())
        return replace(self, samples=samples, count=0, recent_s=(), before=(self.samples, self.average_s))


class Balancer:
    """The local batches of all ranks, computed from their times. Every rank has an equal balancer.

    It begins with local batches by expected speeds. It changes them when that is expected to save more of a
    step than the rule's dead band and than the noise of the times could explain.
    """

    def __init__(
        self,
        global_batch: int,
        ranks: int,
        *,
        rule: BalanceRule = USUAL_BALANCE,
        speeds: Sequence[float] = (),
    ) -> None:
        """Start with local batches in proportion to the expected `speeds` (by rank; only their ratios matter).

        Speeds of another number of ranks are ignored. Without speeds, the local batches are even.

        Raises:
            ValueError: there are more ranks than samples.
        """
        self._global_batch, self._rule = global_batch, rule
        samples: Sequence[int] = _even(global_batch, ranks)
        if len(speeds) == ranks and len(set(speeds)) > 1:
            costs = [Cost(0.0, 1.0 / speed) for speed in speeds]
            samples = divide(costs, global_batch, *_bounds(global_batch, ranks, rule))
        self._paces = [Pace(one) for one in samples]

    @property
    def local_batches(self) -> tuple[int, ...]:
        """Samples of each rank in a step: at least 1, together the global batch."""
        return tuple(pace.samples for pace in self._paces)

    def observe(self, local_batches: Sequence[int], compute_s: Sequence[float]) -> bool:
        """Process a step with these local batches and times. True: the local batches change now.

        `compute_s` are the seconds that each rank spent on its own samples, without waits for peers. A step
        with other local batches is ignored: a short one, or one fetched before the last change. So is a step
        with a time that is not a positive number.

        Raises:
            ValueError: the number of ranks differs.
        """
        if len(local_batches) != len(self._paces) or len(compute_s) != len(self._paces):
            raise ValueError(f"the step of {len(compute_s)} ranks is not one of these {len(self._paces)}")
        now = self.local_batches
        if tuple(local_batches) != now or not all(0.0 < one <= LONGEST_S for one in compute_s):
            return False
        self._paces = [pace.observe(time_s) for pace, time_s in zip(self._paces, compute_s, strict=True)]
        count = self._paces[0].count
        if count < MEDIAN_OF or count % (1 + len(self._paces) // WEIGHED_RANKS):
            return False
        costs = [pace.cost for pace in self._paces]
        least, most = _bounds(self._global_batch, len(now), self._rule)
        wanted = divide(
            costs,
            self._global_batch,
            least=[max(-(-samples // STRIDE), low) for samples, low in zip(now, least, strict=True)],
            most=[min(samples * STRIDE, high) for samples, high in zip(now, most, strict=True)],
        )
        left = _longest_s(costs, wanted) / _longest_s(costs, now)
        error = left * max(pace.error for pace in self._paces)  # `left` is as uncertain as the times
        if 1.0 - left <= max(self._rule.dead_band, STANDARD_ERRORS * error):
            return False
        self._paces = [pace.resized(samples) for pace, samples in zip(self._paces, wanted, strict=True)]
        return True

    def for_members(
        self, before: Sequence[int | None], global_batch: int | None = None, *, speeds: Sequence[float] = ()
    ) -> Balancer:
        """Return the balancer of another generation, or of another global batch.

        `before` gives the previous rank of each new rank, None for a new member. A new member is assumed to
        be as fast as the median rank until it is measured, times the ratio of their expected `speeds`.

        Raises:
            ValueError: there are more ranks than samples.
        """
        total = global_batch or self._global_batch
        balancer = Balancer(total, len(before), rule=self._rule, speeds=speeds)
        expected = tuple(speeds) if len(speeds) == len(before) else (1.0,) * len(before)
        paces = [None if rank is None else self._paces[rank] for rank in before]
        known = [
            (pace.cost, speed)
            for pace, speed in zip(paces, expected, strict=True)
            if pace is not None and pace.known
        ]
        if not known:
            return balancer
        # The costs of the median rank, if its expected speed were 1.
        fixed_s = statistics.median(cost.fixed_s * speed for cost, speed in known)
        sample_s = statistics.median(cost.sample_s * speed for cost, speed in known)
        wanted = divide(
            [
                Cost(fixed_s / speed, sample_s / speed) if pace is None or not pace.known else pace.cost
                for pace, speed in zip(paces, expected, strict=True)
            ],
            total,
            *_bounds(total, len(paces), self._rule),
        )
        balancer._paces = [
            Pace(samples) if pace is None else pace.resized(samples)
            for pace, samples in zip(paces, wanted, strict=True)
        ]
        return balancer

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers, for new members and checkpoints."""
        return {"global_batch": self._global_batch, "paces": [asdict(pace) for pace in self._paces]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of another balancer, including its ranks and global batch."""
        self._global_batch = int(state["global_batch"])
        self._paces = [
            Pace(
                **{
                    **pace,
                    "recent_s": tuple(pace["recent_s"]),
                    "before": None if pace["before"] is None else tuple(pace["before"]),
                }
            )
            for pace in state["paces"]
        ]


def _even(global_batch: int, ranks: int) -> list[int]:
    if not 0 < ranks <= global_batch:
        raise ValueError(
            f"a global batch of {global_batch} cannot give {ranks} ranks a sample each; make it larger"
        )
    length, longer = divmod(global_batch, ranks)
    return [length + (rank < longer) for rank in range(ranks)]


def _bounds(total: int, ranks: int, rule: BalanceRule) -> tuple[list[int], list[int]]:
    """Return the smallest and the largest local batch of each rank under the rule."""
    even = total / ranks
    least = max(1, math.floor(rule.min_share * even + _ROUNDING))
    most = total if rule.max_share >= ranks else math.ceil(rule.max_share * even - _ROUNDING)
    return [least] * ranks, [most] * ranks


def _longest_s(costs: Sequence[Cost], samples: Sequence[int]) -> float:
    return max(cost.seconds(one) for cost, one in zip(costs, samples, strict=True))
