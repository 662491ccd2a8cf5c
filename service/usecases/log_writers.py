"""Which node may write which log. Pieces come every few seconds, each with the same question, so the answer is remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from service.usecases.node_credentials import authenticate, check_held
from service.usecases.ports import Transactions

KNOWN_FOR_S: Final = 60.0
"""A node whose token ends may write on, into logs of what it has run and nowhere else, for so long."""
_MOST: Final = 20_000


class LogWriters:
    """What this process has found out lately. Only what is allowed is remembered."""

    def __init__(self, transactions: Transactions, now: Callable[[], datetime]) -> None:
        self._transactions = transactions
        self._now = now
        self._known: OrderedDict[tuple[str, str, str, int], datetime] = OrderedDict()

    async def check(self, node_id: str, token_sha256: str, job_id: str, generation: int) -> None:
        """Return if the node that shows this token runs the generation of the job, or has run it.

        Raises:
            WrongToken: it is not the node's.
            NotFound: the node has nothing to do with it.
            Unavailable: the database does not answer.
        """
        now = self._now()
        asked = (node_id, token_sha256, job_id, generation)
        known_at = self._known.get(asked)
        if known_at is not None and abs(now - known_at) < timedelta(seconds=KNOWN_FOR_S):
            return
        async with self._transactions.begin() as tx:
            await authenticate(tx, node_id, token_sha256, now)
            await check_held(tx.held_runs, node_id, job_id, generation)
        self._known[asked] = now
        self._known.move_to_end(asked)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
