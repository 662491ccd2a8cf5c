"""Delivery of due commands to their nodes' streams.

PostgreSQL holds the commands, Redis only transports them. Both remember the number of the latest delivery: a
queue that knows a later one than the database proves that the database has lost its latest commits.
"""

from __future__ import annotations

from datetime import datetime

import structlog

from service.domain.life.life import Launch
from service.usecases.ports.rounds import CommandQueue
from service.usecases.ports.transactions import Transactions
from service.usecases.upkeep.lost_tail import lacks, recover

log = structlog.get_logger()

PUSH_AGAIN_S = 5.0
"""Time after which an unacknowledged command is pushed again, in seconds, since Redis may have lost it."""
BATCH = 500


async def deliver(transactions: Transactions, queue: CommandQueue, *, launch: Launch, now: datetime) -> int:
    """Push the commands that are due. Return their number.

    Commands are marked as pushed first and pushed after the commit. A crash in between delays them by
    `PUSH_AGAIN_S`. Handling is idempotent, so a second push does no harm.

    A delivery without commands is numbered as well, so that a lost tail is noticed before the next command. The queue
    is asked before the database raises the number, so that the database cannot catch up unnoticed.

    Raises:
        Superseded: another process leads.
        Unavailable: the database or the queue does not answer.
    """
    seen = await queue.latest()
    async with transactions.begin() as tx:
        known = await tx.commands.latest_delivery()
        lost = seen is not None and lacks(known, seen)
        due = [] if lost else await tx.commands.take_due(now, PUSH_AGAIN_S, BATCH)
        delivery = None if lost else await tx.commands.begin_delivery(now)
    if delivery is None:
        assert seen is not None, "without it nothing is known to be lost"
        await recover(transactions, queue, seen, known, launch=launch, now=now)
        return 0
    if not await queue.push(due, delivery):
        log.warning("delivery_late", number=delivery.number, what_next="another leader has delivered since")
        return 0
    return len(due)
