"""Credentials of Headway in text: how they are known, and text without them. Standard library only."""

from __future__ import annotations

import re

TOKEN = re.compile(r"hw[a-z]{0,2}_[A-Za-z0-9_-]{20,}")
"""What looks like a token of Headway, whosever it is."""
HIDDEN = "[hidden]"


def without_tokens(text: str) -> str:
    """The text, with what looks like a token replaced."""
    return TOKEN.sub(HIDDEN, text) if "hw" in text else text
