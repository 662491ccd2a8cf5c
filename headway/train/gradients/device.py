"""Measurement of a step on a device: its computing time and its memory."""

from __future__ import annotations

import time

import torch

_MEMORY_SHARE = 0.001
"""Share of the time of steps that measurements of memory may take."""


class MemoryTurns:
    """Decides in which steps the memory is measured. Values are in seconds.

    It is in the first step with micro-batches of a new size, and then as often as `share` of the time allows.
    """

    def __init__(self, share: float = _MEMORY_SHARE) -> None:
        self._share = share
        self._samples: int | None = None
        self._next_s = 0.0

    def due(self, now_s: float, samples: int) -> bool:
        """Return True if this step, which begins with a micro-batch of so many samples, is to be measured."""
        changed, self._samples = samples != self._samples, samples
        return changed or now_s >= self._next_s

    def measured(self, now_s: float, took_s: float) -> None:
        """Record a measurement that took so long."""
        self._next_s = now_s + took_s / self._share


class DeviceMeter:
    """Meter of this rank's own computation, from the start of a step to the last part of the gradient.

    An accelerator works asynchronously, so the meter records events on it, and reads their times once both
    have passed. Memory is measured in some steps only, because that takes as long as many kernels; host memory never.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self._device else []  # type: ignore[no-untyped-call]
        self._began_s = 0.0
        self._took_s = 0.0
        self._turns = MemoryTurns()
        self._measures = False
        self._spent_s = 0.0
        self._static_bytes = 0
        self.memory_bytes = memory_of(device)
        """Memory of the accelerator; None on a host."""

    def begin(self, samples: int) -> None:
        """Record the start of a step, whose first micro-batch has so many samples."""
        self._took_s = 0.0
        self._began_s = time.perf_counter()
        if self._device is not None:
            self._events[0].record()
            self._measures = self._turns.due(self._began_s, samples)
            if self._measures:
                torch.cuda.reset_peak_memory_stats(self._device)
                self._static_bytes = torch.cuda.memory_allocated(self._device)
                self._spent_s = time.perf_counter() - self._began_s

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
        """Return the peak memory since `begin`, and the memory in use at `begin`, in bytes. None in most steps."""
        if not self._measures:
            return None
        began_s, self._measures = time.perf_counter(), False
        peak = torch.cuda.max_memory_allocated(self._device)
        now_s = time.perf_counter()
        self._turns.measured(now_s, self._spent_s + now_s - began_s)
        return peak, self._static_bytes


def memory_of(device: torch.device) -> int | None:
    """Return the bytes of an accelerator's memory; None for a host."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None


def device_of(local_rank: int) -> torch.device:
    """Return the device of the rank with this number on its host, and select it."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
