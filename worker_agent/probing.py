"""Try out devices that the service does not trust, when it asks for it: one at a time, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from headway.contract.agents import SlotInfo
from headway.contract.health import DeviceProbed
from worker_agent.folders import read_json, write_json
from worker_agent.outbox import Outbox

_log = structlog.get_logger()

LIMIT_S = 120
"""A probe takes seconds; one that takes longer hangs."""
SLOWER = 1.5
"""A device is bad that takes so many times as long as at its first probe."""
PROBE = (sys.executable, "-m", "worker_agent.launcher.probe")
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Tried:
    """What a probe has found. `product_s` is None where it did not come so far."""

    healthy: bool
    message: str
    product_s: float | None = None


def judge(output: str, errors: str, code: int | None, first_s: float | None, limit_s: float) -> Tried:
    """What a probe process says about a device that took `first_s` for a product at its first probe (None: this is it).

    `code` is its exit code, None where it was ended at its limit.
    """
    if code is None:
        return Tried(healthy=False, message=f"the probe did not end within {limit_s:.0f} s")
    try:
        said = json.loads(output)
        product_s, wrong, of = float(said["product_s"]), int(said["wrong"]), int(said["of"])
    except (ValueError, KeyError, TypeError):
        last = (errors.strip().splitlines() or [f"it ended with {code} and said nothing"])[-1]
        return Tried(healthy=False, message=f"the probe failed: {last[:500]}")
    if code or wrong:
        return Tried(healthy=False, message=f"{wrong} of {of} matrix products were wrong")
    took = f"{1000 * product_s:.2f} ms for a matrix product"
    if first_s is not None and product_s > SLOWER * first_s:
        message = f"{took}, and {1000 * first_s:.2f} ms when it was first tried"
        return Tried(healthy=False, message=message, product_s=product_s)
    return Tried(healthy=True, message=took, product_s=product_s)


class Prober:
    """The thread's body. `memory` is the file that remembers how fast each device was when it was first tried."""

    def __init__(
        self,
        *,
        slots: Sequence[SlotInfo],
        outbox: Outbox,
        memory: Path,
        environment: Mapping[str, str],
        stopping: threading.Event,
        command: Sequence[str] = PROBE,
        limit_s: int = LIMIT_S,
    ) -> None:
        self._slots = {slot.index: slot for slot in slots}
        self._outbox = outbox
        self._memory = memory
        self._environment = environment
        self._stopping = stopping
        self._command = command
        self._limit_s = limit_s
        self._asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._known: set[int] = set()

    def ask(self, slots: Sequence[int]) -> None:
        """The service wants these to be tried; said again with every report until it has the answers."""
        for slot in set(slots) - self._known:
            if slot in self._slots:
                self._asked.put(slot)
        self._known = set(slots)

    def run(self) -> None:
        """Try what is asked for, until told to stop."""
        while not self._stopping.is_set():
            with contextlib.suppress(queue.Empty):
                self._try(self._slots[self._asked.get(timeout=_LOOK_S)])

    def _try(self, slot: SlotInfo) -> None:
        key = slot.uuid or slot.device_kind
        first: dict[str, float] = read_json(self._memory) or {}
        ended = self._run_probe(slot)
        if ended is None:
            return
        tried = judge(*ended, first.get(key), self._limit_s)
        if tried.healthy and tried.product_s is not None and key not in first:
            write_json(self._memory, {**first, key: tried.product_s})
        _log.info("probed", slot=slot.index, healthy=tried.healthy, message=tried.message)
        self._outbox.add(
            lambda sequence, at: DeviceProbed(
                sequence=sequence, at=at, slot=slot.index, healthy=tried.healthy, message=tried.message
            ),
            urgent=True,
        )

    def _run_probe(self, slot: SlotInfo) -> tuple[str, str, int | None] | None:
        """Output, errors and exit code of a probe process; None where the agent ends meanwhile."""
        cuda = ["--cuda"] if slot.uuid is not None else []
        process = subprocess.Popen(
            [*self._command, "--limit-s", str(self._limit_s), *cuda],
            env={**self._environment, "CUDA_VISIBLE_DEVICES": slot.uuid or "", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        give_up_s = time.monotonic() + self._limit_s
        while True:
            try:
                output, errors = process.communicate(timeout=_LOOK_S)
            except subprocess.TimeoutExpired:
                over = time.monotonic() > give_up_s
                if over or self._stopping.is_set():
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    output, errors = process.communicate()
                    return (output, errors, None) if over else None
            else:
                return output, errors, process.returncode
