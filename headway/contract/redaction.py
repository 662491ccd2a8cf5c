"""Credentials in text: how they are known, and text without them. Standard library only."""

from __future__ import annotations

import re

TOKEN = re.compile(r"hw[a-z]{0,2}_[A-Za-z0-9_-]{20,}")
"""What looks like a token of Headway, whosever it is."""
HIDDEN = "[hidden]"
_IN_URL = re.compile(r"(?<=://)([^/\s:@'\"]*):[^/\s@'\"]+@")
"""User and password in front of a host."""


def without_tokens(text: str) -> str:
    """The text, with what looks like a token replaced."""
    return TOKEN.sub(HIDDEN, text) if "hw" in text else text


def without_credentials(text: str) -> str:
    """The text, without tokens and without the passwords of URLs."""
    return _IN_URL.sub(rf"\1:{HIDDEN}@", without_tokens(text)) if "://" in text else without_tokens(text)
