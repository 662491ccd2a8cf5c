"""Quantities in the notation of users, read and formatted: `90s`, `5m`, `16GiB`."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BeforeValidator

_NUMBER = r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_DURATION = re.compile(rf"^{_NUMBER}\s*(ms|s|m|h|d)?$", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(rf"^{_NUMBER}\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)?$", re.ASCII)
_BYTES = {
    None: 1,
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}


def duration_s(text: str) -> float:
    """Return seconds from `30`, `30s`, `5m`, `1.5h`.

    Raises:
        ValueError: the text is not a duration.
    """
    match = _DURATION.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write it like 30s, 5m or 2h")
    return _finite(float(match[1]) * _SECONDS[match[2]])


def parse_duration_s(value: object) -> object:
    """Return the seconds of a text; other types pass through to pydantic."""
    return duration_s(value) if isinstance(value, str) else value


def duration(seconds: float) -> str:
    """Format a duration in at most two units: `50ms`, `0.3s`, `45s`, `3m20s`, `2h05m`, `4d02h`; `-` if it is infinite."""
    if not math.isfinite(seconds):
        return "-"
    if 0 < seconds < 0.0995:
        return f"{max(1, round(1000 * seconds))}ms"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{seconds:.1f}s" if 0 < seconds < 2.95 else f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def parse_size_bytes(value: object) -> object:
    """Return bytes from `1024`, `"16GiB"`, `"500 MB"`; other types pass through to pydantic.

    Raises:
        ValueError: the text is not a size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a size; write it like 512MiB or 16GiB")
    return int(_finite(float(match[1]) * _BYTES[match[2]]))


def size_text(size_bytes: float) -> str:
    """Format bytes as `512 B` or `1.5 GiB`: three digits, in the largest unit that is not below 1."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        units = size_bytes / _BYTES[unit]
        if units >= 1:
            return f"{units:.0f} {unit}" if units >= 100 else f"{units:.3g} {unit}"
    return f"{size_bytes:.0f} B"


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("a number with so many digits is too large")
    return number


Seconds = Annotated[float, BeforeValidator(parse_duration_s)]
SizeBytes = Annotated[int, BeforeValidator(parse_size_bytes)]


def tenths(number: float) -> str:
    """Return the number with one decimal, rounded down, so that only complete work looks complete."""
    return f"{math.floor(10 * number + 1e-6) / 10:.1f}"
