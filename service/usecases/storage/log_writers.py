"""Permission of nodes to write logs. It is cached, since each node sends a piece every few seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from service.usecases.nodes.credentials import authenticate, check_held
from service.usecases.ports.transactions import Transactions

KNOWN_FOR_S: Final = 60.0
"""Lifetime of a cached permission, in seconds.

A node whose token was invalidated can go on writing logs of its own runs for this long.
"""
_MOST: Final = 20_000


class LogWriters:
    """A cache of permissions in this process. Refusals are not cached."""

    def __init__(self, transactions: Transactions, now: Callable[[], datetime]) -> None:
        self._transactions = transactions
        self._now = now
        self._known: OrderedDict[tuple[str, str, str, int], datetime] = OrderedDict()

    async def check(self, node_id: str, token_sha256: str, job_id: str, generation: int) -> None:
        """Check that the node that presents this token runs the generation of the job, or has run it.

        Raises:
            WrongToken: the token is not valid for the node.
            NotFound: the node has never run that generation.
            Unavailable: the database does not answer.
        """
        now = self._now()
        key = (node_id, token_sha256, job_id, generation)
        known_at = self._known.get(key)
        if known_at is not None and abs(now - known_at) < timedelta(seconds=KNOWN_FOR_S):
            return
        async with self._transactions.begin() as tx:
            await authenticate(tx, node_id, token_sha256, now)
            await check_held(tx.credentials, node_id, job_id, generation)
        self._known[key] = now
        self._known.move_to_end(key)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
