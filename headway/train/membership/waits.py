"""Waits of a rank for its peers: which operations with them have not ended, and since when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from headway.train.collectives.devices import Device, TorchDevice
from headway.train.collectives.futures import Promise


class Waits:
    """The operations of one generation that wait for peers. Other threads may call `since_s` and `fulfil`."""

    def __init__(self, device: Device | None = None) -> None:
        self._device = device or TorchDevice()
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
        """Fulfil every promise with its tensor as it is. Return True if one of their collectives has not ended."""
        pending = [promise for _, promise in self._promises if not promise.fulfilled]
        for promise in pending:
            promise.fulfil()
        return bool(pending)
