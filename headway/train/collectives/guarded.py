"""Process groups whose collectives do not raise when a peer is lost, for models whose forward pass communicates."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from headway.train.collectives.devices import Device
from headway.train.collectives.groups import count_group
from headway.train.collectives.losses import GROUP_ERRORS, is_loss

_BACKEND = "headway_guarded"
_COLLECTIVES = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)
"""Methods of a process group that fill the tensors of their first argument. Versions of torch have some of them."""

_IN_PARTS = ("reduce_scatter", "_reduce_scatter")
"""Beginnings of the names of those that gloo makes of other collectives."""


class GroupWaits(Protocol):
    """The waits for peers of a generation."""

    def finish(self, work: Any, *, in_parts: bool = False) -> None:
        """Wait for a collective. `in_parts`: over gloo it consists of others. Raises RuntimeError if it has failed, or an abort has ended the wait."""

    def blocking(self) -> AbstractContextManager[None]:
        """Return a block that counts as a wait for peers."""
        ...


class LossGuard:
    """Record of a lost peer, which the guarded groups of a generation share: after a loss none contacts a peer."""

    def __init__(
        self,
        on_loss: Callable[[], None],
        waits: GroupWaits,
        device: Device,
    ) -> None:
        self.lost = False
        """True if a collective of one of the groups has failed."""
        self.on_loss = on_loss
        self.device = device
        self.waits = waits
        self._lock = threading.Lock()
        self._groups: list[GuardedGroup] = []

    def add(self, group: GuardedGroup) -> None:
        """Add a group of this generation."""
        self._groups.append(group)

    def keep_names(self) -> None:
        """Have torch find the groups by their names after an abort, which makes it forget all groups.

        The model's tensors know their group by its name, and the step in progress goes on until its end.
        """
        with self._lock:
            self.lost = True
            for group in self._groups:
                _register(group.group_name, group)

    def close(self) -> None:
        """Have torch forget the groups: those of the next generation have the same names."""
        with self._lock:
            for group in self._groups:
                _unregister(group.group_name)
            self._groups.clear()


class GuardedGroup(dist.ProcessGroup):
    """A group whose collectives call `on_loss` when a peer is lost, and fill their results with zeros.

    FSDP communicates within the forward and the backward pass of the script, which must see no error: the step is
    repeated.
    """

    def __init__(self, group: dist.ProcessGroup, guard: LossGuard) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]  # as subclasses in Python do
        self._group = group
        self._guard = guard
        self._name = ""

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """Name by which torch finds the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        """Do nothing: the description is for torch's own backends."""

    def getBackendName(self) -> str:  # noqa: N802  # torch's name
        """Return the name of the backend."""
        return _BACKEND

    def shutdown(self) -> None:
        """Do nothing: the group that this one calls belongs to its own backend."""

    def _run(self, collective: str, *args: Any, **options: Any) -> Any:
        if not self._guard.lost:
            try:
                with self._guard.waits.blocking():
                    work = getattr(self._group, collective)(*args, **options)
                    self._guard.waits.finish(work, in_parts=collective.startswith(_IN_PARTS))
            except GROUP_ERRORS as error:
                if not is_loss(error):
                    raise
                self._guard.lost = True
            else:
                return work
        self._guard.on_loss()
        results = list(_tensors(args[0]))
        for one in results:
            one.zero_()
        done = self._guard.device.future_of(results[0])
        done.set_result(results)
        return _distributed_c10d._create_work_from_future(done)  # type: ignore[attr-defined]  # noqa: SLF001  # torch has no other way


def _guarded(name: str) -> Callable[..., Any]:
    def collective(self: GuardedGroup, *args: Any, **options: Any) -> Any:
        return self._run(name, *args, **options)

    return collective


for _name in _COLLECTIVES:
    if hasattr(dist.ProcessGroup, _name):
        setattr(GuardedGroup, _name, _guarded(_name))


def _register(name: str, group: GuardedGroup) -> None:
    _unregister(name)
    _distributed_c10d._register_process_group(name, group)  # type: ignore[arg-type]  # noqa: SLF001  # torch has no other way


def _unregister(name: str) -> None:
    with contextlib.suppress(RuntimeError):  # it has no such group
        _distributed_c10d._unregister_process_group(name)  # type: ignore[arg-type]  # noqa: SLF001  # torch has no other way


def form_guarded_group(
    group: dist.ProcessGroup, ranks: Sequence[int], guard: LossGuard
) -> GuardedGroup | None:
    """Form a guarded group over a group of these ranks. Every rank calls it; None on a rank outside of the group.

    Raises:
        RuntimeError: a peer is gone.
    """
    if not hasattr(dist.Backend, _BACKEND.upper()):
        dist.Backend.register_backend(_BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    count_group()
    formed = dist.new_group(list(ranks), backend=_BACKEND, pg_options=(group, guard))
    if not isinstance(formed, GuardedGroup):
        return None
    guard.add(formed)
    return formed


def _create(_options: Any, of: tuple[dist.ProcessGroup, LossGuard]) -> GuardedGroup:
    return GuardedGroup(*of)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
