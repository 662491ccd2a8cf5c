"""Signatures of the Standard Webhooks specification (version 1, symmetric)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime
from typing import Final

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - of secrets
SECRET_BYTES: Final = 32
"""Length of a new secret; the specification asks for 24 to 64 bytes."""


def written(secret: bytes) -> str:
    """Return a secret as users give it to a library of the specification."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def headers_of(message_id: str, sent_at: datetime, body: bytes, secrets: Sequence[bytes]) -> dict[str, str]:
    """Return the headers of a message, signed with every secret that is valid now."""
    timestamp = str(int(sent_at.timestamp()))
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    signatures = [base64.b64encode(hmac.digest(one, signed, hashlib.sha256)).decode() for one in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
    }
