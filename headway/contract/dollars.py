"""Amounts of money in words: one way for messages of the service and tables of the command line."""

from __future__ import annotations

import math

_SMALL_USD = 0.1


def dollars(amount: float) -> str:
    """`$1,234.57`; of less than ten cents two digits that count: `$0.0040`, so that a small amount is never `$0.00`."""
    return dollars_with(amount, digits_after(amount, 2) if 0 < abs(amount) < _SMALL_USD else 2)


def dollars_with(amount: float, digits: int) -> str:
    """Dollars with so many digits after the point."""
    return f"{'-' if amount < 0 else ''}${abs(amount):,.{digits}f}"


def digits_after(amount: float, figures: int) -> int:
    """How many digits after the point show `figures` that count: at least the two of cents, at most nine."""
    if not 0 < abs(amount) < math.inf:
        return 2
    return min(max(2, figures - 1 - math.floor(math.log10(abs(amount)))), 9)
