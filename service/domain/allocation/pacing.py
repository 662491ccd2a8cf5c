"""How many changes for the better a round begins: no more than nodes and service have room for.

A change of a job is orders to all of its nodes, and news from each of them. Where many jobs want one at the same time, as after
a thousand submits, that is more than the service can hear of, and what is urgent would stand behind what is only better. So
changes that are better for their own job wait for a round with room. What others wait for, or what must be, never does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.domain.cluster import Orders
from service.domain.jobs import Allocation

ORDERS = 128
"""To nodes, on their way at a time: what a service on two processor cores hears about again within two seconds."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A change that is better for its job by `gain`, in the unit of the policy, and takes so many `orders`."""

    row: int
    gain: float
    orders: int


def orders_of(before: Allocation, after: Allocation) -> int:
    """To every node where ranks end, and to every node where ranks begin."""
    return len(before) + len(after)


def put_off(wishes: Sequence[Wish], orders: Orders) -> Mapping[int, str]:
    """Rows whose change waits, and until when, for people. Those that gain most by each order come first, and none overtakes
    another; where nothing is on its way, the first has room, however large it is.
    """
    if orders.late:
        return {wish.row: "reports of nodes are answered in time again" for wish in wishes}
    begun, full = orders.untaken, False
    waits: dict[int, str] = {}
    for wish in sorted(wishes, key=lambda wish: (-wish.gain / wish.orders, wish.row)):
        full = full or (begun > 0 and begun + wish.orders > ORDERS)
        if full:
            waits[wish.row] = f"nodes have taken up {begun} orders that go before"
        else:
            begun += wish.orders
    return waits
