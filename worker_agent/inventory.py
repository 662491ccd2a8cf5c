"""The slots of this host: GPUs through NVML where there are any, CPU slots otherwise."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from headway.contract.agents import DEVICE_CPU, DeviceHealth, SlotInfo
from headway.errors import HeadwayError

_BRANDS = re.compile(r"\b(nvidia|amd|tesla|geforce|quadro|graphics|generation|instinct)\b", re.IGNORECASE)
_VARIANT = re.compile(r"^(sxm\d*|pcie|hbm\d*e?|nvl|\d+gb?|oam)$", re.IGNORECASE)


def kind_name(product: str) -> str:
    """Device kind of an NVML product name: the family, without maker, form factor and memory size.

    `NVIDIA A100-SXM4-80GB` is `a100`, `NVIDIA GeForce RTX 4090` is `rtx4090`, `Tesla T4` is `t4`.
    """
    words = re.split(r"[\s\-_/]+", _BRANDS.sub(" ", product).strip())
    kept = [word for word in words if word and not _VARIANT.match(word)]
    name = re.sub(r"[^a-z0-9.]", "", "".join(kept).lower()).lstrip(".")
    return name[:63] or "gpu"


def find_slots(wanted: int | None, device_kind: str | None) -> list[SlotInfo]:
    """Slots to offer. Without `device_kind`: the GPUs if there are any, else one CPU slot per core.

    Raises:
        HeadwayError: GPUs were asked for by kind or number, and there are not as many.
    """
    gpus = [] if device_kind == DEVICE_CPU else gpu_slots()
    if device_kind is not None:
        gpus = [slot for slot in gpus if slot.device_kind == device_kind]
    if not gpus and device_kind in (None, DEVICE_CPU):
        return [SlotInfo(index=index, device_kind=DEVICE_CPU) for index in range(wanted or cpu_count())]
    if not gpus or (wanted or 0) > len(gpus):
        raise HeadwayError(
            f"This host has {len(gpus)} GPUs of the kind {device_kind or 'any'}, not {wanted or 'one'}.",
            "Check nvidia-smi, ask for fewer with --slots, or offer CPU slots with --device-kind cpu.",
        )
    return gpus[:wanted]


def gpu_slots() -> list[SlotInfo]:
    """Every GPU that NVML shows, with its health; empty without a driver."""
    import pynvml  # noqa: PLC0415  # only where it is asked for: it looks for the driver's library

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def cpu_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Memory of the host, or less where its control group allows less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def _gpu(pynvml: Any, index: int) -> SlotInfo:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    health = DeviceHealth(memory_used_bytes=int(memory.used))
    with contextlib.suppress(pynvml.NVMLError):
        health.temperature_c = int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    with contextlib.suppress(pynvml.NVMLError):  # boards without ECC say that they do not support it
        health.ecc_uncorrected = int(
            pynvml.nvmlDeviceGetTotalEccErrors(
                handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        )
    return SlotInfo(
        index=index,
        device_kind=kind_name(_text(pynvml.nvmlDeviceGetName(handle))),
        memory_bytes=int(memory.total),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        health=health,
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
