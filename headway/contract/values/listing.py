"""Lists of names in messages."""

from __future__ import annotations

from collections.abc import Sequence


def all_of(names: Sequence[str]) -> str:
    """Return all names: `a, b and c`."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def some_of(names: Sequence[str], most: int) -> str:
    """Return the first names and the number of the others: `a, b and 2 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
