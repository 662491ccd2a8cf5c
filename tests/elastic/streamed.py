"""A collective backend for tests that behaves as NCCL does on a device, on CPU tensors.

Its device has one stream: a thread that carries out operations in order, with random delays of a seed. A call of torch returns
before its operation has begun, and the tensors are filled later. What computes on CPU tensors is the host, so the host's waits
stand for those of a stream: `wait` of an operation, and that of a future made by `future_of`, end with the operation. Any other
future is complete at once, as one on a GPU is to a stream for which it names no device.

A communicator connects at its first operation, or in `connect`, for which every member must come, also if the operation is
between two of them. That is a call of the host, which no abort ends: the first member waits for connections of the others, and
those listen until it connects back.

A member that is gone is not noticed: an operation stands until `abort`, and then raises. Under the name of `SILENT` it ends like a
complete one, as the wait of a GPU's stream does. The abort of a group waits for the device, and so for operations of other groups.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from headway.lookups import no_name_servers
from headway.train.collectives.backend import Rendezvous
from headway.train.collectives.buckets import broadcast
from headway.train.collectives.groups import CONNECT_TIMEOUT, abort_groups, forget_groups

NAME = "streamed"
SILENT = "streamed-silent"
_LONGEST_DELAY_S = 0.004
_POLL_S = 0.001
_MEETING_S = 60.0
"""Longest wait for members, so that a test which fails ends. NCCL waits without a limit."""
_BUCKET_BYTES = 2**16 - 512
"""So small that the state of a test takes several, and no divisor of its tensors."""
_PART_BYTES = 2**20
"""Bytes of a tensor under one key of the store, which limits them."""
_REDUCTIONS: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.PRODUCT: torch.mul,
}


class Aborted(RuntimeError):
    """An operation's communicator was aborted."""


class Stream:
    """The queue of a device. `delays_s` has the time that each operation takes longer."""

    def __init__(self, delays_s: Iterator[float]) -> None:
        self.delays_s = delays_s
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def enqueue(self, act: Callable[[], None]) -> None:
        """Have the device do this after all that was enqueued before."""
        self._queue.put(act)

    def synchronize(self) -> None:
        """Wait until all that was enqueued is done."""
        done = threading.Event()
        self.enqueue(done.set)
        done.wait()

    def _run(self) -> None:
        with torch.no_grad():
            while True:
                self._queue.get()()


class StreamFuture(torch.futures.Future):  # type: ignore[type-arg]  # generic in stubs only
    """A future on the device: whoever waits for it waits for what was enqueued before its result."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def set_result(self, result: Any) -> None:
        """Complete the future in the order of the stream."""
        complete = super().set_result
        self._stream.enqueue(lambda: complete(result))


class StreamWork(dist.Work):
    """An operation of a stream."""

    def __init__(self, results: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._results = list(results)
        self._ended = threading.Event()
        self._error: Exception | None = None

    def end(self, error: Exception | None = None) -> None:
        """Record that the operation has ended on the device."""
        self._error = error
        self._ended.set()

    def wait(self, timeout: Any = None) -> bool:
        """Wait as a stream does: without a limit."""
        del timeout
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return True if the device has finished."""
        return self._ended.is_set()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the results, complete at once. On a device its `wait` orders streams, never the host."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._results)
        return future


