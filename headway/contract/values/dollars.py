"""Amounts of money as text, formatted alike in messages of the service and tables of the command line."""

from __future__ import annotations

import math

_SMALL_USD = 0.1


def dollars(amount: float) -> str:
    """Format an amount as `$1,234.57`; below ten cents with two significant digits, such as `$0.0040`."""
    return dollars_with(amount, digits_after(amount, 2) if 0 < abs(amount) < _SMALL_USD else 2)


def dollars_with(amount: float, digits: int) -> str:
    """Format an amount in dollars with this number of decimals."""
    return f"{'-' if amount < 0 else ''}${abs(amount):,.{digits}f}"


def digits_after(amount: float, figures: int) -> int:
    """Return the number of decimals that show `figures` significant digits: at least two, at most nine."""
    if not 0 < abs(amount) < math.inf:
        return 2
    return min(max(2, figures - 1 - math.floor(math.log10(abs(amount)))), 9)
