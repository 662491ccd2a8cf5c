"""The slots of this host: GPUs through NVML where there are any, CPU slots otherwise."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
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


def find_slots(
    wanted: int | None,
    device_kind: str | None,
    known: Sequence[SlotInfo] = (),
    gpus: Sequence[SlotInfo] | None = None,
) -> list[SlotInfo]:
    """Slots to offer. Without `device_kind`: the GPUs if there are any, else one CPU slot per core.

    `known` are the slots that this agent offered before: a GPU keeps its number for as long as the agent's folder lives, and
    one that is gone keeps its place until another one takes it. `gpus` are those that NVML shows.

    Raises:
        HeadwayError: GPUs were asked for by kind or number, and there are not as many.
    """
    found = []
    if device_kind != DEVICE_CPU:
        shown = gpu_slots() if gpus is None else gpus
        before, now = (
            [slot for slot in some if device_kind in (None, slot.device_kind)] for some in (known, shown)
        )
        found = keep_places(before, now)
    if not found and device_kind in (None, DEVICE_CPU):
        return [SlotInfo(index=index, device_kind=DEVICE_CPU) for index in range(wanted or cpu_count())]
    if not found or (wanted or 0) > len(found):
        raise HeadwayError(
            f"This host has {len(found)} GPUs of the kind {device_kind or 'any'}, not {wanted or 'one'}.",
            "Check nvidia-smi, ask for fewer with --slots, or offer CPU slots with --device-kind cpu.",
        )
    return found[:wanted]


def keep_places(known: Sequence[SlotInfo], found: Sequence[SlotInfo]) -> list[SlotInfo]:
    """The GPUs that are there at the numbers that they had; new ones at those of GPUs that are gone, or at the end. One that
    is gone and that no other replaces stays, without health.
    """
    there = {slot.uuid: slot for slot in found}
    places = {slot.index: slot for slot in known if slot.uuid is not None}
    kept = {slot.uuid for slot in places.values() if slot.uuid in there}
    new = [slot for slot in found if slot.uuid not in kept]
    free = [index for index, slot in sorted(places.items()) if slot.uuid not in there]
    free += range(max(places, default=-1) + 1, max(places, default=-1) + 1 + len(new))
    for index, slot in places.items():
        places[index] = there.get(slot.uuid, slot.model_copy(update={"health": DeviceHealth()}))
    places.update(zip(free, new, strict=False))
    return [places[index].model_copy(update={"index": index}) for index in sorted(places)]


def with_health(slots: Sequence[SlotInfo], gpus: Sequence[SlotInfo] | None = None) -> list[SlotInfo]:
    """The slots with their health now; those whose device does not answer without. A new device is found at the next start."""
    if all(slot.uuid is None for slot in slots):
        return list(slots)
    now = {slot.uuid: slot.health for slot in (gpu_slots() if gpus is None else gpus)}
    return [slot.model_copy(update={"health": now.get(slot.uuid, DeviceHealth())}) for slot in slots]


def gpu_slots() -> list[SlotInfo]:
    """Every GPU that NVML shows, with its health; empty without a driver."""
    import pynvml  # noqa: PLC0415  # only where it is asked for: it looks for the driver's library

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):  # one that is lost does not even say its name
                found.append(_gpu(pynvml, index))
        return found
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
    temperature_c = ecc_uncorrected = None
    with contextlib.suppress(pynvml.NVMLError):
        temperature_c = int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    with contextlib.suppress(pynvml.NVMLError):  # boards without ECC say that they do not support it
        ecc_uncorrected = int(
            pynvml.nvmlDeviceGetTotalEccErrors(
                handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        )
    return SlotInfo(
        index=index,
        device_kind=kind_name(text(pynvml.nvmlDeviceGetName(handle))),
        memory_bytes=int(memory.total),
        uuid=text(pynvml.nvmlDeviceGetUUID(handle)),
        health=DeviceHealth(
            temperature_c=temperature_c, memory_used_bytes=int(memory.used), ecc_uncorrected=ecc_uncorrected
        ),
    )


def text(value: str | bytes) -> str:
    """What older versions of NVML's bindings say as bytes."""
    return value.decode() if isinstance(value, bytes) else value
