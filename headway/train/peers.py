"""The ranks of one generation: how they meet, what they agree on, and how they part.

Agreements go over a gloo group of their own, so that they neither wait for a device nor come between the
collectives of the training. Whatever goes wrong with a peer is `PeersLost`, and nothing else.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from headway.contract.orders import Order
from headway.train.environment import Environment

_TRY = timedelta(seconds=1)
"""A store that does not answer is tried for so long at a time: torch would not be interrupted in between."""
_CONNECT = timedelta(seconds=4)
"""Members that have all come connect within milliseconds. One that dies meanwhile may leave gloo waiting for its call,
which nothing but time ends, or calling it, which gloo tries five times.
"""
_LONGEST_S = 30 * 86_400.0
"""What stands for `inf` where torch wants a number."""


class PeersLost(Exception):  # an event of the training, handled at the next boundary
    """A peer is gone, or what it says does not come through."""


class Superseded(Exception):  # likewise
    """Something else became due while members were waited for."""


class Pending:
    """Numbers of every rank that are being gathered."""

    def __init__(self, mine: torch.Tensor, everyone: list[torch.Tensor], work: Any) -> None:
        self._mine = mine  # the collective reads it until it is done
        self._everyone = everyone
        self._work = work

    def wait(self) -> list[list[int]]:
        """What each rank gave, by rank.

        Raises:
            PeersLost: a peer is gone.
        """
        with _peers_may_be_lost():
            self._work.wait()
        return [numbers.tolist() for numbers in self._everyone]


class Alone:
    """A `Pending` of a rank without peers."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)

    def wait(self) -> list[list[int]]:
        """What it gave."""
        return [self._numbers]


