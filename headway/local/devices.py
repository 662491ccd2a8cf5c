"""Division of this machine's GPUs, or of its cores, among the agents of `headway up`."""

from __future__ import annotations

from dataclasses import dataclass

from headway.contract.values.devices import is_cpu
from headway.local.processes import LocalError


@dataclass(frozen=True, slots=True)
class Share:
    """Slots of each agent, and their kind, as options of the agent; None leaves the choice to it."""

    slots: int | None
    device_kind: str | None
    note: str = ""
    """Sentence for the user if the agents offer something other than the GPUs of the machine; else empty."""


def share(agents: int, slots: int | None, device_kind: str | None, *, gpus: int, cpus: int) -> Share:
    """Return the share of each agent. With fewer GPUs than slots, agents offer CPU slots, unless a kind is named.

    Raises:
        LocalError: a kind of GPU is named, and the machine has fewer GPUs than slots.
    """
    wanted = agents * (slots or 1)
    cores = slots if slots is not None or agents < 2 else max(cpus // agents, 1)
    if (device_kind is not None and is_cpu(device_kind)) or (device_kind is None and not gpus):
        return Share(cores, device_kind)
    if gpus >= wanted:
        return Share(slots if slots is not None or agents < 2 else gpus // agents, device_kind)
    has = (
        f"This machine has {gpus} GPU{'' if gpus == 1 else 's'}, fewer than the {wanted} slots of its agents"
    )
    if device_kind is not None:
        raise LocalError(f"{has}.", "Ask for fewer --agents or --slots, or for --device-kind cpu.")
    note = f"{has}: they offer CPU slots. For its GPUs: headway up --agents 1."
    return Share(cores, "cpu", note)


def gpu_count() -> int:
    """Return the number of GPUs that NVML lists; 0 without a driver."""
    try:
        import pynvml  # noqa: PLC0415  # imported on use: pynvml loads the driver's library
    except ImportError:
        return 0
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()
