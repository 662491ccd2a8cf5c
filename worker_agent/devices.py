"""Watch the devices of this host: Xids as they come, memory errors, temperature, and whether they are still there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog

from headway.contract.agents import SlotInfo
from headway.contract.health import DeviceFault, FaultCause
from worker_agent.outbox import Draft, Outbox

_log = structlog.get_logger()

POLL_S = 5.0
HOT_READINGS = 3
"""A device is hot that was at the temperature at which it slows itself down so many times in a row."""
COOLED_BY_C = 10
"""It is until it is so much cooler: one that goes to and fro about the limit is said once."""
GONE_READINGS = 2
"""A device is gone that was missing so many times in a row: while the driver resets it, it is not there either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a device says of itself now; None: it cannot say. `slowdown_c` is where it slows itself down.

    `ecc_uncorrected` counts since the driver was loaded. `out_of_spare_rows`: bad memory could not be replaced.
    """

    uuid: str
    temperature_c: int | None = None
    slowdown_c: int | None = None
    ecc_uncorrected: int | None = None
    out_of_spare_rows: bool = False


@dataclass(frozen=True, slots=True)
class XidEvent:
    """The driver has reported a fault of a device."""

    uuid: str
    code: int


class Devices(Protocol):
    """The devices of a host."""

    def readings(self) -> Sequence[Reading]:
        """Every device that answers."""

    def xids(self, timeout_s: float) -> Sequence[XidEvent] | None:
        """Xids that came within the timeout. None: none are told now; ask again later."""

    def close(self) -> None:
        """Listen no more."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to be reported about a slot; the fields are those of `DeviceFault`."""

    slot: int
    cause: FaultCause
    code: int | None = None
    lasting: bool = False
    message: str = ""


class Watch:
    """Compares each reading with those before. Pure but for its memory, which begins anew with the agent: the service
    knows what it was told before.
    """

    def __init__(self, slots: Sequence[SlotInfo]) -> None:
        self._slots = {slot.uuid: slot.index for slot in slots if slot.uuid is not None}
        self._errors: dict[str, int] = {}
        self._out_of_rows: set[str] = set()
        self._hot: dict[str, int] = {}
        self._missing: dict[str, int] = {}

    @property
    def watches(self) -> bool:
        """Whether there is any device that could go bad."""
        return bool(self._slots)

    def xid(self, event: XidEvent) -> list[Finding]:
        """What the driver has reported, if it is about a slot."""
        slot = self._slots.get(event.uuid)
        return [] if slot is None else [Finding(slot, FaultCause.XID, event.code)]

    def look(self, readings: Sequence[Reading]) -> list[Finding]:
        """What is new in these readings, which are of all devices."""
        there = {one.uuid: one for one in readings}
        found: list[Finding] = []
        for uuid, slot in self._slots.items():
            reading = there.get(uuid)
            if reading is None:
                found += self._gone(uuid, slot)
                continue
            self._missing[uuid] = 0
            found += [*self._ecc(reading, slot), *self._temperature(reading, slot)]
        return found

    def _gone(self, uuid: str, slot: int) -> list[Finding]:
        self._missing[uuid] = self._missing.get(uuid, 0) + 1
        if self._missing[uuid] != GONE_READINGS:
            return []
        return [Finding(slot, FaultCause.GONE, message=f"{uuid} does not answer")]

    def _ecc(self, reading: Reading, slot: int) -> list[Finding]:
        uuid, count = reading.uuid, reading.ecc_uncorrected
        if reading.out_of_spare_rows and uuid not in self._out_of_rows:
            self._out_of_rows.add(uuid)
            return [Finding(slot, FaultCause.ECC, count, lasting=True)]
        if count is None:
            return []
        before, self._errors[uuid] = self._errors.get(uuid, count), count
        # Fewer than before: the driver was loaded anew, and counts from zero.
        new = count - before if count >= before else count
        if not new:
            return []
        return [Finding(slot, FaultCause.ECC, count, message=f"{new} more, {count} in all")]

    def _temperature(self, reading: Reading, slot: int) -> list[Finding]:
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
            Finding(slot, FaultCause.TEMPERATURE, now_c, message=f"{now_c} °C, at {limit_c} °C it slows down")
        ]


class DeviceWatcher:
    """The bodies of two threads: one polls, the other waits for Xids. What they find is reported at once."""

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
        self._watch = Watch(slots)
        self._outbox = outbox
        self._stopping = stopping
        self._poll_s = poll_s

    @property
    def watches(self) -> bool:
        """Whether there is any device that could go bad."""
        return self._watch.watches

    def poll(self) -> None:
        """Read all devices now and then, until told to stop."""
        while not self._stopping.is_set():
            self._report(self._watch.look(self._devices.readings()))
            self._stopping.wait(self._poll_s)

    def listen(self) -> None:
        """Wait for Xids, until told to stop."""
        while not self._stopping.is_set():
            events = self._devices.xids(self._poll_s)
            if events is None:
                self._stopping.wait(self._poll_s)
                continue
            for event in events:
                self._report(self._watch.xid(event))
        self._devices.close()

    def _report(self, findings: Sequence[Finding]) -> None:
        for one in findings:
            _log.warning("device", slot=one.slot, cause=one.cause, code=one.code, message=one.message)
            self._outbox.add(_draft(one), urgent=True)


def _draft(one: Finding) -> Draft:
    def fault(sequence: int, at: datetime) -> DeviceFault:
        return DeviceFault(
            sequence=sequence,
            at=at,
            slot=one.slot,
            cause=one.cause,
            code=one.code,
            lasting=one.lasting,
            message=one.message,
        )

    return fault
