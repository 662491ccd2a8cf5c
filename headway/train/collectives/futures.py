"""Promises of tensors that collectives fill."""

from __future__ import annotations

import threading
from typing import Any

import torch

from headway.train.collectives.devices import Device


class Promise:
    """A tensor that a collective will fill. It is fulfilled once: by the collective, or when that is abandoned.

    On an accelerator it is fulfilled while the collective is still in progress: whoever waits for it makes the present
    stream wait for the collective's.
    """

    def __init__(self, tensor: torch.Tensor, device: Device) -> None:
        self.future: torch.futures.Future[Any] = device.future_of(tensor)
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
