"""Validity of a node's token, decided from the stored digests."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

UNDER_WAY = timedelta(seconds=60)
"""Grace period for requests under way: sent before the first use of the new token, and received after it."""


class TokenState(StrEnum):
    """State of a presented token.

    CURRENT and PREVIOUS are valid. REPLACED was valid until a moment ago. OLD was valid once; its use now is
    a sign of a leaked token.
    """

    CURRENT = "current"
    PREVIOUS = "previous"
    REPLACED = "replaced"
    OLD = "old"
    UNKNOWN = "unknown"

    @property
    def valid(self) -> bool:
        """Return True if the node's agent may use the token."""
        return self in {TokenState.CURRENT, TokenState.PREVIOUS}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTokens:
    """Digests of a node's newest token and of the previous one.

    `used_since` is the time of the first use of the newest token after another one. It is None before that
    use; until then the previous token is valid too.
    """

    newest_sha256: str
    previous_sha256: str | None
    used_since: datetime | None

    def state_of(self, sha256: str, now: datetime) -> TokenState:
        """Return the state of the token with this digest."""
        if hmac.compare_digest(sha256, self.newest_sha256):
            return TokenState.CURRENT
        if self.previous_sha256 is None or not hmac.compare_digest(sha256, self.previous_sha256):
            return TokenState.UNKNOWN
        if self.used_since is None:
            return TokenState.PREVIOUS
        return TokenState.REPLACED if now < self.used_since + UNDER_WAY else TokenState.OLD
