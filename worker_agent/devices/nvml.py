"""Device readings and Xid events from NVIDIA's driver, through NVML. Unsupported values are left out."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

from worker_agent.devices.inventory import ecc_errors, query, read_gpus, text
from worker_agent.devices.watch import Reading, XidEvent


class NvmlDevices:
    """Implementation of `watch.Devices` with `nvml`, the module `pynvml`.

    Call `readings` and `xids` each from one thread only. Every call of `readings` opens NVML anew, because a
    lost device stays in the list of a process that keeps NVML open. `xids` keeps NVML open, because events
    are lost while it is closed.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._names: dict[int | None, str] = {}

    def readings(self) -> Sequence[Reading]:
        """Return a reading of every device that answers."""
        with contextlib.suppress(self._nvml.NVMLError):
            return read_gpus(self._nvml, self._reading)
        return []

    def xids(self, timeout_s: float) -> Sequence[XidEvent] | None:
        """Wait for the next Xid and return it, or an empty list after `timeout_s`.

        Return None while the driver delivers no events; the caller may retry later.
        """
        nvml = self._nvml
        try:
            if self._events is None:
                self._listen()
            event = nvml.nvmlEventSetWait_v2(self._events, int(timeout_s * 1000))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return []
            self.close()
            return None
        uuid = self._names.get(_address(event.device))
        if uuid is None or event.eventType != nvml.nvmlEventTypeXidCriticalError:
            return []
        return [XidEvent(uuid, int(event.eventData))]

    def close(self) -> None:
        """Stop listening for events, and release NVML."""
        if self._events is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)
                self._nvml.nvmlShutdown()
        self._events = None
        self._names.clear()

    def _listen(self) -> None:
        nvml = self._nvml
        nvml.nvmlInit()
        try:
            events = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                with contextlib.suppress(nvml.NVMLError):  # not every device supports events
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                    self._names[_address(handle)] = text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError:
            nvml.nvmlShutdown()
            raise
        self._events = events

    def _reading(self, _: int, handle: Any) -> Reading:
        nvml = self._nvml
        slowdown = nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        return Reading(
            uuid=text(nvml.nvmlDeviceGetUUID(handle)),
            temperature_c=query(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            slowdown_c=query(nvml, nvml.nvmlDeviceGetTemperatureThreshold, handle, slowdown),
            ecc_uncorrected=ecc_errors(nvml, handle),
            out_of_spare_rows=self._out_of_spare_rows(handle),
        )

    def _out_of_spare_rows(self, handle: Any) -> bool:
        """Return True if a faulty memory row could not be remapped.

        NVML returns four values: correctable, uncorrectable, pending, failed. The last one counts.
        """
        try:
            return bool(self._nvml.nvmlDeviceGetRemappedRows(handle)[3])
        except self._nvml.NVMLError:
            return False


def _address(handle: Any) -> int | None:
    """Return the address that all handles of a device share."""
    return ctypes.cast(handle, ctypes.c_void_p).value
