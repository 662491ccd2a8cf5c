"""Backpressure on optional changes: a round starts no more of them than nodes and service can handle.

A change of a job causes commands to all of its nodes and reports from each of them. Many simultaneous
changes, as after a thousand submissions, exceed the capacity of the service, and would delay urgent changes.
Changes that only improve their own job therefore wait for a round with capacity. Changes that other jobs wait
for, or that are mandatory, never wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.domain.cluster.snapshot import Orders
from service.domain.jobs.job import Allocation

ORDERS = 128
"""Maximum number of pending commands to nodes: a service on two processor cores gets their reports within two
seconds.
"""


@dataclass(frozen=True, slots=True)
class OptionalChange:
    """An optional change that gains its job `gain`, in the unit of the policy, and causes `orders` commands."""

    row: int
    gain: float
    orders: int


def orders_of(before: Allocation, after: Allocation) -> int:
    """Return the number of commands of a change: one to every node where ranks end, and one to every node
    where ranks begin.
    """
    return len(before) + len(after)


def put_off(wishes: Sequence[OptionalChange], orders: Orders) -> Mapping[int, str]:
    """Return the rows whose change waits, with the condition for it as text for users.

    The changes with the greatest gain per command come first, and none overtakes another. If no command is
    pending, the first change may start, however large it is.
    """
    if orders.late:
        return {wish.row: "the service again answers reports of nodes in time" for wish in wishes}
    pending, full = orders.untaken, False
    waits: dict[int, str] = {}
    for wish in sorted(wishes, key=lambda wish: (-wish.gain / wish.orders, wish.row)):
        full = full or (pending > 0 and pending + wish.orders > ORDERS)
        if full:
            waits[wish.row] = f"nodes have acknowledged {pending} earlier commands"
        else:
            pending += wish.orders
    return waits