class StreamedGroup(dist.ProcessGroup):
    """A group whose operations one stream carries out. Data moves through the group's store."""

    def __init__(self, store: Any, rank: int, size: int, stream: Stream, *, silent: bool) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # as subclasses in Python do
        # A connection of its own: others hold theirs while they wait for a key.
        self._store = _clone(store) if size > 1 and hasattr(store, "clone") else store
        self._stream = stream
        self._silent = silent
        self._name = ""
        self._aborted = threading.Event()
        self._connected = size == 1
        self._operations = 0
        self._messages: dict[tuple[int, int], int] = {}
        self._batch: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    @property
    def group_name(self) -> str:  # type: ignore[override]
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        pass

    def getBackendName(self) -> str:  # noqa: N802  # torch's name
        return NAME

    def abort(self) -> None:
        """End what is in progress; any thread may call it. Freeing the communicator's memory waits for the device."""
        self._aborted.set()
        self._stream.synchronize()

    def shutdown(self) -> None:
        self.abort()

    def allreduce(self, tensors: Any, opts: Any = None) -> StreamWork:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        return self._start(tensors, lambda: [self._reduced(one, op) for one in tensors])

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any) -> StreamWork:
        def results() -> list[torch.Tensor]:
            return [self._exchanged(one, senders=[opts.rootRank])[0] for one in tensors]

        return self._start(tensors, results)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> StreamWork:
        del opts
        flat = [one for part in outputs for one in part]
        return self._start(flat, lambda: [part for one in inputs for part in self._exchanged(one)])

    def _allgather_base(self, output: Any, given: Any, opts: Any = None) -> StreamWork:
        return self.allgather_into_tensor_coalesced([output], [given], opts)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> StreamWork:
        del opts

        def results() -> list[torch.Tensor]:
            return [torch.cat([part.reshape(-1) for part in self._exchanged(one)]) for one in inputs]

        return self._start(outputs, results)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def _reduce_scatter_base(self, output: Any, given: Any, opts: Any) -> StreamWork:
        def results() -> list[torch.Tensor]:
            return [self._reduced(given, opts.reduceOp).reshape(self.size(), -1)[self.rank()]]

        return self._start([output], results)

    reduce_scatter_single = _reduce_scatter_base

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> StreamWork:
        def results() -> list[torch.Tensor]:
            self._operations += 1
            if self.rank() != opts.rootRank:
                return [self._get(f"{self._operations}/{self.rank()}", outputs[0])]
            for rank, part in enumerate(inputs[0]):
                self._put(f"{self._operations}/{rank}", part)
            return [inputs[0][self.rank()].detach().clone()]

        return self._start(outputs, results)

    def send(self, tensors: Any, receiver: int, tag: int = 0) -> StreamWork:
        del tag
        keys = [self._message(self.rank(), receiver) for _ in tensors]

        def send() -> None:
            for key, one in zip(keys, tensors, strict=True):
                self._put(key, one)

        batch = self._batch
        batch.put(send)
        return self._start([], lambda: self._send_all(batch), alone=False)

    def recv(self, tensors: Any, sender: int, tag: int = 0) -> StreamWork:
        del tag

        keys, batch = [self._message(sender, self.rank()) for _ in tensors], self._batch

        def results() -> list[torch.Tensor]:
            return [self._get(key, one, batch) for key, one in zip(keys, tensors, strict=True)]

        return self._start(tensors, results, alone=False)

    def barrier(self, opts: Any = None) -> StreamWork:
        del opts
        return self.allreduce([torch.zeros(1)])

    def _start(
        self, filled: Sequence[torch.Tensor], results: Callable[[], list[torch.Tensor]], *, alone: bool = True
    ) -> StreamWork:
        """Enqueue an operation. Those that are not `alone` and follow each other are one batch: none waits for another."""
        if alone:
            self._batch = queue.SimpleQueue()
        if self._aborted.is_set():
            raise Aborted("the communicator is gone")
        self.connect()
        work = StreamWork(filled)

        def act() -> None:
            try:
                ready = results()
                self._pause(next(self._stream.delays_s))
                for one, result in zip(filled, ready, strict=True):
                    one.data.copy_(result.reshape(one.shape))
            except Aborted as error:
                work.end(None if self._silent else error)
            except RuntimeError as error:  # of the store: a peer that is gone is not noticed
                self._aborted.wait()
                work.end(None if self._silent else Aborted(str(error)))
            else:
                work.end()

        self._stream.enqueue(act)
        return work

    def connect(self) -> None:
        """Wait for all members, unless this one is connected already."""
        if self._connected:
            return
        try:
            self._meet()
        except OSError as error:
            raise RuntimeError("the members did not connect") from error
        self._connected = True

    def _meet(self) -> None:
        give_up_s = time.monotonic() + _MEETING_S
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(_MEETING_S)
            store = _clone(self._store)  # the connection to the root
            store.set(f"listens/{self.rank()}", str(listener.getsockname()[1]))
            if self.rank():
                listener.accept()[0].close()
            else:
                others = [f"listens/{rank}" for rank in range(1, self.size())]
                while not store.check(others):
                    if time.monotonic() > give_up_s:
                        raise TimeoutError("a member did not come")
                    time.sleep(_POLL_S)
                for one in others:
                    socket.create_connection(("127.0.0.1", int(store.get(one)))).close()

    def _reduced(self, mine: torch.Tensor, op: Any) -> torch.Tensor:
        """Return the reduction in the order of the ranks, so that each has the same bits."""
        first, *others = self._exchanged(mine)
        combine = next(function for kind, function in _REDUCTIONS.items() if op == kind)
        for one in others:
            first = combine(first, one)
        return first / self.size() if op == dist.ReduceOp.AVG else first

    def _exchanged(self, mine: torch.Tensor, senders: Sequence[int] | None = None) -> list[torch.Tensor]:
        """Return the tensor of each sender, by default of every rank."""
        self._operations += 1
        ranks = range(self.size()) if senders is None else senders
        if self.rank() in ranks:
            self._put(f"{self._operations}/{self.rank()}", mine)
        return [
            mine.detach().clone() if rank == self.rank() else self._get(f"{self._operations}/{rank}", mine)
            for rank in ranks
        ]

    def _send_all(self, batch: queue.SimpleQueue[Callable[[], None]]) -> list[torch.Tensor]:
        with contextlib.suppress(queue.Empty):
            while True:
                batch.get_nowait()()
        return []

    def _message(self, sender: int, receiver: int) -> str:
        number = self._messages.get((sender, receiver), 0)
        self._messages[sender, receiver] = number + 1
        return f"{sender}-{receiver}/{number}"

    def _put(self, key: str, tensor: torch.Tensor) -> None:
        if self.size() > 1:
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            for start in range(0, len(data), _PART_BYTES):
                self._store.set(f"{key}/{start}", data[start : start + _PART_BYTES])

    def _get(self, key: str, like: torch.Tensor, batch: Any = None) -> torch.Tensor:
        keys = [f"{key}/{start}" for start in range(0, like.nbytes, _PART_BYTES)]
        while keys and not self._store.check(keys):
            if batch is not None:
                self._send_all(batch)
            self._pause(_POLL_S)
        data = bytearray(b"".join(self._store.get(one) for one in keys))
        found = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return found.view(like.dtype).reshape(like.shape)

    def _pause(self, seconds: float) -> None:
        if self._aborted.wait(seconds):
            raise Aborted("the communicator is gone")


