"""Detection and removal of credentials in text. Standard library only."""

from __future__ import annotations

import re

TOKEN = re.compile(r"hw[a-z]{0,2}_[A-Za-z0-9_-]{20,}")
"""Pattern of the tokens of Headway, of every kind."""
HIDDEN = "[hidden]"
_IN_URL = re.compile(r"(?<=://)([^/\s:@'\"]*):[^/\s@'\"]+@")
"""User name and password in front of a host."""


def without_tokens(text: str) -> str:
    """Return the text with every token replaced by `[hidden]`."""
    return TOKEN.sub(HIDDEN, text) if "hw" in text else text


def without_credentials(text: str) -> str:
    """Return the text without tokens and without the passwords of URLs."""
    return _IN_URL.sub(rf"\1:{HIDDEN}@", without_tokens(text)) if "://" in text else without_tokens(text)
