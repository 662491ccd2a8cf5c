"""The ranks of one generation: how they meet, exchange data, and separate.

Agreements use a separate gloo group, so that they neither wait for a device nor interfere with the collectives of the
training. Every failure of a peer is raised as `PeersLost`.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

from headway.contract.orders import Order
from headway.train.collectives.backend import CollectiveBackend, Rendezvous
from headway.train.collectives.groups import CONNECT_TIMEOUT, gloo_group
from headway.train.host.environment import Environment

_TRY = timedelta(seconds=1)
"""Timeout of one attempt to reach a store; torch cannot be interrupted during an attempt."""
_LONGEST_S = 30 * 86_400.0
"""Replacement for `inf`, because torch needs a finite number."""


class PeersLost(Exception):  # not an error: training handles it at the next boundary
    """Raised when a peer is gone, or its messages do not arrive."""


class Superseded(Exception):  # likewise
    """Raised when another event became due during a wait for members."""


class Pending:
    """Numbers of every rank whose collection is in progress."""

    def __init__(self, mine: torch.Tensor, everyone: list[torch.Tensor], work: Any) -> None:
        self._mine = mine  # the collective reads it until it ends
        self._everyone = everyone
        self._work = work

    def wait(self) -> list[list[int]]:
        """Return the numbers of each rank, by rank.

        Raises:
            PeersLost: a peer is gone.
        """
        with _peers_may_be_lost():
            self._work.wait()
        return [numbers.tolist() for numbers in self._everyone]


class NoPeers:
    """A `Pending` of a rank without peers."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)

    def wait(self) -> list[list[int]]:
        """Return this rank's own numbers."""
        return [self._numbers]