class Promise:
    """A tensor that a collective is about to fill. It is kept once: by the collective, or when that is given up."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._tensor = tensor
        self._lock = threading.Lock()
        self._kept = False

    def keep(self, result: torch.Tensor | None = None) -> None:
        """The collective has ended, or nobody waits for its end any more."""
        with self._lock:
            if self._kept:
                return
            self._kept = True
        self.future.set_result(self._tensor if result is None else result)

    @property
    def kept(self) -> bool:
        """Whether it is."""
        return self._kept


_abandoned: list[Any] = []
"""Groups with a collective that was given up. To destroy one would wait for its end, which may take minutes."""


class Peers:
    """This rank among its peers. Alone, every agreement is immediate.

    Every method but `abort` must be called by every rank, in the same order. All may raise PeersLost.
    """

    def __init__(
        self, *, rank: int, world_size: int, generation: int = 0, timeout: timedelta | None = None
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.generation = generation
        self.aborted = False
        """Whether somebody has given up waiting for peers."""
        self._promises: list[Promise] = []
        self._stuck = False
        self._timeout = timeout
        self._connections: frozenset[str] = frozenset()
        self._store: Any = None
        self._control: Any = None
        if world_size > 1:
            self._control = _gloo_group(None, timeout)

    @classmethod
    def of_launcher(cls, environment: Environment, device: torch.device, timeout: timedelta) -> Peers:
        """The ranks that a launcher other than an agent has started, torchrun for example."""
        if environment.distributed and not dist.is_initialized():
            dist.init_process_group(_backend(device), timeout=timeout)
        return cls(rank=environment.rank, world_size=environment.world_size, timeout=timeout)

    @classmethod
    def meet(
        cls,
        order: Order,
        rank: int,
        device: torch.device,
        timeout: timedelta,
        wait_s: float,
        superseded: Callable[[], bool],
    ) -> Peers:
        """Wait for the members of an order in its store, for `wait_s` at most, and form a group with them.

        `superseded` is asked again and again while members are missing; when it says yes, nothing was formed.

        Raises:
            PeersLost: the store or a member is gone.
            Superseded: see above.
        """
        before = _connections()
        with _peers_may_be_lost(), _freed_when(superseded, before):
            names = _names(order, timeout, superseded)
            if order.world_size > 1:
                _wait_for_all(names, order, superseded, wait_s)
            dist.init_process_group(
                _backend(device),
                store=names,
                rank=rank,
                world_size=order.world_size,
                timeout=min(timeout, _CONNECT),
            )
            _set_timeout(None, timeout)
            peers = cls(rank=rank, world_size=order.world_size, generation=order.generation, timeout=timeout)
        peers._store = names
        peers._connections = _connections() - before
        return peers

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which speaks for the run."""
        return self.rank == 0

    def promise(self, tensor: torch.Tensor) -> Promise:
        """Of a collective that fills the tensor. `abort` keeps it as it is."""
        self._promises = [one for one in self._promises if not one.kept]
        self._promises.append(Promise(tensor))
        return self._promises[-1]

    def begin_gather(self, numbers: Sequence[int]) -> Pending | Alone:
        """Start to collect every rank's numbers (equally many each), without waiting."""
        if self._control is None:
            return Alone(numbers)
        mine = torch.tensor(numbers, dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        with _peers_may_be_lost():
            # The group's own: `dist.all_gather` takes 0.1 ms longer, at every step.
            work = self._control.allgather(everyone, mine)
        return Pending(mine, everyone, work)

    def gather(self, *numbers: int) -> list[list[int]]:
        """Every rank's numbers, by rank."""
        return self.begin_gather(numbers).wait()

    def group_of(self, ranks: Sequence[int]) -> Any:
        """A group of some of the ranks. Every rank calls it; None for one that is not in it."""
        if len(ranks) == self.world_size:
            return self._control
        with _peers_may_be_lost():
            group = _gloo_group(ranks, self._timeout)
        return group if self.rank in ranks else None

    def another_group(self) -> Any:
        """A group of all ranks for something that runs beside the training."""
        with _peers_may_be_lost():
            return _gloo_group(None, self._timeout)

    def bytes_from(self, source: int, data: bytes, group: Any = None) -> bytes:
        """The data of rank `source`, for every rank of the group."""
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
        """The same for tensors on an accelerator, from one rank to others, by the default group."""
        with _peers_may_be_lost():
            for one in tensors:
                if self.rank == source:
                    for receiver in receivers:
                        dist.send(one, dst=receiver)
                else:
                    dist.recv(one, src=source)
            if tensors:
                torch.cuda.synchronize()

    def mark(self, name: str) -> str | None:
        """The mark that somebody has left for the members of this generation in their store, if there is one."""
        with _peers_may_be_lost():
            return self._store.get(name).decode() if self._store.check([name]) else None

    def part(self) -> None:
        """Leave the group: peers and this rank have nothing under way with one another."""
        if self._stuck:
            _abandoned.append((dist.group.WORLD, self._control))
        if dist.is_initialized():
            dist.destroy_process_group()
        self._control = self._store = None

    def abort(self) -> None:
        """Free whoever waits for a peer in this process. May be called by any thread, also in vain."""
        self.aborted = True
        _abort_nccl()
        _shut(self._connections)
        for promise in self._promises:
            self._stuck = self._stuck or not promise.kept
            promise.keep()


def leave_mark(
    order: Order, name: str, mark: str, timeout: timedelta, superseded: Callable[[], bool]
) -> None:
    """Leave a mark for the members of a generation that this process does not belong to.

    Raises:
        PeersLost: their store is gone.
        Superseded: it seems to be, and something else is due.
    """
    with _peers_may_be_lost():
        _names(order, timeout, superseded).set(name, mark)


def _names(order: Order, timeout: timedelta, superseded: Callable[[], bool]) -> Any:
    """The part of an order's store that is its generation's own: addresses of an old one would be connected to."""
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


def _backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def _gloo_group(ranks: Sequence[int] | None, timeout: timedelta | None) -> Any:
    """A group of these ranks (None: all), whose collectives may take `timeout` (None: as long as torch allows)."""
    among = None if ranks is None else list(ranks)
    if timeout is None:
        return dist.new_group(among, backend="gloo")
    group = dist.new_group(among, backend="gloo", timeout=min(timeout, _CONNECT))
    if among is None or dist.get_rank() in among:
        _set_timeout(group, timeout)
    return group


def _set_timeout(group: Any, timeout: timedelta) -> None:
    dist.distributed_c10d._set_pg_timeout(timeout, group)  # noqa: SLF001  # torch has no other way


def _wait_for_all(names: Any, order: Order, superseded: Callable[[], bool], wait_s: float) -> None:
    """Within `_freed_when`, which ends the wait by breaking the store's connection."""
    if names.add("here", 1) == order.world_size:
        names.set("all here", "1")
    try:
        # Aside, since this thread must take signals meanwhile, such as the request to stop.
        with ThreadPoolExecutor(1) as aside:
            aside.submit(names.wait, ["all here"], timedelta(seconds=min(wait_s, _LONGEST_S))).result()
    except RuntimeError as error:
        if superseded():
            raise Superseded from None
        raise PeersLost(
            f"not all {order.world_size} members came to generation {order.generation}"
        ) from error


@contextmanager
def _peers_may_be_lost() -> Iterator[None]:
    """There is no error of torch for it: gloo, NCCL and the store raise subclasses of RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        raise PeersLost(str(error).splitlines()[0]) from error


@contextmanager
def _freed_when(superseded: Callable[[], bool], before: frozenset[str]) -> Iterator[None]:
    """Break the connections that are made in the block as soon as something else is due.

    To connect to a member that has died meanwhile would else take as long as the group's timeout.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            if superseded():
                _shut(_connections() - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _connections() -> frozenset[str]:
    """The sockets of this process, by the names that the kernel gives them."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208  # descriptors, not files
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return frozenset(found)


def _shut(names: frozenset[str]) -> None:
    """Shut the connections among these sockets: gloo has no abort, but a closed connection ends its waits."""
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") not in names:  # noqa: PTH115
                continue
            with socket.socket(fileno=os.dup(int(descriptor))) as connection:
                connection.getpeername()  # not one that listens: gloo does not survive its end
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # closed meanwhile, or not connected


def _abort_nccl() -> None:
    if dist.is_initialized() and dist.get_backend() == "nccl":
        dist.distributed_c10d._abort_process_group()  # noqa: SLF001  # the way that torch's own restarts use
