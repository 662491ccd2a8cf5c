"""How often nodes are to report, and how long they may be silent: in a large cluster as often as the service can hear them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REPORTS_PER_S: Final = 200
"""As soon as there would be more than so many regular reports a second, agents are asked to report less often."""
MOST_REPORTS_PER_S: Final = 333
"""Rather than to hear more than so many, a service on two processor cores waits longer for each node."""
REPORTS_IN_SILENCE: Final = 3
"""A node has said nothing for so many times as long as it may take from one report to the next, before it is LOST."""


@dataclass(frozen=True, slots=True)
class SilenceRule:
    """What a cluster was told: nodes are LOST after a silence of `silence_s`, in a large one later, but before ranks that
    nobody hears of end by themselves, which is after `lease_s`.
    """

    silence_s: float = 15.0
    lease_s: float = 300.0

    def silence_of(self, nodes: int) -> float:
        """Seconds for which each of so many nodes may be silent."""
        heard_s = REPORTS_IN_SILENCE * nodes / MOST_REPORTS_PER_S
        return min(max(self.silence_s, heard_s), self.lease_s)

    def slower_s(self, nodes: int, usual_s: float) -> float | None:
        """How often each of so many nodes is to report, if less often than every `usual_s`."""
        every_s = min(nodes / REPORTS_PER_S, self.silence_of(nodes) / REPORTS_IN_SILENCE)
        return every_s if every_s > usual_s else None