class Promise:
    """A tensor that a collective will fill. It is fulfilled once: by the collective, or when that is abandoned."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._tensor = tensor
        self._lock = threading.Lock()
        self._fulfilled = False

    def fulfil(self, result: torch.Tensor | None = None) -> None:
        """Fulfil the promise when the collective has ended or was abandoned."""
        with self._lock:
            if self._fulfilled:
                return
            self._fulfilled = True
        self.future.set_result(self._tensor if result is None else result)

    @property
    def fulfilled(self) -> bool:
        """True if the promise is fulfilled."""
        return self._fulfilled


_abandoned: list[Any] = []
"""Groups with an abandoned collective. Destroying one would wait for its end, which may take minutes."""


class Peers:
    """This rank and its peers. Without peers, every agreement is immediate.

    Every rank must call every method but `abort`, in the same order. All may raise PeersLost.
    """

    def __init__(
        self,
        backend: CollectiveBackend,
        *,
        rank: int,
        world_size: int,
        generation: int = 0,
        timeout: timedelta | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.generation = generation
        self.aborted = False
        """True if a wait for peers was aborted."""
        self._backend = backend
        self._promises: list[Promise] = []
        self._stuck = False
        self._timeout = timeout
        self._connections: frozenset[str] = frozenset()
        self._store: Any = None
        self._control: Any = None
        if world_size > 1:
            self._control = gloo_group(None, timeout)

    @classmethod
    def of_launcher(cls, environment: Environment, backend: CollectiveBackend, timeout: timedelta) -> Peers:
        """Join the ranks that another launcher started, for example torchrun.

        A script started by hand is a group of one, as sharding needs. It leaves the group at exit: torch warns otherwise.
        """
        alone = not environment.distributed and not dist.is_initialized()
        if alone:
            store = HashStore()
            backend.form(Rendezvous(connect=timeout, timeout=timeout, store=store, rank=0, world_size=1))
        elif not dist.is_initialized():
            backend.form(Rendezvous(connect=timeout, timeout=timeout))
        peers = cls(backend, rank=environment.rank, world_size=environment.world_size, timeout=timeout)
        if alone:
            atexit.register(peers.leave)
        return peers

    @classmethod
    def meet(
        cls,
        order: Order,
        rank: int,
        backend: CollectiveBackend,
        timeout: timedelta,
        wait_s: float,
        superseded: Callable[[], bool],
    ) -> Peers:
        """Wait up to `wait_s` seconds for the members of an order in its store, and form a group with them.

        `superseded` is polled while members are missing; when it returns True, no group is formed.

        Raises:
            PeersLost: the store or a member is gone.
            Superseded: `superseded` returned True.
        """
        before = _connections()
        with _peers_may_be_lost(), _disconnect_when(superseded, before):
            store = _open_store(order, timeout, superseded)
            if order.world_size > 1:
                _wait_for_all(store, order, superseded, wait_s)
            size, connect = order.world_size, min(timeout, CONNECT_TIMEOUT)
            backend.form(
                Rendezvous(connect=connect, timeout=timeout, store=store, rank=rank, world_size=size)
            )
            peers = cls(backend, rank=rank, world_size=size, generation=order.generation, timeout=timeout)
        peers._store = store
        peers._connections = _connections() - before
        return peers

    @property
    def is_main(self) -> bool:
        """True on rank 0, which reports for the run."""
        return self.rank == 0

    def promise(self, tensor: torch.Tensor) -> Promise:
        """Return a promise for a collective that fills the tensor. `abort` fulfils it with the present contents."""
        self._promises = [one for one in self._promises if not one.fulfilled]
        self._promises.append(Promise(tensor))
        return self._promises[-1]

    def begin_gather(self, numbers: Sequence[int]) -> Pending | NoPeers:
        """Start to collect every rank's numbers, equally many of each, without waiting."""
        if self._control is None:
            return NoPeers(numbers)
        mine = torch.tensor(numbers, dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        with _peers_may_be_lost():
            # The group's own method: `dist.all_gather` takes 0.1 ms longer, at every step.
            work = self._control.allgather(everyone, mine)
        return Pending(mine, everyone, work)

    def gather(self, *numbers: int) -> list[list[int]]:
        """Collect every rank's numbers, by rank."""
        return self.begin_gather(numbers).wait()

    def group_of(self, ranks: Sequence[int]) -> Any:
        """Form a group of some ranks. Every rank calls it; None on a rank outside of the group."""
        if len(ranks) == self.world_size:
            return self._control
        with _peers_may_be_lost():
            group = gloo_group(ranks, self._timeout)
        return group if self.rank in ranks else None

    def another_group(self) -> Any:
        """Form a group of all ranks for work beside the training."""
        with _peers_may_be_lost():
            return gloo_group(None, self._timeout)

    def bytes_from(self, source: int, data: bytes, group: Any = None) -> bytes:
        """Send the data of rank `source` to every rank of the group, and return it."""
        group = group or self._control
        if group is None:
            return data
        with _peers_may_be_lost():
            size = torch.tensor([len(data)], dtype=torch.int64)
            dist.broadcast(size, src=source, group=group)
            buffer = torch.empty(int(size), dtype=torch.uint8)
            if self.rank == source and data:
                buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            if int(size):
                dist.broadcast(buffer, src=source, group=group)
        return buffer.numpy().tobytes()

    def tensors_from(self, source: int, tensors: Sequence[torch.Tensor], group: Any) -> None:
        """Fill `tensors` (on the CPU, contiguous) with those of rank `source`, on every rank of the group."""
        with _peers_may_be_lost():
            works = [dist.broadcast(one, src=source, group=group, async_op=True) for one in tensors]
            for work in works:
                work.wait()

    def device_tensors_from(
        self, source: int, receivers: Sequence[int], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Fill tensors on an accelerator from one rank to others, by the default group."""
        if tensors:
            with _peers_may_be_lost():
                self._backend.transfer(tensors, rank=self.rank, source=source, receivers=receivers)

    def exchange(self, sends: Mapping[int, torch.Tensor], receives: Mapping[int, torch.Tensor]) -> None:
        """Send a tensor to each rank of `sends`, and fill those of `receives` with what their ranks send to this one.

        The tensors are contiguous and lie where the default group works. Ranks without a transfer need not call it.
        """
        limit = self._timeout or dist.default_pg_timeout
        ops = [dist.P2POp(dist.irecv, one, source) for source, one in receives.items()]
        ops += [dist.P2POp(dist.isend, one, receiver) for receiver, one in sends.items()]
        with _peers_may_be_lost():
            for work in dist.batch_isend_irecv(ops) if ops else ():
                work.wait(limit)  # without it, gloo takes the time limit of connections

    def mark(self, name: str) -> str | None:
        """Return a marker that was left for this generation's members in their store, if there is one."""
        with _peers_may_be_lost():
            return self._store.get(name).decode() if self._store.check([name]) else None

    def leave(self) -> None:
        """Leave the group, when no operation with peers is in progress."""
        if self._stuck:
            _abandoned.append((dist.group.WORLD, self._control))
        if dist.is_initialized():
            dist.destroy_process_group()
        self._control = self._store = None

    def abort(self) -> None:
        """End all waits for peers in this process. Any thread may call it."""
        self.aborted = True
        self._backend.abort()
        _disconnect(self._connections)
        for promise in self._promises:
            self._stuck = self._stuck or not promise.fulfilled
            promise.fulfil()


def leave_marker(
    order: Order, name: str, mark: str, timeout: timedelta, superseded: Callable[[], bool]
) -> None:
    """Store a marker for the members of a generation to which this process does not belong.

    Raises:
        PeersLost: their store is gone.
        Superseded: the store does not answer, and another event is due.
    """
    with _peers_may_be_lost():
        _open_store(order, timeout, superseded).set(name, mark)


def _open_store(order: Order, timeout: timedelta, superseded: Callable[[], bool]) -> Any:
    """Open the generation's own part of an order's store, so that no address of an old generation is used."""
    host, _, port = order.store.rpartition(":")
    give_up_s = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            store = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=_TRY)
        except RuntimeError:
            if superseded():
                raise Superseded from None
            if time.monotonic() > give_up_s:
                raise
        else:
            store.set_timeout(timeout)
            return PrefixStore(f"headway/{order.generation}", store)


def _wait_for_all(store: Any, order: Order, superseded: Callable[[], bool], wait_s: float) -> None:
    """Wait for all members. `_disconnect_when` must surround the call: it ends the wait by closing connections."""
    if store.add("here", 1) == order.world_size:
        store.set("all here", "1")
    try:
        # In another thread, because this one must handle signals meanwhile, such as the request to stop.
        with ThreadPoolExecutor(1) as aside:
            aside.submit(store.wait, ["all here"], timedelta(seconds=min(wait_s, _LONGEST_S))).result()
    except RuntimeError as error:
        if superseded():
            raise Superseded from None
        raise PeersLost(
            f"not all {order.world_size} members of generation {order.generation} arrived"
        ) from error


@contextmanager
def _peers_may_be_lost() -> Iterator[None]:
    """Raise PeersLost for RuntimeError, because backends and the store raise only subclasses of that."""
    try:
        yield
    except RuntimeError as error:
        raise PeersLost(str(error).splitlines()[0]) from error


@contextmanager
def _disconnect_when(superseded: Callable[[], bool], before: frozenset[str]) -> Iterator[None]:
    """Close the connections made in the block as soon as `superseded` returns True.

    Connecting to a member that has died meanwhile would otherwise take as long as the group's timeout.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            if superseded():
                _disconnect(_connections() - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _connections() -> frozenset[str]:
    """Return the sockets of this process, by the names that the kernel gives them."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208  # descriptors, not files
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return frozenset(found)


def _disconnect(names: frozenset[str]) -> None:
    """Close the connections among these sockets, which ends the waits of gloo."""
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") not in names:  # noqa: PTH115
                continue
            with socket.socket(fileno=os.dup(int(descriptor))) as connection:
                connection.getpeername()  # raises for a listening socket, which gloo needs until its end
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # closed meanwhile, or not connected
