"""NVML over a table of devices, in the names of its own functions."""

# ruff: noqa: N802, N815

from __future__ import annotations

from typing import Any


class FakeNvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class FakeNvml:
    """The functions of NVML that are used, over a table of devices. Handles are addresses."""

    NVMLError = FakeNvmlError
    NVML_ERROR_TIMEOUT = 10
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, devices: dict[int, dict[str, Any]]) -> None:
        self.devices = devices
        self.driver = True
        self.events: list[Any] = []
        self.open = 0
        self.registered: list[int] = []

    def nvmlInit(self) -> None:
        if not self.driver:
            raise FakeNvmlError(9)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return 4096 + index

    def _ask(self, handle: int, what: str) -> Any:
        value = self.devices[handle - 4096].get(what)
        if value is None:
            raise FakeNvmlError(3)
        return value

    def nvmlDeviceGetUUID(self, handle: int) -> Any:
        return self._ask(handle, "uuid")

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> Any:
        return self._ask(handle, "temperature")

    def nvmlDeviceGetTemperatureThreshold(self, handle: int, which: int) -> Any:
        return self._ask(handle, "slowdown")

    def nvmlDeviceGetTotalEccErrors(self, handle: int, error: int, counter: int) -> Any:
        return self._ask(handle, "ecc")

    def nvmlDeviceGetRemappedRows(self, handle: int) -> Any:
        return self._ask(handle, "rows")

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: object) -> None:
        self._ask(handle, "events")
        self.registered.append(handle)

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        if not self.events:
            raise FakeNvmlError(self.NVML_ERROR_TIMEOUT)
        event = self.events.pop(0)
        if isinstance(event, Exception):
            raise event
        return event

    def nvmlEventSetFree(self, events: object) -> None:
        self.registered.clear()


class Event:
    def __init__(self, device: int, code: int, kind: int = 8) -> None:
        self.device = device
        self.eventData = code
        self.eventType = kind
