"""The peers of this rank: the first members, and every membership change that the service orders."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TypeVar

from headway.contract.changes import NO_REASON, ChangeReason
from headway.contract.orders import Order, member_id
from headway.contract.runtime import CannotMeet
from headway.contract.values.meshes import MeshShape
from headway.preemption import StopRequest
from headway.train.collectives.backend import CollectiveBackend
from headway.train.host.environment import Environment
from headway.train.host.output_folder import await_output, give_output
from headway.train.host.reach import why_out_of_reach
from headway.train.membership.control import Mailbox, note_rank
from headway.train.membership.meeting import NeverMet, leave_marker
from headway.train.membership.orders import Orders
from headway.train.membership.peers import Peers

Found = TypeVar("Found")

_POLL_S = 0.002
_MEET_WITHIN_S = 10.0
"""Time limit of a meeting of ranks that train with new ones, which wait for them already.

It is for processes that stall; a host that does not answer ends the meeting after a second.
"""
_WATCH_S = 0.1
_FREED_AFTER_S = 0.5
"""Delay between an order that reports a lost peer and the abort of this rank's waits by its watcher.

A closed connection ends most waits for a lost peer at once; the watcher ends the others.
"""


class Team:
    """The members of this process's generation. `peers` is None between generations.

    Args:
        environment: has the first members, or tells that this process joins later.
        backend: carries the group of each generation.
        timeout_s: time limit of waits for peers.
        stop: a request to stop, which ends every wait here.
        mailbox: sends the failure of a meeting.
    """

    def __init__(
        self,
        environment: Environment,
        backend: CollectiveBackend,
        timeout_s: float,
        stop: StopRequest,
        mailbox: Mailbox,
    ) -> None:
        self.rank = environment.rank
        self.world_size = environment.world_size
        self.generation = environment.generation
        self.mesh = _mesh_for(environment.world_size, environment.mesh)
        self.live = environment.live
        self.peers: Peers | None = None
        self.leaves = False
        """True once the ranks have agreed to stop, and wait for those that save."""
        self.id = member_id(environment.generation, environment.rank)
        self._control = environment.control
        self._born_rank = environment.rank
        self._writes_output = environment.rank == 0 and not environment.joins
        self._first = environment.first_order if environment.live else None
        launched = {member_id(self.generation, rank): rank for rank in range(self.world_size)}
        self._members = dict(self._first.members) if self._first else launched
        self.members_before: frozenset[str] | None = None
        """Members that the last change ended; None if no present member was one of them, or this one does not know yet."""
        self.why = NO_REASON
        """Reason of the last change."""
        self._orders = Orders(environment.control, environment.losses_per_h)
        self._backend = backend
        self._timeout = timedelta(seconds=timeout_s)
        self._stop = stop
        self._mailbox = mailbox
        if self.live:
            threading.Thread(target=self._watch, args=[Orders(environment.control)], daemon=True).start()

    def start(self, environment: Environment) -> None:
        """Meet the first members. A new member does so later, by `meet`, and only makes sure that it reaches them.

        Raises:
            PeersLost: a member, or the store, is gone.
            Superseded: a stop was requested.
        """
        if self._first is None:
            self.peers = Peers.of_launcher(environment, self._backend, self._timeout)
        elif not environment.joins:
            self.meet(self._first)
        elif (why := why_out_of_reach(environment.reach)) is not None:
            raise NeverMet(why)

    @property
    def first_order(self) -> Order:
        """The order for which a new member was started."""
        assert self._first is not None
        return self._first

    def due(self) -> Order | None:
        """Return the newest order that was not followed yet."""
        return self._orders.newer_than(self.generation)

    def losses_per_h(self) -> float | None:
        """Return the latest losses per hour that the service expects; None if it said nothing."""
        return self._orders.losses_per_h()

    @property
    def members(self) -> dict[str, int]:
        """Present rank of each member. A new member learns the names of the others from a peer: see `know`."""
        return dict(self._members)

    @property
    def names(self) -> list[str]:
        """Names of the members, by rank."""
        return sorted(self._members, key=self._members.__getitem__)

    @property
    def joined(self) -> set[int]:
        """Ranks that have joined with the present generation others that trained before."""
        new = {rank for name, rank in self._members.items() if name == member_id(self.generation, rank)}
        return new if len(new) < len(self._members) else set()

    def know(self, members: Mapping[str, int], before: frozenset[str] | None, why: ChangeReason) -> None:
        """Take the names of the present members, and of those before, and the reason of the change from a peer.

        A new member knows only its own.
        """
        self._members, self.members_before, self.why = dict(members), before, why

    def note_members(self) -> None:
        """Keep the names of the present members, which a change ends. A new member learns them by `know`."""
        self.members_before = None if self.peers is None else frozenset(self._members)

    @property
    def data_rank(self) -> int:
        """Number of this rank's pipeline among those that divide the samples, which are single ranks without `pp` and `tp`."""
        return self.mesh.data_rank(self.rank)

    @property
    def counts_samples(self) -> bool:
        """True if this rank states the samples of its pipeline, whose ranks take the same ones."""
        return self.rank in range(self.mesh.size)[self.mesh.leaders]

    def replaces_everyone(self, order: Order) -> bool:
        """Return True if none of the present members is a member under the order."""
        return self._members.keys().isdisjoint(order.members)

    def ranks_before(self, order: Order) -> list[int | None]:
        """Return the present rank of each rank under the order; None for a new member."""
        by_rank = sorted(order.members, key=order.members.__getitem__)
        return [self._members.get(member) for member in by_rank]

    def mesh_under(self, order: Order) -> MeshShape:
        """Return the mesh of a sharded model's ranks under the order."""
        return _mesh_for(order.world_size, order.mesh)

    def includes_me(self, order: Order) -> bool:
        """Return True if this process is a member under the order."""
        return self.id in order.members

    def leave(self) -> None:
        """Leave the group of the present peers."""
        if self.peers is not None:
            self.peers.leave()
            self.peers = None

    def abort(self) -> None:
        """Leave the present peers, and release the waits of peers for this rank."""
        if self.peers is not None:
            self.peers.abort()
        self.leave()

    def meet(self, order: Order, *, patient: bool = False) -> Peers:
        """Join the generation of the order, once all its members have arrived.

        `patient` is for new members: training ranks arrive at their next boundary, which may take long.

        Raises:
            PeersLost: a member, or the store, is gone.
            Superseded: there is a newer order, or a stop was requested.
        """
        rank = order.members[self.id]
        wait_s = math.inf if patient else self._timeout.total_seconds()
        with_newcomers = not order.lost and not order.members.keys() <= self._members.keys()
        patience_s = _MEET_WITHIN_S if with_newcomers and not patient else math.inf
        superseded = partial(self._superseded, order)
        try:
            self.peers = Peers.meet(order, rank, self._backend, self._timeout, wait_s, superseded, patience_s)
        except NeverMet as failure:
            if with_newcomers and not superseded():
                self._mailbox.send(CannotMeet, meeting=order.generation, why=str(failure))
            raise
        if rank != self.rank:
            note_rank(self._control, born_rank=self._born_rank, rank=rank)
        self.rank, self.world_size, self.generation = rank, order.world_size, order.generation
        self.mesh = self.mesh_under(order)
        self._members = dict(order.members)
        self._hand_output_over(superseded)
        return self.peers

    def _hand_output_over(self, superseded: Callable[[], bool]) -> None:
        """Become the writer of the output folder as rank 0, or stop being it."""
        if self.rank == 0 and not self._writes_output:
            self._writes_output = await_output(self._control, self.generation, superseded)
        elif self.rank != 0 and self._writes_output:
            self._writes_output = False
            give_output(self._control, self.generation)

    def await_order(self, after: int) -> Order | None:
        """Wait for the next order for a later generation; None if none comes in time, or a stop is requested."""
        give_up_s = time.monotonic() + self._timeout.total_seconds()
        return self._wait_for(lambda: self._orders.newer_than(after), give_up_s)

    def wait_for_marker(self, name: str, order: Order) -> str | None:
        """Wait for a marker in the members' store; None on a newer order, a stop or the time limit.

        Raises:
            PeersLost: the store is gone.
        """
        peers = self.peers
        assert peers is not None
        give_up_s = time.monotonic() + self._timeout.total_seconds()

        def found() -> str | None:
            return "" if self._orders.newer_than(order.generation) else peers.mark(name)

        return self._wait_for(found, give_up_s) or None

    def leave_marker(self, name: str, mark: str, order: Order) -> None:
        """Leave a marker for the members under an order.

        Raises:
            PeersLost: their store is gone.
            Superseded: the store does not answer, and there is a newer order, or a stop was requested.
        """
        leave_marker(order, name, mark, self._timeout, partial(self._superseded, order))

    def _superseded(self, order: Order) -> bool:
        return self._stop.received or self._orders.newer_than(order.generation) is not None

    def _wait_for(self, find: Callable[[], Found | None], give_up_s: float) -> Found | None:
        """Poll `find` until it returns a result; None after `give_up_s` (monotonic), or on a request to stop."""
        while not self._stop.received and time.monotonic() < give_up_s:
            found = find()
            if found is not None:
                return found
            time.sleep(_POLL_S)
        return None

    def _watch(self, orders: Orders) -> None:
        """Release this rank in a thread, if it hangs on a peer that the service has declared lost."""
        while True:
            time.sleep(_WATCH_S)
            peers, order = self.peers, orders.newer_than(self.generation)
            if peers is None or peers.world_size == 1 or order is None or not order.lost:
                continue
            time.sleep(_FREED_AFTER_S)
            if self.peers is peers and not peers.aborted:
                peers.abort()


def _mesh_for(world_size: int, mesh: MeshShape | None) -> MeshShape:
    """Return the mesh of so many ranks: the given one, or one dimension in which all divide the parameters.

    Raises:
        ValueError: the mesh has another number of ranks.
    """
    if mesh is None:
        return MeshShape(fsdp=world_size)
    if mesh.size != world_size:
        raise ValueError(f"the mesh {mesh} has {mesh.size} ranks, but {world_size} were started")
    return mesh
