"""Slots of this host: one per GPU that NVML lists, or one per CPU core where there is no GPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from headway.contract.agents import DEVICE_CPU, SlotInfo
from headway.contract.health import DeviceHealth
from headway.contract.values.devices import is_cpu, kind_name
from headway.errors import HeadwayError

T = TypeVar("T")


def find_slots(
    wanted: int | None,
    device_kind: str | None,
    known: Sequence[SlotInfo] = (),
    gpus: Sequence[SlotInfo] | None = None,
    claim: Callable[[str], str | None] = lambda _: None,
) -> list[SlotInfo]:
    """Return the slots to offer: without `device_kind` the GPUs, or one CPU slot per core where there is none.

    `cpu`, or a kind such as `cpu-old`, offers CPU slots.

    `known` are the slots that this agent offered before. A GPU keeps its slot number while the agent's folder
    exists, and a GPU that disappears keeps its number until another GPU takes it. `gpus` are the GPUs that
    NVML lists. `claim` claims the GPU with a uuid for this agent: only claimed ones are offered. It returns the
    name of another agent that offers the GPU, if there is one.

    Raises:
        HeadwayError: GPUs were requested by kind or number, and the host has fewer, or other agents offer them.
    """
    found = []
    held: dict[str, str] = {}
    cpu = DEVICE_CPU if device_kind is None else device_kind
    if device_kind is None or not is_cpu(device_kind):
        shown = gpu_slots() if gpus is None else gpus
        before, now = (
            [slot for slot in some if device_kind in (None, slot.device_kind)] for some in (known, shown)
        )
        before = [slot for slot in before if wanted is None or slot.index < wanted]
        mine, held = _claimed(before, now, wanted, claim)
        found = keep_places([slot for slot in before if slot.uuid not in held], mine)
    if not found and not held and is_cpu(cpu):
        return [SlotInfo(index=index, device_kind=cpu) for index in range(wanted or cpu_count())]
    if not found or (wanted or 0) > len(found):
        kind = "" if device_kind is None else f" of kind {device_kind}"
        if held:
            raise _offered_elsewhere(held, len(found), wanted)
        raise HeadwayError(
            f"This host has {len(found)} GPUs{kind}, but the agent is configured to offer {wanted or 1}.",
            "Check nvidia-smi, ask for fewer with --slots, or offer CPU slots with --device-kind cpu.",
        )
    return found[:wanted]


def _claimed(
    known: Sequence[SlotInfo],
    gpus: Sequence[SlotInfo],
    wanted: int | None,
    claim: Callable[[str], str | None],
) -> tuple[list[SlotInfo], dict[str, str]]:
    """Claim up to `wanted` GPUs, known ones first. Return them, and the holders of GPUs that are not free, by uuid."""
    before = {slot.uuid for slot in known}
    mine: list[SlotInfo] = []
    held: dict[str, str] = {}
    for gpu in sorted(gpus, key=lambda one: one.uuid not in before):
        if wanted is not None and len(mine) >= wanted:
            break
        holder = None if gpu.uuid is None else claim(gpu.uuid)
        if holder is None:
            mine.append(gpu)
        elif gpu.uuid is not None:
            held[gpu.uuid] = holder
    return sorted(mine, key=lambda one: one.index), held


def _offered_elsewhere(held: Mapping[str, str], free: int, wanted: int | None) -> HeadwayError:
    """Return the error for GPUs that other agents of this host offer."""
    others = ", ".join(f"{uuid} by agent {name}" for uuid, name in sorted(held.items()))
    return HeadwayError(
        f"Other agents of this host offer its GPUs: {others}. {free} are free, and this agent is to offer {wanted or 1}.",
        "Stop the other agent or give it fewer --slots, ask for fewer here, or offer CPU slots with --device-kind cpu. "
        "For tests, --share-gpus offers a GPU twice.",
    )


def keep_places(known: Sequence[SlotInfo], found: Sequence[SlotInfo]) -> list[SlotInfo]:
    """Return the GPU slots with stable numbers: a GPU that is still present keeps the number it had.

    A new GPU takes the number of a missing one, or the next number at the end. A missing GPU that no other
    replaces keeps its slot, without health values.
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
    """Return the slots with the current health of their devices; a device that does not answer has empty health.

    A new device becomes a slot only at the next start of the agent.
    """
    if all(slot.uuid is None for slot in slots):
        return list(slots)
    now = {slot.uuid: slot.health for slot in (gpu_slots() if gpus is None else gpus)}
    return [slot.model_copy(update={"health": now.get(slot.uuid, DeviceHealth())}) for slot in slots]


def gpu_slots() -> list[SlotInfo]:
    """Return every GPU that NVML lists, with its health; empty without a driver."""
    import pynvml  # noqa: PLC0415  # imported on use: pynvml loads the driver's library

    return read_gpus(pynvml, partial(_gpu, pynvml))


def read_gpus(nvml: Any, read: Callable[[int, Any], T]) -> list[T]:
    """Open NVML, and return the result of `read` for the index and handle of each GPU that answers.

    The list is empty without a driver.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):  # a lost device does not even return its name
                found.append(read(index, nvml.nvmlDeviceGetHandleByIndex(index)))
        return found
    finally:
        nvml.nvmlShutdown()


def query(nvml: Any, question: Any, *arguments: Any) -> int | None:
    """Return the answer to an NVML query, or None if the device does not support it."""
    try:
        return int(question(*arguments))
    except nvml.NVMLError:
        return None


def ecc_errors(nvml: Any, handle: Any) -> int | None:
    """Return the uncorrected memory errors since the driver was loaded, or None for a board without ECC."""
    kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return query(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, kind, since)


def cpu_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Return the memory of the host in bytes, or the limit of its control group if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # the file holds "max" where there is no limit
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8")))
    return total


def _gpu(nvml: Any, index: int, handle: Any) -> SlotInfo:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return SlotInfo(
        index=index,
        device_kind=kind_name(text(nvml.nvmlDeviceGetName(handle))),
        memory_bytes=int(memory.total),
        uuid=text(nvml.nvmlDeviceGetUUID(handle)),
        health=DeviceHealth(
            temperature_c=query(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            memory_used_bytes=int(memory.used),
            ecc_uncorrected=ecc_errors(nvml, handle),
        ),
    )


def text(value: str | bytes) -> str:
    """Return the value as `str`: older NVML bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value
