"""Waits of a rank for its peers: which operations with them have not ended, and since when.

Gloo forgets some operations when their connection closes: a send that has begun or was answered too late, and a receive that has
begun (`Pair::signalException` of its TCP transport passes over them). They end at the group's time limit only. Therefore no
wait for gloo relies on gloo alone: `fulfil` ends it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch

from headway.train.collectives.devices import Device, TorchDevice
from headway.train.collectives.futures import Promise

_LOOK_S = 0.1
"""Longest time after which a wait notices that it was aborted."""
_ENDS_WITHIN_S = 0.5
"""Time after the abort in which gloo ends the operations that it has not forgotten."""


class Waits:
    """The operations of one generation that wait for peers. Other threads may call `since_s` and `fulfil`.

    Args:
        device: has the tensors.
        on_device: a device works on the operations of the default group, whose backend ends them when they are aborted.
    """

    def __init__(self, device: Device | None = None, *, on_device: bool = False) -> None:
        self._device = device or TorchDevice()
        self._on_device = on_device
        self._aborted = self._forgotten = False
        self._promises: list[tuple[float, Promise]] = []
        self._gather: tuple[float, Any] | None = None
        self._begun: tuple[float, Any] | None = None
        self._blocked_s: float | None = None

    def promise(self, tensor: torch.Tensor) -> Promise:
        """Return a promise for a collective that begins now."""
        self._promises = [one for one in self._promises if not one[1].fulfilled]
        self._promises.append((time.monotonic(), Promise(tensor, self._device)))
        return self._promises[-1][1]

    def gathering(self, work: Any) -> None:
        """Record a collection of numbers that begins now; `work` is torch's. It replaces the one before."""
        self._gather = time.monotonic(), work

    def follow(self, work: Any) -> None:
        """Record a collective that begins now; `work` is torch's. It replaces the one before.

        A device may work on it when its promise is fulfilled, and whoever needs the result waits for the device.
        """
        self._begun = time.monotonic(), work

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Record that this process waits in the block until an operation with peers ends."""
        self._blocked_s = time.monotonic()
        try:
            yield
        finally:
            self._blocked_s = None

    def finish(self, work: Any, *, in_parts: bool = False) -> None:
        """Wait for a collective of the default group, or of one over the same backend; `work` is torch's.

        `in_parts`: over gloo it consists of others, and its work, which waits for them, never tells that it is completed.

        Raises:
            RuntimeError: it has failed, or the wait was aborted.
        """
        if self._on_device:
            self.follow(work)
            work.wait()
        elif in_parts:
            self.until_returned(work.wait)
        else:
            self.until(work)

    def until(self, work: Any) -> None:
        """Wait for a collective over gloo; `work` is torch's.

        Raises:
            RuntimeError: it has failed, or the wait was aborted.
        """

        def ends_within(limit_s: float) -> bool:
            began_s = time.monotonic()
            try:
                work.wait(timedelta(seconds=limit_s))
            except RuntimeError:
                if time.monotonic() - began_s < limit_s:
                    raise
                return False  # the time limit of this wait, or a failure that the next one raises at once
            return True

        self._await(ends_within)

    def until_returned(self, call: Callable[[], object]) -> None:
        """Wait for operations over gloo whose works do not tell that they have ended, such as messages between two ranks.

        Another thread calls `call`, which waits for them.

        Raises:
            RuntimeError: the call has raised it, or the wait was aborted.
        """
        if self._on_device:
            call()
            return
        ended, errors = threading.Event(), list[BaseException]()

        def run() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
                errors.append(error)
            finally:
                ended.set()

        threading.Thread(target=run, name="headway-messages", daemon=True).start()
        self._await(ended.wait)
        if errors:
            raise errors.pop()  # its traceback has the list, and would keep the operation with it

    def _await(self, ends_within: Callable[[float], bool]) -> None:
        """Wait until an operation ends, which `ends_within` tells after so many seconds at the latest.

        Raises:
            RuntimeError: the wait was aborted, and the operation does not end.
        """
        while not ends_within(_LOOK_S):
            if self._aborted and not ends_within(_ENDS_WITHIN_S):
                self._forgotten = True
                raise RuntimeError("the wait for peers was aborted")

    def outlast(self) -> bool:
        """Return True if an operation over gloo does not end after the abort, so that its group cannot be destroyed."""
        works = [self._gather] if self._on_device else [self._gather, self._begun]
        for _, work in filter(None, works):
            if not work.is_completed():
                with suppress(RuntimeError):
                    work.wait(timedelta(seconds=_ENDS_WITHIN_S))
                self._forgotten = self._forgotten or not work.is_completed()
        return self._forgotten

    def since_s(self) -> float | None:
        """Return the monotonic time at which the oldest operation began that has not ended; None without one."""
        blocked_s = self._blocked_s
        began = [began_s for began_s, promise in self._promises if not promise.fulfilled]
        if blocked_s is not None:
            began.append(blocked_s)
        begun = [one for one in (self._gather, self._begun) if one is not None]
        began += [began_s for began_s, work in begun if not work.is_completed()]
        return min(began, default=None)

    def fulfil(self) -> bool:
        """Fulfil every promise with its tensor as it is, and end the other waits. Return True if a promise was open."""
        self._aborted = True
        pending = [promise for _, promise in self._promises if not promise.fulfilled]
        for promise in pending:
            promise.fulfil()
        return bool(pending)
