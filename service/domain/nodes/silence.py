"""Report interval of nodes and maximum silence. In a large cluster both grow with the service's capacity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REPORTS_PER_S: Final = 200
"""Number of regular reports a second above which the service asks agents to report less often."""
MOST_REPORTS_PER_S: Final = 333
"""Maximum number of reports a second for a service on two processor cores; beyond it the permitted silence
grows.
"""
REPORTS_IN_SILENCE: Final = 3
"""Number of report intervals without a report after which a node is LOST."""


@dataclass(frozen=True, slots=True)
class SilenceRule:
    """Settings for silent nodes. A node is LOST after a silence of `silence_s`, or later in a large cluster.

    It is LOST before its ranks end by themselves, which they do after `lease_s` without contact.
    """

    silence_s: float = 15.0
    lease_s: float = 300.0

    def silence_of(self, nodes: int) -> float:
        """Return the seconds for which each of `nodes` nodes may be silent."""
        heard_s = REPORTS_IN_SILENCE * nodes / MOST_REPORTS_PER_S
        return min(max(self.silence_s, heard_s), self.lease_s)

    def slower_s(self, nodes: int, usual_s: float) -> float | None:
        """Return the interval in seconds at which each of `nodes` nodes should report, if longer than
        `usual_s`; otherwise None.
        """
        every_s = min(nodes / REPORTS_PER_S, self.silence_of(nodes) / REPORTS_IN_SILENCE)
        return every_s if every_s > usual_s else None
