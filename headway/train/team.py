"""Who this rank trains with: the first members, and every change of them that the service orders."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch

from headway.contract.orders import Order, member_id
from headway.preemption import StopRequest
from headway.train.environment import Environment
from headway.train.membership import Orders
from headway.train.peers import Peers, leave_mark

Found = TypeVar("Found")

_POLL_S = 0.002
_WATCH_S = 0.1
_FREED_AFTER_S = 0.5
"""A closed connection frees a rank from its wait for a lost peer at once. One that hears nothing is freed by its
own watcher, so much later, when an order has said that a peer is lost.
"""


class Team:
    """The members of the generation that this process trains in. `peers` is None while there is none.

    Args:
        environment: says who the first members are, or that this process joins later.
        device: of this rank.
        timeout_s: how long peers are waited for.
        stop: a request to stop ends every wait here.
    """

    def __init__(
        self, environment: Environment, device: torch.device, timeout_s: float, stop: StopRequest
    ) -> None:
        self.rank = environment.rank
        self.world_size = environment.world_size
        self.generation = environment.generation
        self.live = environment.live
        self.peers: Peers | None = None
        self._id = member_id(environment.generation, environment.rank)
        self._first = environment.first_order if environment.live else None
        self._members = dict(self._first.members) if self._first else {}
        self._orders = Orders(environment.control)
        self._device = device
        self._timeout = timedelta(seconds=timeout_s)
        self._stop = stop
        if self.live:
            threading.Thread(target=self._watch, args=[Orders(environment.control)], daemon=True).start()

    def start(self, environment: Environment) -> None:
        """Meet the first members. A newcomer does so later, by `meet`.

        Raises:
            PeersLost: a member, or the store, is gone.
            Superseded: a stop was requested.
        """
        if self._first is None:
            self.peers = Peers.of_launcher(environment, self._device, self._timeout)
        elif not environment.joins:
            self.meet(self._first)

    @property
    def first_order(self) -> Order:
        """What a newcomer was started for."""
        assert self._first is not None
        return self._first

    def due(self) -> Order | None:
        """The newest order that has not been followed."""
        return self._orders.newer_than(self.generation)

    def leaves_nobody(self, order: Order) -> bool:
        """Whether none of the present members is a member under the order."""
        return self._members.keys().isdisjoint(order.members)

    def ranks_before(self, order: Order) -> list[int | None]:
        """For each rank under the order the rank that it has among the present members, None for a newcomer."""
        by_rank = sorted(order.members, key=order.members.__getitem__)
        return [self._members.get(member) for member in by_rank]

    def includes_me(self, order: Order) -> bool:
        """Whether this process is a member under the order."""
        return self._id in order.members

    def part(self) -> None:
        """There are no peers any more, until `meet`."""
        if self.peers is not None:
            self.peers.part()
            self.peers = None

    def lose(self) -> None:
        """As `part`, when some peers may still wait for this rank: they are freed."""
        if self.peers is not None:
            self.peers.abort()
        self.part()

    def meet(self, order: Order, *, patient: bool = False) -> Peers:
        """Be a member under the order, once all members have come.

        `patient` is a newcomer: those who train come at their next boundary, which may be far away.

        Raises:
            PeersLost: a member, or the store, is gone.
            Superseded: there is a newer order, or a stop was requested.
        """
        rank = order.members[self._id]

        wait_s = math.inf if patient else self._timeout.total_seconds()
        self.peers = Peers.meet(
            order, rank, self._device, self._timeout, wait_s, partial(self._superseded, order)
        )
        self.rank, self.world_size, self.generation = rank, order.world_size, order.generation
        self._members = dict(order.members)
        return self.peers

    def await_order(self, after: int) -> Order | None:
        """The next order about a generation after this one; None when none came in time, or a stop is requested."""
        give_up_s = time.monotonic() + self._timeout.total_seconds()
        return self._wait_for(lambda: self._orders.newer_than(after), give_up_s)

    def wait_for_mark(self, name: str, order: Order) -> str | None:
        """The mark in the store of the present members, once somebody leaves it; None when something else comes up.

        Raises:
            PeersLost: the store is gone.
        """
        peers = self.peers
        assert peers is not None
        give_up_s = time.monotonic() + self._timeout.total_seconds()

        def found() -> str | None:
            return "" if self._orders.newer_than(order.generation) else peers.mark(name)

        return self._wait_for(found, give_up_s) or None

    def leave_mark(self, name: str, mark: str, order: Order) -> None:
        """Leave a mark for the members under an order.

        Raises:
            PeersLost: their store is gone.
            Superseded: it seems to be, and there is a newer order, or a stop was requested.
        """
        leave_mark(order, name, mark, self._timeout, partial(self._superseded, order))

    def _superseded(self, order: Order) -> bool:
        return self._stop.received or self._orders.newer_than(order.generation) is not None

    def _wait_for(self, find: Callable[[], Found | None], give_up_s: float) -> Found | None:
        """What `find` finds, sooner or later; None after `give_up_s` (monotonic), or on a request to stop."""
        while not self._stop.received and time.monotonic() < give_up_s:
            found = find()
            if found is not None:
                return found
            time.sleep(_POLL_S)
        return None

    def _watch(self, orders: Orders) -> None:
        """A thread's body: free this rank when it hangs on a peer that the service has given up."""
        while True:
            time.sleep(_WATCH_S)
            peers, order = self.peers, orders.newer_than(self.generation)
            if peers is None or peers.world_size == 1 or order is None or not order.lost:
                continue
            time.sleep(_FREED_AFTER_S)
            if self.peers is peers and not peers.aborted:
                peers.abort()
