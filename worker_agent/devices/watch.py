"""Monitoring of this host's devices: Xid events, memory errors, temperature and presence."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Protocol

import structlog

from headway.contract.agents import SlotInfo
from headway.contract.health import DeviceFault, FaultCause
from worker_agent.link.outbox import Outbox

_log = structlog.get_logger()

POLL_S = 5.0
HOT_READINGS = 3
"""Consecutive readings at or above the slowdown temperature after which a device is reported as hot."""
COOLED_BY_C = 10
"""Degrees Celsius below the slowdown temperature at which a device no longer counts as hot.

This hysteresis reports a device whose temperature varies around the limit only once.
"""
GONE_READINGS = 2
"""Consecutive readings without a device after which it is reported as gone.

A device is also absent for a moment while the driver resets it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Reading of one device; None means that the device does not report the value.

    `slowdown_c` is the temperature at which the device throttles itself. `ecc_uncorrected` counts errors
    since the driver was loaded. `out_of_spare_rows` is set when faulty memory could not be remapped.
    """

    uuid: str
    temperature_c: int | None = None
    slowdown_c: int | None = None
    ecc_uncorrected: int | None = None
    out_of_spare_rows: bool = False


@dataclass(frozen=True, slots=True)
class XidEvent:
    """Fault of a device that the driver reports, with its Xid code."""

    uuid: str
    code: int


class Devices(Protocol):
    """The devices of a host."""

    def readings(self) -> Sequence[Reading]:
        """Return a reading of every device that answers."""

    def xids(self, timeout_s: float) -> Sequence[XidEvent] | None:
        """Return the Xids of the next `timeout_s`, or None while none are delivered; the caller may retry later."""

    def close(self) -> None:
        """Stop listening for events, and release resources."""


@dataclass(frozen=True, slots=True)
class DeviceFinding:
    """Problem to report about a slot. The fields are those of `DeviceFault`."""

    slot: int
    cause: FaultCause
    code: int | None = None
    lasting: bool = False
    message: str = ""


class DeviceWatch:
    """Comparison of each reading with the ones before it.

    It does no I/O. Its state is empty after a restart of the agent; the service still has the earlier
    reports.
    """

    def __init__(self, slots: Sequence[SlotInfo]) -> None:
        self._slots = {slot.uuid: slot.index for slot in slots if slot.uuid is not None}
        self._errors: dict[str, int] = {}
        self._out_of_rows: set[str] = set()
        self._hot: dict[str, int] = {}
        self._missing: dict[str, int] = {}

    @property
    def watches(self) -> bool:
        """True if this host has a device that can be monitored."""
        return bool(self._slots)

    def xid(self, event: XidEvent) -> list[DeviceFinding]:
        """Return the finding for a driver event, or nothing if its device is no slot of this agent."""
        slot = self._slots.get(event.uuid)
        return [] if slot is None else [DeviceFinding(slot, FaultCause.XID, event.code)]

    def look(self, readings: Sequence[Reading]) -> list[DeviceFinding]:
        """Return the new findings in these readings, which cover all devices."""
        there = {one.uuid: one for one in readings}
        found: list[DeviceFinding] = []
        for uuid, slot in self._slots.items():
            reading = there.get(uuid)
            if reading is None:
                found += self._gone(uuid, slot)
                continue
            self._missing[uuid] = 0
            found += [*self._ecc(reading, slot), *self._temperature(reading, slot)]
        return found

    def _gone(self, uuid: str, slot: int) -> list[DeviceFinding]:
        self._missing[uuid] = self._missing.get(uuid, 0) + 1
        if self._missing[uuid] != GONE_READINGS:
            return []
        return [DeviceFinding(slot, FaultCause.GONE, message=f"{uuid} does not answer")]

    def _ecc(self, reading: Reading, slot: int) -> list[DeviceFinding]:
        uuid, count = reading.uuid, reading.ecc_uncorrected
        if reading.out_of_spare_rows and uuid not in self._out_of_rows:
            self._out_of_rows.add(uuid)
            return [DeviceFinding(slot, FaultCause.ECC, count, lasting=True)]
        if count is None:
            return []
        before, self._errors[uuid] = self._errors.get(uuid, count), count
        # A lower count than before: the driver was reloaded, and counts from zero.
        new = count - before if count >= before else count
        if not new:
            return []
        return [
            DeviceFinding(slot, FaultCause.ECC, count, message=f"new memory errors: {new}, in total: {count}")
        ]

    def _temperature(self, reading: Reading, slot: int) -> list[DeviceFinding]:
        uuid, now_c, limit_c = reading.uuid, reading.temperature_c, reading.slowdown_c
        if now_c is None or not limit_c:
            return []
        times = self._hot.get(uuid, 0)
        if now_c >= limit_c:
            self._hot[uuid] = times + 1
        elif times < HOT_READINGS or now_c < limit_c - COOLED_BY_C:
            self._hot[uuid] = 0
        if times + 1 != HOT_READINGS or now_c < limit_c:
            return []
        return [
            DeviceFinding(
                slot,
                FaultCause.TEMPERATURE,
                now_c,
                message=f"{now_c} °C; the device throttles at {limit_c} °C",
            )
        ]


class DeviceWatcher:
    """Bodies of two threads: one polls the devices, the other waits for Xids. Both report findings at once."""

    def __init__(
        self,
        *,
        devices: Devices,
        slots: Sequence[SlotInfo],
        outbox: Outbox,
        stopping: threading.Event,
        poll_s: float = POLL_S,
    ) -> None:
        self._devices = devices
        self._watch = DeviceWatch(slots)
        self._outbox = outbox
        self._stopping = stopping
        self._poll_s = poll_s

    @property
    def watches(self) -> bool:
        """True if this host has a device that can be monitored."""
        return self._watch.watches

    def poll(self) -> None:
        """Read all devices every `poll_s` seconds until the agent stops."""
        while not self._stopping.is_set():
            self._report(self._watch.look(self._devices.readings()))
            self._stopping.wait(self._poll_s)

    def listen(self) -> None:
        """Wait for Xids until the agent stops."""
        while not self._stopping.is_set():
            events = self._devices.xids(self._poll_s)
            if events is None:
                self._stopping.wait(self._poll_s)
                continue
            for event in events:
                self._report(self._watch.xid(event))
        self._devices.close()

    def _report(self, findings: Sequence[DeviceFinding]) -> None:
        for one in findings:
            _log.warning("device", slot=one.slot, cause=one.cause, code=one.code, message=one.message)
            self._outbox.add(partial(DeviceFault, **asdict(one)), urgent=True)
