"""Numbers and times in words for the pages. Values in, text out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

from headway.contract.dollars import dollars

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
NONE = "–"
"""In place of a value that there is not."""


def duration(seconds: float | None) -> str:
    """`42 s`, `3 min`, `2 h 05 min`, `3 d 4 h`: two units at most."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{seconds:.1f} s" if 0 < seconds < 3 else f"{whole} s"
    if whole < 2 * _HOUR_S:
        return f"{round(whole / _MINUTE_S)} min"
    if whole < 2 * _DAY_S:
        hours, minutes = divmod(round(whole / _MINUTE_S), 60)
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(whole / _HOUR_S), 24)
    return f"{days} d {hours} h"


def between(low_s: float | None, high_s: float | None) -> str:
    """`2 h 05 min, at most 3 h` of a median and its P90."""
    if low_s is None:
        return NONE
    if high_s is None or duration(high_s) == duration(low_s):
        return duration(low_s)
    return f"{duration(low_s)}, at most {duration(high_s)}"


def usd(amount: float | None) -> str:
    """Dollars, or a dash."""
    return NONE if amount is None else dollars(amount)


def number(value: float | None) -> str:
    """`12,345`, `3.14`, `0.00123`: figures that count, no more."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def short(value: float | None) -> str:
    """The same in little room: `12.3k`, `4.5M`."""
    if value is None or not math.isfinite(value):
        return NONE
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return number(value)


def percent(share: float | None) -> str:
    """`42 %`; of less than one percent a digit more."""
    if share is None or not math.isfinite(share):
        return NONE
    return f"{100 * share:.1f} %" if 0 < abs(share) < 0.01 else f"{round(100 * share)} %"


def plural(count: int, one: str, many: str = "") -> str:
    """`1 job`, `2 jobs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(words: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def stamp(at: datetime) -> str:
    """`22 Nov 01:15 UTC`: what a time says before the browser makes it relative."""
    return f"{at.astimezone(UTC):%-d %b %H:%M} UTC"


def iso(at: datetime) -> str:
    """To the second, for machines."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def minute(at: datetime) -> datetime:
    """Its minute: for what is drawn against now, and should not be drawn anew with every second."""
    return at.replace(second=0, microsecond=0)


def limit_words(row: str) -> str:
    """One unit of a round's limit: `slots/a100` is a slot of a100."""
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