def _clone(store: Any) -> Any:
    with no_name_servers():
        return store.clone()


class Streamed:
    """The `CollectiveBackend` over such groups, and the device of its own."""

    runs_on_device = True

    def __init__(self, *, silent: bool = False) -> None:
        # Other delays on each rank, and the same in each run.
        dice = random.Random(os.environ.get("RANK"))
        self._stream = Stream(iter(lambda: dice.uniform(0, _LONGEST_DELAY_S), None))

        def create(options: Any, _none: Any) -> StreamedGroup:
            return StreamedGroup(
                options.store, options.group_rank, options.group_size, self._stream, silent=silent
            )

        if not hasattr(dist.Backend, NAME.upper()):
            dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])

    def form(self, rendezvous: Rendezvous) -> None:
        dist.init_process_group(
            NAME,
            store=rendezvous.store,
            rank=rendezvous.rank,
            world_size=rendezvous.world_size,
            timeout=max(rendezvous.connect, CONNECT_TIMEOUT),
        )

    def connect(self, group: Any = None) -> None:
        (group or dist.group.WORLD).connect()

    def leave(self) -> None:
        if dist.is_initialized() and dist.get_backend() == NAME:
            forget_groups()
        if dist.is_initialized():
            dist.destroy_process_group()

    def abort(self) -> None:
        if dist.is_initialized() and dist.get_backend() == NAME:
            abort_groups(NAME)

    def transfer(
        self, tensors: Sequence[torch.Tensor], *, rank: int, source: int, receivers: Sequence[int]
    ) -> None:
        broadcast(
            tensors,
            rank=rank,
            source=source,
            receivers=receivers,
            device=torch.device("cpu"),
            bucket_bytes=_BUCKET_BYTES,
        )
        self.synchronize()

    def future_of(self, tensor: torch.Tensor) -> torch.futures.Future[Any]:
        del tensor
        return StreamFuture(self._stream)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def holds(self, tensor: torch.Tensor) -> bool:
        del tensor
        return True
