"""Best width of each class of jobs under a long-run average of dollars per hour.

Li, Berg, Mukhopadhyay, Harchol-Balter, "How to Rent GPUs on a Budget": no job queues, and every job of a
class has one width from its arrival to its end. The widths solve

    minimise sum of load / rate   subject to   sum of load * price / rate <= budget

over the configurations, where a class may be spread over two of them. The paper assumes less than its proof
needs. Measured rates are not concave; the solution for them is that over the lower convex hull of the points
(price / rate, 1 / rate) of each class.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from service.domain.policies.framework.speedup import finite
from service.domain.shared.arrays import FloatArray, NumberArray

NO_CLASS = -1
NOT_FOR_SALE = 1e9
"""Dollars per hour that stand for an invalid price."""
_FREE = 1e-9
"""Dollars per hour below which a price counts as 0, so that ratios of prices stay finite."""
UNSTABLE = "unstable"
"""Status of widths for a budget below what the cheapest configurations need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """The best widths for a budget.

    `mu_h_per_usd` is the worth of a dollar: the hours of delay that one more dollar would spare. `share` (I,
    C) is the fraction of a class's work that each configuration does. `jobs` is the mean number of jobs in
    the system; divided by the arrivals per hour it is the mean hours from arrival to end. At most one class,
    `mixed_class`, has two widths; of its present jobs the fraction `narrow_share` have the cheaper one.
    """

    mu_h_per_usd: float
    share: FloatArray
    jobs: float
    usd_per_h: float
    mixed_class: int
    narrow_share: float
    status: str
    """Status of the solution. `optimal`: the budget binds. `slack`: the budget is more than can be of use.
    `unstable`: the budget is less than the cheapest configurations need. These are then chosen, and jobs
    arrive faster than the budget can serve them.
    """


def column_prices(usd_per_h: NumberArray, slots: NumberArray) -> FloatArray:
    """Return the dollars per hour (C,) of each configuration.

    If nothing has a price, as on hosts that the operator owns, slots stand for dollars, and a budget is one
    of slots. An invalid price is so high that no job would pay it.
    """
    prices = finite(usd_per_h, otherwise=NOT_FOR_SALE)
    prices = np.where(prices < _FREE, 0.0, prices)
    return prices if (prices > 0).any() else finite(slots)


def fixed_widths(
    load: NumberArray, rate: NumberArray, prices: FloatArray, *, budget_usd_per_h: float
) -> Widths:
    """Return the exact optimum: every class at its cheapest corner, then the steps that spare most delay per
    dollar.

    `load` (I,) is the work that arrives, in samples per second. `rate` (I, C) is in samples per second, 0 for
    a configuration that cannot run the class. `prices` (C,) are in dollars per hour. A stage of a class with
    different speedups is a class of its own. Loads and rates that are not positive numbers are ignored.
    """
    load, rate = finite(load), finite(rate)
    runs = (load[:, None] > 0) & (rate > 0)
    jobs = np.where(runs, load[:, None] / np.where(runs, rate, 1.0), 0.0)
    usd_per_h = jobs * prices
    share = np.zeros(rate.shape)
    steps = []
    for one in np.flatnonzero(runs.any(axis=1)).tolist():
        corners = hull(rate[one], prices)
        share[one, corners[0]] = 1.0
        for narrow, wide in pairwise(corners):
            spares = jobs[one, narrow] - jobs[one, wide]
            costs = usd_per_h[one, wide] - usd_per_h[one, narrow]
            steps.append((spares / costs, one, narrow, wide, costs))
    steps.sort(key=lambda step: -step[0])
    left = budget_usd_per_h - float((share * usd_per_h).sum())
    mu, mixed, narrow_share, status = 0.0, NO_CLASS, 0.0, "slack"
    if not left >= 0:
        mu, status, steps = 2 * steps[0][0] if steps else 0.0, UNSTABLE, []
    for mu_of_step, one, narrow, wide, costs in steps:
        part = min(1.0, left / costs)
        share[one, narrow], share[one, wide] = 1.0 - part, part
        left -= part * costs
        if part < 1.0:
            at_narrow, at_wide = (1.0 - part) * jobs[one, narrow], part * jobs[one, wide]
            mu, mixed, narrow_share = mu_of_step, one, at_narrow / (at_narrow + at_wide)
            status = "optimal"
            break
    return Widths(
        mu_h_per_usd=mu,
        share=share,
        jobs=float((share * jobs).sum()),
        usd_per_h=float((share * usd_per_h).sum()),
        mixed_class=mixed,
        narrow_share=narrow_share,
        status=status,
    )


def hull(rate: FloatArray, prices: FloatArray) -> list[int]:
    """Return the columns of one class (C,) at the corners of the lower convex hull of (price / rate, 1 /
    rate).

    They are ordered from the cheapest work to the fastest. Whatever a dollar is worth, one of them is best.
    """
    columns = np.flatnonzero(rate > 0)
    usd: dict[int, float] = dict(
        zip(columns.tolist(), (prices[columns] / rate[columns]).tolist(), strict=True)
    )
    time: dict[int, float] = dict(zip(columns.tolist(), (1.0 / rate[columns]).tolist(), strict=True))

    def spares(narrow: int, wide: int) -> float:
        return (time[narrow] - time[wide]) / (usd[wide] - usd[narrow])

    corners: list[int] = []
    for column in sorted(usd, key=lambda one: (usd[one], time[one])):
        if corners and time[column] >= time[corners[-1]]:
            continue
        while len(corners) > 1 and spares(corners[-2], corners[-1]) <= spares(corners[-1], column):
            corners.pop()
        corners.append(column)
    return corners
