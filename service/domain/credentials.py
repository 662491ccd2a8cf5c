"""What a node's token is worth: pure rules over the digests that are stored of it."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

UNDER_WAY = timedelta(seconds=60)
"""A request that was sent before the new token was first used may arrive so much later: no reason for alarm."""


class Standing(StrEnum):
    """CURRENT and PREVIOUS are valid. REPLACED was valid until just now. OLD was valid once: whoever still has it should not."""

    CURRENT = "current"
    PREVIOUS = "previous"
    REPLACED = "replaced"
    OLD = "old"
    UNKNOWN = "unknown"

    @property
    def valid(self) -> bool:
        """Whether the node's agent may work with it."""
        return self in {Standing.CURRENT, Standing.PREVIOUS}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTokens:
    """Digests of the newest token of a node and of the one before it.

    `used_since` is when the newest one was used for the first time after another; None: not yet, and that other works too.
    """

    newest_sha256: str
    previous_sha256: str | None
    used_since: datetime | None

    def standing(self, sha256: str, now: datetime) -> Standing:
        """What the token with this digest is worth."""
        if hmac.compare_digest(sha256, self.newest_sha256):
            return Standing.CURRENT
        if self.previous_sha256 is None or not hmac.compare_digest(sha256, self.previous_sha256):
            return Standing.UNKNOWN
        if self.used_since is None:
            return Standing.PREVIOUS
        return Standing.REPLACED if now < self.used_since + UNDER_WAY else Standing.OLD
