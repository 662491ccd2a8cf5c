"""Extraction of the traceback from the last output of a rank."""

from __future__ import annotations

import re
from collections.abc import Sequence

_BEGIN = "Traceback (most recent call last):"
_RANK = re.compile(r"^\[rank\d+\]:\s?")
"""Prefix that PyTorch writes before each line of a traceback while a process group exists."""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_AFTERMATH = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|socket (closed|timeout)|DistBackendError|DistNetworkError|"
    r"remote process exited|\bgloo\b|\bNCCL\b|store->get|TCPStore|peer .* (closed|left|is gone)",
    re.IGNORECASE,
)
"""Errors of ranks that lost a peer: the peer's own error is the cause."""


def traceback_in(log_tail: Sequence[str]) -> list[str]:
    """Return the lines of the last traceback with its chained exceptions; empty if there is none.

    The last line names the exception, whatever was printed after it.
    """
    lines = [_RANK.sub("", line).rstrip() for line in log_tail]
    begins = [number for number, line in enumerate(lines) if line.strip() == _BEGIN]
    if not begins:
        return []
    first = begins[-1]
    while (before := _chained_before(lines, first, begins)) is not None:
        first = before
    last = begins[-1] + 1
    while last < len(lines) and (not lines[last].strip() or lines[last][0].isspace()):
        last += 1
    return [line for line in lines[first : last + 1] if line.strip()]


def _chained_before(lines: Sequence[str], begin: int, begins: Sequence[int]) -> int | None:
    """Return the line number of the traceback that the one at `begin` was raised from; None if there is none."""
    earlier = [one for one in begins if one < begin]
    between = lines[max(begin - 3, 0) : begin]
    chained = any(line.startswith(_CHAINED) for line in between)
    return earlier[-1] if earlier and chained else None


def lost_a_peer(log_tail: Sequence[str]) -> bool:
    """Return True if a rank ended because a peer had ended: its traceback ends with a connection error."""
    found = traceback_in(log_tail)
    return bool(found) and _AFTERMATH.search(found[-1]) is not None
