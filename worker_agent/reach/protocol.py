"""Token of a probe. The service makes it with the key of the probed host, whose listener checks it."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from headway.contract.links import MAX_PROBE_BYTES, PROBE_VERB, probe_token

OK = b"OK\n"
REFUSED = b"NO\n"
MAX_LINE_BYTES = 512
_FIELDS = 5


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """First line of a probe's connection. `source` is the id of the node that probes."""

    source: str
    nonce: int
    size_bytes: int
    token: str

    def line(self) -> bytes:
        """Return the request as a line."""
        return f"{PROBE_VERB} {self.source} {self.nonce} {self.size_bytes} {self.token}\n".encode()

    def has_token_of(self, key: str) -> bool:
        """Return True if the token was made with this key for exactly this request."""
        expected = probe_token(key, self.source, self.nonce, self.size_bytes)
        return hmac.compare_digest(expected.encode(), self.token.encode())


def parse(line: bytes) -> ProbeRequest | None:
    """Return the request in a line, or None if it is not one."""
    fields = line.decode("ascii", "replace").split()
    if len(fields) != _FIELDS or fields[0] != PROBE_VERB:
        return None
    _, source, nonce, size, token = fields
    if not (nonce.isdecimal() and size.isdecimal() and int(size) <= MAX_PROBE_BYTES):
        return None
    return ProbeRequest(source, int(nonce), int(size), token)
