"""Probes of quarantined devices, at the service's request: one device at a time, each in its own process."""

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
from functools import partial
from pathlib import Path

import structlog

from headway.contract.agents import SlotInfo
from headway.contract.health import DeviceProbed
from worker_agent.host.folders import read_json, write_json
from worker_agent.link.outbox import Outbox

_log = structlog.get_logger()

LIMIT_S = 120
"""Time limit of a probe in seconds. A probe takes a few seconds; a longer one hangs."""
SLOWER = 1.5
"""Ratio to the time of the device's first probe above which the device counts as faulty."""
PROBE = (sys.executable, "-m", "worker_agent.launcher.probe")
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """Result of a probe. `product_s` is the time of a matrix product, or None if the probe did not measure one."""

    healthy: bool
    message: str
    product_s: float | None = None


def judge(output: str, errors: str, code: int | None, first_s: float | None, limit_s: float) -> ProbeOutcome:
    """Return the verdict on a device from the output of its probe process.

    Args:
        output: standard output of the process, a JSON object if the probe succeeded.
        errors: standard error of the process.
        code: its exit code, or None if it was killed at the time limit.
        first_s: seconds for a matrix product at the device's first probe, or None if this is the first.
        limit_s: the time limit in seconds.
    """
    if code is None:
        return ProbeOutcome(healthy=False, message=f"the probe did not end within {limit_s:.0f} s")
    try:
        result = json.loads(output)
        product_s, wrong, of = float(result["product_s"]), int(result["wrong"]), int(result["of"])
    except (ValueError, KeyError, TypeError):
        last = (errors.strip().splitlines() or [f"it exited with code {code} and no output"])[-1]
        return ProbeOutcome(healthy=False, message=f"the probe failed: {last[:500]}")
    if code or wrong:
        return ProbeOutcome(healthy=False, message=f"{wrong} of {of} matrix products were wrong")
    took = f"{1000 * product_s:.2f} ms for a matrix product"
    if first_s is not None and product_s > SLOWER * first_s:
        message = f"{took}, but {1000 * first_s:.2f} ms at the first probe"
        return ProbeOutcome(healthy=False, message=message, product_s=product_s)
    return ProbeOutcome(healthy=True, message=took, product_s=product_s)


class Prober:
    """Body of the probe thread. The JSON file `first_times` stores the time of each device's first successful probe."""

    def __init__(
        self,
        *,
        slots: Sequence[SlotInfo],
        outbox: Outbox,
        first_times: Path,
        environment: Mapping[str, str],
        stopping: threading.Event,
        command: Sequence[str] = PROBE,
        limit_s: int = LIMIT_S,
    ) -> None:
        self._slots = {slot.index: slot for slot in slots}
        self._outbox = outbox
        self._first_times = first_times
        self._environment = environment
        self._stopping = stopping
        self._command = command
        self._limit_s = limit_s
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._requested: set[int] = set()

    def request(self, slots: Sequence[int]) -> None:
        """Queue probes of these slots. The service repeats its request in every answer until it has the results."""
        for slot in set(slots) - self._requested:
            if slot in self._slots:
                self._queue.put(slot)
        self._requested = set(slots)

    def run(self) -> None:
        """Run the requested probes until the agent stops."""
        while not self._stopping.is_set():
            with contextlib.suppress(queue.Empty):
                self._probe(self._slots[self._queue.get(timeout=_LOOK_S)])

    def _probe(self, slot: SlotInfo) -> None:
        key = slot.uuid or slot.device_kind
        first: dict[str, float] = read_json(self._first_times) or {}
        ended = self._run_probe(slot)
        if ended is None:
            return
        outcome = judge(*ended, first.get(key), self._limit_s)
        if outcome.healthy and outcome.product_s is not None and key not in first:
            write_json(self._first_times, {**first, key: outcome.product_s})
        _log.info("probed", slot=slot.index, healthy=outcome.healthy, message=outcome.message)
        draft = partial(DeviceProbed, slot=slot.index, healthy=outcome.healthy, message=outcome.message)
        self._outbox.add(draft, urgent=True)

    def _run_probe(self, slot: SlotInfo) -> tuple[str, str, int | None] | None:
        """Return output, errors and exit code of a probe process, or None if the agent stops meanwhile."""
        cuda = ["--cuda"] if slot.uuid is not None else []
        process = subprocess.Popen(
            [*self._command, "--limit-s", str(self._limit_s), *cuda],
            env={**self._environment, "CUDA_VISIBLE_DEVICES": slot.uuid or "", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
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
