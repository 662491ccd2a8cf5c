"""The ranks of one generation: how they meet, exchange data, and separate.

Agreements use a separate gloo group, so that they neither wait for a device nor interfere with the collectives of the
training. Every failure of a peer is raised as `PeersLost`.
"""

from __future__ import annotations

import atexit
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from headway.contract.orders import Order
from headway.train.collectives.backend import CollectiveBackend, Connecting, Rendezvous
from headway.train.collectives.devices import Device, TorchDevice
from headway.train.collectives.futures import Promise
from headway.train.collectives.groups import CONNECT_TIMEOUT, gloo_group, subgroup
from headway.train.collectives.guarded import LossGuard, form_guarded_group
from headway.train.collectives.losses import GROUP_ERRORS
from headway.train.host.connections import connected, connections, disconnect, release
from headway.train.host.environment import Environment
from headway.train.membership.meeting import (
    NeverMet,
    PeersLost,
    Superseded,
    disconnect_when,
    open_store,
    peers_may_be_lost,
    wait_for_all,
)
from headway.train.membership.waits import Waits


class Pending:
    """Numbers of every rank whose collection is in progress."""

    def __init__(self, mine: torch.Tensor, everyone: list[torch.Tensor], work: Any, waits: Waits) -> None:
        self._waits = waits
        self._mine = mine  # the collective reads it until it ends
        self._everyone = everyone
        self._work = work

    def wait(self) -> list[list[int]]:
        """Return the numbers of each rank, by rank.

        Raises:
            PeersLost: a peer is gone.
            RuntimeError: a peer has sent another count of numbers.
        """
        with peers_may_be_lost():
            self._waits.until(self._work)
        padded = [numbers.tolist() for numbers in self._everyone]
        counts = [numbers[0] for numbers in padded]
        if len(set(counts)) > 1:
            each = ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(counts))
            raise RuntimeError(
                f"the ranks are not at the same point of the training: the numbers that they exchange are {each}; "
                "have every rank make the same calls in the same order"
            )
        return [numbers[1 : count + 1] for numbers, count in zip(padded, counts, strict=True)]


class NoPeers:
    """A `Pending` of a rank without peers."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)

    def wait(self) -> list[list[int]]:
        """Return this rank's own numbers."""
        return [self._numbers]


SWITCH_TIMEOUT_S = 20.0
"""Time in which every rank of a group must have completed its operations before members change."""
_MESSAGE_NUMBERS = 64
"""Multiple of the numbers in a message, with their count as the first.

Gloo aborts the process that gets a longer message than it expects, instead of raising an error, and fills in a shorter one.
"""
_abandoned: list[Any] = []
"""Groups with an abandoned collective. Destroying one would wait for its end, which may take minutes."""


_living: WeakSet[Peers] = WeakSet()


def _release_in_child() -> None:
    """Release the connections with peers in a forked child, such as a worker of the script's own `DataLoader` or `Pool`."""
    names = frozenset(name for peers in _living for name in peers.connections)
    if names:
        release(names)


