"""Measurement of a step on a device: its computing time and its memory."""

from __future__ import annotations

import time

import torch


class DeviceMeter:
    """Meter of this rank's own computation, from the start of a step to the last part of the gradient.

    An accelerator works asynchronously, so the meter records events on it, and reads their times once both
    have passed. Host memory is not measured.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self._device else []  # type: ignore[no-untyped-call]
        self._began_s = 0.0
        self._took_s = 0.0
        self._static_bytes = 0
        self.memory_bytes = memory_of(device)
        """Memory of the accelerator; None on a host."""

    def begin(self) -> None:
        """Record the start of a step."""
        self._took_s = 0.0
        self._began_s = time.perf_counter()
        if self._device is not None:
            self._events[0].record()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._static_bytes = torch.cuda.memory_allocated(self._device)

    def end(self) -> None:
        """Record the end of this rank's part of the gradient."""
        self._took_s = time.perf_counter() - self._began_s
        if self._events:
            self._events[1].record()

    @property
    def compute_s(self) -> float:
        """Computing time of the last step in seconds; 0 while unknown."""
        if not self._took_s or not self._events:
            return self._took_s
        began, ended = self._events
        return began.elapsed_time(ended) / 1000 if ended.query() else 0.0  # type: ignore[no-untyped-call]

    def peak_bytes(self) -> tuple[int, int] | None:
        """Return the peak memory since `begin`, and the memory in use at `begin`, in bytes."""
        if self._device is None:
            return None
        return torch.cuda.max_memory_allocated(self._device), self._static_bytes


def memory_of(device: torch.device) -> int | None:
    """Return the bytes of an accelerator's memory; None for a host."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None
