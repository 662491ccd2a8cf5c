"""Extraction of the traceback from the last output of a rank."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headway.contract.runtime import CANNOT_REACH, PEER_LOST, REPLICAS_DIFFER

_BEGIN = "Traceback (most recent call last):"
_RANK = re.compile(r"^\[rank\d+\]:\s?")
"""Prefix that PyTorch writes before each line of a traceback while a process group exists."""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_AFTERMATH = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|socket (closed|timeout)|DistBackendError|DistNetworkError|"
    r"remote process exited|\bgloo\b|\bNCCL\b|store->get|TCPStore|peer .* (closed|left|is gone)|"
    rf"\b{CANNOT_REACH} \S+:\d+",
    re.IGNORECASE,
)
"""Errors of ranks that lost a peer: the peer's own error is the cause."""
_ERROR = re.compile(r"[\w.]*(?:Error|PeersLost|NeverMet): (.*)")
_NEVER_MET = re.compile(
    rf"\b{CANNOT_REACH} \S+:\d+: |connectFullMesh failed|client socket has (timed out|failed to connect)"
)
"""Errors of ranks that could not connect to a store or a peer, by the library and by torch."""

_DIFFER = re.compile(rf"headway: {REPLICAS_DIFFER}")
"""The library's line about ranks that differ, which it writes before it leaves."""
_LEFT = re.compile(rf"headway: {PEER_LOST}\b")
"""The library's line about a lost peer, which it writes before it leaves."""
_WHY_RETRY = re.compile(r"headway: (.*); this process exits with a request for a restart")
"""The library's line about any end with `EXIT_RETRY`, with its reason."""


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


def left_for_a_peer(log_tail: Sequence[str]) -> bool:
    """Return True if the library said that the rank leaves because a peer was lost."""
    return any(_LEFT.match(line) for line in log_tail)


def why_retry(log_tail: Sequence[str]) -> str:
    """Return the reason that the library gave for a restart; empty for any other end."""
    found = [match[1] for line in log_tail if (match := _WHY_RETRY.match(line))]
    return found[-1] if found else ""


def never_met(log_tail: Sequence[str]) -> str | None:
    """Return the error of a rank that could not connect to a store or a peer; None for any other end.

    The beginning of its traceback may be missing: the exceptions of a connection are chained.
    """
    errors = [found[1] for line in log_tail if (found := _ERROR.match(_RANK.sub("", line)))]
    return errors[-1] if errors and _NEVER_MET.search(errors[-1]) is not None else None


def what_differs(log_tail: Sequence[str]) -> str | None:
    """Return what a rank found different between ranks that must be equal; None for any other end."""
    said = [line.partition(REPLICAS_DIFFER)[2].strip() for line in log_tail if _DIFFER.match(line)]
    return said[-1] if said else None