os.register_at_fork(after_in_child=_release_in_child)


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
        self.device: Device = backend if isinstance(backend, Device) else TorchDevice()
        """Device of the group's operations."""
        self.waits = Waits(self.device, on_device=backend.runs_on_device)
        """Operations that wait for peers."""
        self._guards: list[LossGuard] = []
        self._ending = threading.Lock()
        """Held by an abort: it ends the groups of the process, and would end those of the next peers if it came later."""
        self._left = self._stuck = False
        self._timeout = timeout
        self._connections: frozenset[str] = frozenset()
        _living.add(self)
        self._store: Any = None
        self._control: Any = None
        if world_size > 1:
            self._control = gloo_group(None, timeout)

    @classmethod
    def of_launcher(cls, environment: Environment, backend: CollectiveBackend, timeout: timedelta) -> Peers:
        """Join the ranks that another launcher started, for example torchrun.

        A script started by hand is a group of one, as sharding needs. It leaves the group at exit: torch warns otherwise.
        """
        observed = (
            environment.control is not None or environment.distributed
        )  # a stop must end waits: `abort` works
        before = connections() if observed else frozenset()
        alone = not environment.distributed and not dist.is_initialized()
        if alone:
            store = HashStore()
            backend.form(Rendezvous(connect=timeout, timeout=timeout, store=store, rank=0, world_size=1))
        formed = not alone and not dist.is_initialized()
        if formed:
            backend.form(Rendezvous(connect=timeout, timeout=timeout))
        peers = cls(backend, rank=environment.rank, world_size=environment.world_size, timeout=timeout)
        if formed and isinstance(backend, Connecting):
            backend.connect()
        peers._connections = connections() - before if observed else before
        if alone:
            atexit.register(peers.leave)
            os.register_at_fork(after_in_child=partial(atexit.unregister, peers.leave))
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
        patience_s: float = math.inf,
    ) -> Peers:
        """Wait up to `wait_s` seconds for the members of an order in its store, and form a group with them.

        `superseded` is polled while members are missing; when it returns True, no group is formed. After `patience_s` seconds,
        in which this process could run, the meeting has failed.

        Raises:
            NeverMet: the store or a member is not reached.
            Superseded: `superseded` returned True.
        """
        before = connections()
        try:
            with peers_may_be_lost(NeverMet), disconnect_when(superseded, before, patience_s):
                store = open_store(order, timeout, superseded)
                if order.world_size > 1:
                    wait_for_all(store, order, superseded, wait_s)
                size, connect = order.world_size, min(timeout, CONNECT_TIMEOUT)
                backend.form(
                    Rendezvous(connect=connect, timeout=timeout, store=store, rank=rank, world_size=size)
                )
                peers = cls(backend, rank=rank, world_size=size, generation=order.generation, timeout=timeout)
            if isinstance(
                backend, Connecting
            ):  # no member is out of reach, so this takes as long as it takes
                # A member of NCCL's group that waits for one that is gone only listens.
                with (
                    peers_may_be_lost(),
                    disconnect_when(superseded, before),
                    disconnect_when(superseded, connections(), listening=True),
                ):
                    backend.connect()
        except (PeersLost, Superseded):
            if dist.is_initialized():  # the next meeting forms another default group
                backend.leave()
            raise
        peers._store = store
        peers._connections = connections() - before
        return peers

    @property
    def is_main(self) -> bool:
        """True on rank 0, which reports for the run."""
        return self.rank == 0

    @property
    def store(self) -> Any:
        """Store in which these ranks have met; None for a rank alone."""
        if self._store is None and self.world_size > 1 and dist.is_initialized():
            return dist.distributed_c10d._get_default_store()  # noqa: SLF001  # of a group that another launcher started
        return self._store

    def promise(self, tensor: torch.Tensor, work: Any) -> Promise:
        """Return a promise for a collective, torch's `work`, that fills the tensor. `abort` fulfils it with the present contents."""
        self.waits.follow(work)
        return self.waits.promise(tensor)

    def begin_gather(self, numbers: Sequence[int]) -> Pending | NoPeers:
        """Start to collect every rank's numbers, equally many of each, without waiting."""
        if self._control is None:
            return NoPeers(numbers)
        padding = [0] * (-(len(numbers) + 1) % _MESSAGE_NUMBERS)
        mine = torch.tensor([len(numbers), *numbers, *padding], dtype=torch.int64, device="cpu")
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        with peers_may_be_lost():
            # The group's own method: `dist.all_gather` takes 0.1 ms longer, at every step.
            work = self._control.allgather(everyone, mine)
        self.waits.gathering(work)
        return Pending(mine, everyone, work, self.waits)

    def gather(self, *numbers: int) -> list[list[int]]:
        """Collect every rank's numbers, by rank."""
        return self.begin_gather(numbers).wait()

    def group_of(self, ranks: Sequence[int]) -> Any:
        """Form a group of some ranks. Every rank calls it; None on a rank outside of the group."""
        if len(ranks) == self.world_size:
            return self._control
        with self._connecting():
            group = gloo_group(ranks, self._timeout)
        return group if self.rank in ranks else None

    def another_group(self) -> Any:
        """Form a group of all ranks for work beside the training."""
        with self._connecting():
            return gloo_group(None, self._timeout)

    def bytes_from(self, source: int, data: bytes, group: Any = None) -> bytes:
        """Send the data of rank `source` to every rank of the group, and return it."""
        group = group or self._control
        if group is None:
            return data
        with self.waits.blocking(), peers_may_be_lost():
            size = torch.tensor([len(data)], dtype=torch.int64, device="cpu")
            self.waits.until(dist.broadcast(size, src=source, group=group, async_op=True))
            buffer = torch.empty(int(size), dtype=torch.uint8, device="cpu")
            if self.rank == source and data:
                buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            if int(size):
                self.waits.until(dist.broadcast(buffer, src=source, group=group, async_op=True))
        return buffer.numpy().tobytes()

    def tensors_from(self, source: int, tensors: Sequence[torch.Tensor], group: Any) -> None:
        """Fill `tensors` (on the CPU, contiguous) with those of rank `source`, on every rank of the group."""
        with self.waits.blocking(), peers_may_be_lost():
            works = [dist.broadcast(one, src=source, group=group, async_op=True) for one in tensors]
            for work in works:
                self.waits.until(work)

    def device_tensors_from(
        self, source: int, receivers: Sequence[int], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Fill tensors on an accelerator from one rank to others, by the default group. Others than these pass no tensors."""
        if tensors or self._backend.runs_on_device:
            with self.waits.blocking(), peers_may_be_lost():
                self.waits.until_returned(
                    lambda: self._backend.transfer(
                        tensors, rank=self.rank, source=source, receivers=receivers
                    )
                )
            if self.aborted:  # an aborted transfer on an accelerator ends like a complete one
                raise PeersLost("the transfer was aborted")

    def exchange(
        self, sends: Iterable[tuple[int, torch.Tensor]], receives: Iterable[tuple[int, torch.Tensor]]
    ) -> None:
        """Send tensors to ranks, and fill others with what ranks send to this one.

        Those between two ranks are in the same order on both. The tensors are contiguous and lie where the default group
        works. Ranks without a transfer need not call it.
        """
        limit = self._timeout or dist.default_pg_timeout
        ops = [dist.P2POp(dist.irecv, one, source) for source, one in receives if one.numel()]
        ops += [dist.P2POp(dist.isend, one, receiver) for receiver, one in sends if one.numel()]
        with self.waits.blocking(), peers_may_be_lost():
            works = dist.batch_isend_irecv(ops) if ops else []

            def complete() -> None:
                for work in works:
                    work.wait(limit)  # without it, gloo takes the time limit of connections

            if works:
                self.waits.until_returned(complete)
        if self.aborted:  # an aborted transfer on an accelerator ends like a complete one
            raise PeersLost("the exchange was aborted")

    def commit(self, device: torch.device) -> None:
        """Return once every rank has called it and its earlier transfers are complete: an all-reduce of one element."""
        ranks = torch.ones((), dtype=torch.int64, device=device)
        with self.waits.blocking(), peers_may_be_lost():
            self.waits.finish(dist.all_reduce(ranks, async_op=True))
        if (
            int(ranks) != self.world_size or self.aborted
        ):  # an aborted one on an accelerator ends like a complete one
            raise PeersLost("not every rank is ready for the step")

    def guarded_groups(
        self, divisions: Sequence[Sequence[Sequence[int]]], on_loss: Callable[[], None]
    ) -> list[Any]:
        """Form the groups of each division of all ranks, and return this rank's own groups.

        Their collectives call `on_loss` when a peer is lost, instead of raising an error.
        """
        guard, mine = LossGuard(on_loss, self.waits, self.device), []
        self._guards.append(guard)
        with self._connecting():
            for ranks in itertools.chain.from_iterable(divisions):
                whole = len(ranks) == self.world_size
                inner: Any = dist.group.WORLD if whole else subgroup(ranks, self._timeout)
                if not whole and self.rank in ranks:
                    self._connect(inner)
                guarded = form_guarded_group(inner, ranks, guard)
                mine += [] if guarded is None else [guarded]
        return mine

    def _connect(self, group: Any) -> None:
        """Connect the members of a group, where they would wait for each other at its first operation. `abort` ends the wait."""
        if isinstance(self._backend, Connecting):
            with self.waits.blocking(), disconnect_when(lambda: self.aborted, connections(), listening=True):
                self._backend.connect(group)

    def mark(self, name: str) -> str | None:
        """Return a marker that was left for this generation's members in their store, if there is one."""
        with peers_may_be_lost():
            return self._store.get(name).decode() if self._store.check([name]) else None

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        """Raise PeersLost for errors of a group that forms in the block, and note its connections, which `abort` closes."""
        before = connections() if self._store is not None else frozenset()
        with peers_may_be_lost():
            yield
        if self._store is not None:
            self._connections |= connections() - before

    def settle(self, limit_s: float = SWITCH_TIMEOUT_S) -> None:
        """Wait until no rank's device is busy with an operation of the group, so that each rank may leave it.

        After `limit_s` seconds, or when a peer is lost, the operations are aborted.
        """
        if self.aborted or self._control is None or not self._backend.runs_on_device:
            return
        limit = threading.Timer(limit_s, self.abort)
        limit.start()
        try:
            self.device.synchronize()
            self.gather(0)
        except (PeersLost, *GROUP_ERRORS):  # an aborted operation may also fail on the device
            self.abort()
        finally:
            limit.cancel()

    def leave(self) -> None:
        """Leave the group, when this rank waits for no operation with peers."""
        self.settle()
        with self._ending:
            self._left = True
        if self._stuck or (self.aborted and self.waits.outlast()):
            groups = list(dist.distributed_c10d._world.pg_map)  # noqa: SLF001  # torch has no list of the groups
            _abandoned.append((groups, self._control))
        if dist.is_initialized():
            self._backend.leave()
        while self._guards:
            self._guards.pop().close()
        self._control = self._store = None
        self.waits = Waits(
            self.device, on_device=self._backend.runs_on_device
        )  # its operations hold the group

    @property
    def connections(self) -> frozenset[str]:
        """The sockets of the group, by the names that the kernel gives them."""
        return self._connections

    def connected(self) -> frozenset[str]:
        """Return the connections of the group that neither end has closed. Any thread may call it."""
        return connected(self._connections)

    def abort(self) -> None:
        """End all waits for peers in this process. Any thread may call it."""
        self.aborted = True
        with self._ending:
            try:
                if not self._left:
                    self._backend.abort()
            finally:  # an abort of the backend that fails must not keep the other waits
                for guard in self._guards:
                    guard.keep_names()
                disconnect(self._connections)
                self._stuck = self.waits.fulfil() or self._stuck
