"""Delivery of due commands to their nodes' streams.

PostgreSQL holds the commands, Redis only transports them.
"""

from __future__ import annotations

from datetime import datetime

from service.usecases.ports.rounds import CommandQueue
from service.usecases.ports.transactions import Transactions

PUSH_AGAIN_S = 5.0
"""Time after which an unacknowledged command is pushed again, in seconds, since Redis may have lost it."""
BATCH = 500


async def deliver(transactions: Transactions, queue: CommandQueue, *, now: datetime) -> int:
    """Push the commands that are due. Return their number.

    Commands are marked as pushed first and pushed after the commit. A crash in between delays them by
    `PUSH_AGAIN_S`. Handling is idempotent, so a second push does no harm.
    """
    async with transactions.begin() as tx:
        due = await tx.commands.take_due(now, PUSH_AGAIN_S, BATCH)
    if due:
        await queue.push(due)
    return len(due)
