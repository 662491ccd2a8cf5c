"""Numbers and times as text for the pages. All functions take values and return text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

from headway.contract.values import quantities
from headway.contract.values.dollars import dollars

NONE = "–"
"""Placeholder for a missing value."""


def duration(seconds: float | None) -> str:
    """Return a duration such as `2h05m`, or a dash."""
    return NONE if seconds is None or not math.isfinite(seconds) else quantities.duration(seconds)


def between(low_s: float | None, high_s: float | None) -> str:
    """Return a median and its 90th percentile, such as `2h05m, at most 3h00m`."""
    if low_s is None:
        return NONE
    if high_s is None or duration(high_s) == duration(low_s):
        return duration(low_s)
    return f"{duration(low_s)}, at most {duration(high_s)}"


def usd(amount: float | None) -> str:
    """Return an amount in dollars, or a dash."""
    return NONE if amount is None else dollars(amount)


def charge(amount: float | None) -> str:
    """Return a cost in dollars, or a dash if it is unknown or nothing, as where slots have no price."""
    return usd(amount) if amount else NONE


def number(value: float | None) -> str:
    """Return a number with three significant digits, or all digits of a whole number: `12,345`, `3.14`,
    `0.00123`.
    """
    if value is None or not math.isfinite(value):
        return NONE
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def short(value: float | None) -> str:
    """Return a number in short form: `12.3k`, `4.5M`."""
    if value is None or not math.isfinite(value):
        return NONE
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return number(value)


def percent(share: float | None) -> str:
    """Return a percentage such as `42 %`, with a decimal below one percent."""
    if share is None or not math.isfinite(share):
        return NONE
    return f"{100 * share:.1f} %" if 0 < abs(share) < 0.01 else f"{round(100 * share)} %"


def quality_words(gap: float) -> str:
    """Return the optimality gap of a round in words, such as `optimal under the model, gap 0.00 %`."""
    if gap < 0.0005:
        return f"optimal under the model, gap {100 * gap:.2f} %"
    return f"within {100 * gap:.2f} % of the optimum of the model"


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun, such as `1 job` or `2 jobs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(words: Iterable[str]) -> str:
    """Return words as a list in a sentence: `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def stamp(at: datetime) -> str:
    """Return a UTC time such as `22 Nov 01:15 UTC`, which the browser replaces by a relative one."""
    return f"{at.astimezone(UTC):%-d %b %H:%M} UTC"


def iso(at: datetime) -> str:
    """Return a time in ISO 8601 to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def minute(at: datetime) -> datetime:
    """Return the start of the minute, for charts up to now that should not change every second."""
    return at.replace(second=0, microsecond=0)


def limit_words(row: str) -> str:
    """Return one unit of a round's limit in words: `slots/a100` is a slot of a100."""
    head, _, rest = row.partition("/")
    pool, _, size = rest.partition("/")
    known = {
        "slots": f"slot of {pool}",
        "packing": f"place for {size} slots of {pool} together",
        "budget": f"dollar an hour of the budget {rest}",
        "quota": f"slot of the quota of project {rest}",
        "usd_per_h": "dollar an hour",
    }
    return known.get(head, row)
