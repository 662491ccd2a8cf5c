"""The device on which a collective backend works: by default that of torch."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch


@runtime_checkable
class Device(Protocol):
    """A device, which runs operations after the calls of torch have returned.

    A `CollectiveBackend` that works on a device which torch does not know as an accelerator has these methods as well.
    """

    def future_of(self, tensor: torch.Tensor) -> torch.futures.Future[Any]:
        """Return a future for a result in this tensor. Who waits for it goes on after the operations that precede the result."""

    def synchronize(self) -> None:
        """Wait until the device has completed what it was given."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return True if the tensor lies on the device, and so moves by the backend's `transfer`."""


class TorchDevice:
    """The accelerator of this process; a CPU has completed everything when the calls have returned."""

    def future_of(self, tensor: torch.Tensor) -> torch.futures.Future[Any]:
        """Return a future on this tensor's device, to whose streams its result is bound."""
        return torch.futures.Future(devices=[] if tensor.device.type == "cpu" else [tensor.device])

    def synchronize(self) -> None:
        """Wait for all streams of the accelerator."""
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return True unless the tensor is in host memory."""
        return tensor.device.type != "cpu"
