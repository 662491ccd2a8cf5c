"""What NVIDIA's driver says of its devices, through NVML. Everything that it may not support is left out."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

from worker_agent.devices import Reading, XidEvent
from worker_agent.inventory import text


class NvmlDevices:
    """Implements `devices.Devices`. `nvml` is the module `pynvml`.

    `readings` and `xids` are for one thread each: every call of the first opens NVML anew, since a device that is gone stays
    in the list of whoever has it open; the second keeps it open, since events are lost meanwhile.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._names: dict[int | None, str] = {}

    def readings(self) -> Sequence[Reading]:
        """Every device that answers."""
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return []
        found = []
        with contextlib.suppress(nvml.NVMLError):
            for index in range(nvml.nvmlDeviceGetCount()):
                with contextlib.suppress(nvml.NVMLError):  # lost: it does not even say its name
                    found.append(self._reading(nvml.nvmlDeviceGetHandleByIndex(index)))
        nvml.nvmlShutdown()
        return found

    def xids(self, timeout_s: float) -> Sequence[XidEvent] | None:
        """The Xid that comes next, or nothing after the timeout. None: the driver tells none now; ask again later."""
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
        """Listen no more."""
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
                with contextlib.suppress(nvml.NVMLError):  # not every device has events
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                    self._names[_address(handle)] = text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError:
            nvml.nvmlShutdown()
            raise
        self._events = events

    def _reading(self, handle: Any) -> Reading:
        nvml = self._nvml
        return Reading(
            uuid=text(nvml.nvmlDeviceGetUUID(handle)),
            temperature_c=self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            slowdown_c=self._ask(
                nvml.nvmlDeviceGetTemperatureThreshold, handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
            ecc_uncorrected=self._ask(
                nvml.nvmlDeviceGetTotalEccErrors,
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            out_of_spare_rows=self._out_of_spare_rows(handle),
        )

    def _ask(self, question: Any, *arguments: Any) -> int | None:
        try:
            return int(question(*arguments))
        except self._nvml.NVMLError:
            return None

    def _out_of_spare_rows(self, handle: Any) -> bool:
        """Whether bad rows of memory could not be replaced: the last of correctable, uncorrectable, pending, failed."""
        try:
            return bool(self._nvml.nvmlDeviceGetRemappedRows(handle)[3])
        except self._nvml.NVMLError:
            return False


def _address(handle: Any) -> int | None:
    """What two handles of a device have in common."""
    return ctypes.cast(handle, ctypes.c_void_p).value
