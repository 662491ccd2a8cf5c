"""Push commands that are due to their nodes' streams. Postgres is the truth, Redis the queue."""

from __future__ import annotations

from datetime import datetime

from service.usecases.outside_ports import CommandQueue
from service.usecases.ports import Transactions

PUSH_AGAIN_S = 5.0
"""A command that was not acknowledged for this long is pushed again: Redis may have lost it."""
BATCH = 500


async def deliver(transactions: Transactions, queue: CommandQueue, *, now: datetime) -> int:
    """How many commands were pushed.

    They are marked as pushed first and pushed after the commit. A crash in between delays them by
    `PUSH_AGAIN_S`; handling is idempotent, so a second push does no harm.
    """
    async with transactions.begin() as tx:
        due = await tx.commands.take_due(now, PUSH_AGAIN_S, BATCH)
    if due:
        await queue.push(due)
    return len(due)
