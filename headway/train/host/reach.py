"""Sentences of a rank about a host that it cannot reach."""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from headway.contract.runtime import CANNOT_REACH
from headway.train.host.output import warn

_AGAIN_S = 60.0
"""Seconds between two warnings of the same wait."""
_CUT_OFF_S = 30.0
"""Seconds without any answer after which a host counts as cut off. One whose store is only late refuses connections."""
_ANSWER_WITHIN_S = 3.0
"""Limit of a connection to a server that runs: a first packet that is lost is sent again after 1 s."""
_AT_A_TIME = 32
_SILENT = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})
_OF_GLOO = re.compile(r"(?P<what>[^\]]*?)(, )?remote=\[(?P<host>[^\]]+)\]:(?P<port>\d+)")
"""Gloo's error of a connection: the source file in brackets, the error, and the peer's address."""


def why_out_of_reach(addresses: Collection[str]) -> str | None:
    """Return a sentence about the first server at `host:port` that does not answer; None if all do.

    Takes a few seconds at most.
    """
    with ThreadPoolExecutor(_AT_A_TIME) as tries:
        found = list(tries.map(_why_no_answer, addresses))
    return next((one for one in found if one is not None), None)


def try_server(address: str, timeout_s: float) -> str:
    """Connect to the server at `host:port`, and disconnect. Return the numeric address of the host that answered.

    Raises OSError if it does not answer in time.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s) as connection:
        return socket.getnameinfo(connection.getpeername(), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]


def _why_no_answer(address: str) -> str | None:
    try:
        try_server(address, _ANSWER_WITHIN_S)
    except OSError as error:
        return _sentence(address, _reason(error))
    return None


def reach_failure(message: str) -> str:
    """Return the first line of an error of torch; of a connection that was not made, a sentence with both ends."""
    first = message.splitlines()[0] if message else ""
    found = _OF_GLOO.search(first)
    if found is None or "connect" not in first:
        return first
    why = found["what"].strip().removesuffix(",").rpartition("SO_ERROR: ")[2]
    return _sentence(f"{found['host']}:{found['port']}", why or "no answer")


class ReachPatience:
    """The wait for a server at `host:port`. It warns at once, and then once a minute."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._next_s = float("-inf")
        self._silent_since_s: float | None = None

    def is_cut_off(self, error: Exception) -> bool:
        """Return True once the host has not even refused a connection for `_CUT_OFF_S`; `error` is that of the last try."""
        silent = isinstance(error, TimeoutError) or (isinstance(error, OSError) and error.errno in _SILENT)
        if not silent:
            self._silent_since_s = None
            return False
        self._silent_since_s = self._silent_since_s or time.monotonic()
        return time.monotonic() - self._silent_since_s > _CUT_OFF_S

    def warn(self, error: Exception) -> None:
        """Say that the server does not answer, unless it was said within the last minute."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _AGAIN_S
            warn(f"{self.failure(error)}; trying again")

    def failure(self, error: Exception) -> str:
        """Return the sentence that names both ends."""
        return _sentence(self._address, _reason(error))


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).splitlines()[0]


def _sentence(address: str, why: str) -> str:
    return f"{socket.gethostname()} {CANNOT_REACH} {address}: {why}"
