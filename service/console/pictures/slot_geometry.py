"""Coordinates of the chart of slots over time, as percentages of a strip that moves past a window."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

WINDOWS_S = {"15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400}
"""Lengths of the chart that a viewer can choose, in seconds."""
DEFAULT_WINDOW = "15m"
WINDOW_WORDS = {"15m": "15 minutes", "1h": "hour", "6h": "6 hours", "24h": "24 hours"}
_TICK_S = {900: 180, 3600: 600, 21_600: 3600, 86_400: 14_400}
_STEPS = 20
"""Number of strips that begin within one length of the window. Until the next strip begins, the chart changes
only if a slot does.
"""
NARROW_SHARE = 1 / 300
"""Share of the window below which neighbouring periods are drawn as one block."""


@dataclass(frozen=True, slots=True)
class Strip:
    """A strip of time, longer than the window by two steps. The window shows its part up to now.

    Positions are percentages of the strip, so nothing is drawn again when the window moves along it.
    """

    window_s: int
    begins_s: int
    """Start of the strip in Unix seconds. The window starts at most one step later."""

    @property
    def step_s(self) -> int:
        """Seconds between the starts of two successive strips."""
        return self.window_s // _STEPS

    @property
    def length_s(self) -> int:
        """Length of the strip in seconds. Its end lies in the future."""
        return self.window_s + 2 * self.step_s

    @property
    def width(self) -> str:
        """Width of the strip in percent of the window's width."""
        return f"{100 * self.length_s / self.window_s:g}%"

    @property
    def begins(self) -> datetime:
        """Start of the strip as a UTC time."""
        return datetime.fromtimestamp(self.begins_s, UTC)

    def shift(self, now: datetime) -> str:
        """Return the left edge of the strip in percent of the window, which is at most zero."""
        left_s = self.begins_s - (now.timestamp() - self.window_s)
        return f"{100 * left_s / self.window_s:.3f}%"

    def place(self, at: datetime | None) -> float:
        """Return the position of a time in percent. None is the end, which the window never reaches."""
        if at is None:
            return 100.0
        return min(100.0, max(0.0, 100 * (at.timestamp() - self.begins_s) / self.length_s))

    def ticks(self) -> tuple[tuple[str, str, str], ...]:
        """Return the position, the UTC time of day and the full time of each tick of the axis."""
        every_s = _TICK_S[self.window_s]
        first_s = -(-self.begins_s // every_s) * every_s
        moments = [
            datetime.fromtimestamp(at_s, UTC)
            for at_s in range(first_s, self.begins_s + self.length_s, every_s)
        ]
        return tuple((f"{self.place(at):.3f}%", f"{at:%H:%M}", f"{at:%Y-%m-%dT%H:%M:%SZ}") for at in moments)


def strip_at(now: datetime, window_s: int) -> Strip:
    """Return the strip of a window that ends now."""
    step_s = window_s // _STEPS
    return Strip(window_s, int((now.timestamp() - window_s) // step_s * step_s))
