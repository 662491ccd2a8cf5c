"""Recovery after a failover of the database to a replica that lacks the latest commits.

Agents have then been sent commands that the database does not know, and it would assign the numbers of their
generations again. The remedy is that of a restored backup: see `service.usecases.upkeep.restore`.
"""

from __future__ import annotations

from datetime import datetime

import structlog

from service.domain.life.life import Launch
from service.usecases.ports.rounds import CommandQueue, Delivery
from service.usecases.ports.transactions import Transactions
from service.usecases.upkeep.restore import Restored, bring_back

log = structlog.get_logger()


def lacks(known: Delivery | None, seen: Delivery) -> bool:
    """Return True if a database whose latest delivery is `known` cannot have committed the delivery `seen`.

    Every delivery is committed before it is pushed. Therefore `known`, read after `seen`, is at least as late in a
    database that keeps its commits, whoever leads.
    """
    if known is None or known.number != seen.number:
        return known is None or known.number < seen.number
    return _ms(known) != _ms(seen)


async def recover(
    transactions: Transactions,
    queue: CommandQueue,
    seen: Delivery,
    known: Delivery | None,
    *,
    launch: Launch,
    now: datetime,
) -> Restored | None:
    """Detach a database that `lacks` the delivery `seen` from the cluster. Return None if another process has done so.

    Raises:
        Superseded: another process leads.
        Unavailable: the database or the queue does not answer; the next delivery begins again.
    """
    number = await queue.empty(seen.number)
    if number is None:
        return None
    message = (
        f"the database lost commits, as a failover to a late replica does: commands were delivered until {_at(seen)}, and it "
        f"knows of none after {'its beginning' if known is None else _at(known)}"
    )
    async with transactions.begin() as tx:
        await tx.commands.skip_deliveries(number, now)
        # The term stays: the transaction is refused unless this process leads.
        done = await bring_back(
            tx, launch, now, terms_left_out=0, message=message, as_of=None if known is None else known.at
        )
    log.error(
        "database_lost_commits",
        known_until=None if known is None else known.at.isoformat(),
        delivered_until=seen.at.isoformat(),
        restarted=done.stopped,
        waiting=done.waiting,
        nodes=done.nodes,
        what_next="submit again the jobs of that time that are missing, and check cancels, budgets and tokens of that time; "
        "synchronous replication prevents the loss",
    )
    return done


def _at(delivery: Delivery) -> str:
    return f"{delivery.at:%Y-%m-%d %H:%M:%S} UTC"


def _ms(delivery: Delivery) -> int:
    return int(delivery.at.timestamp() * 1000)
