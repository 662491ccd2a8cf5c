"""A Slurm cluster as its own commands describe it: pilots, partitions and shapes of nodes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from headway.contract.values.markets import Market
from service.adapters.providers.slurm_commands import SlurmFailed, meaning, run

_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_PRESENT = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"}
)
_GRES = re.compile(r"^gpu(?::(?P<kind>[A-Za-z][A-Za-z0-9._-]*|\d+g[A-Za-z0-9._-]*))?:(?P<count>\d+)(?:\(|$)")

_PILOT_FORMAT = "%i|%T|%S|%e|%N|%j|%r"
"""Fields of a pilot. The reason is the last one, because administrators write into it, also a `|`."""
_SHAPE_FORMAT = "%R|%a|%c|%m|%G"


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes of one partition with the same devices. `kind` is `cpu` for nodes without GPUs, whose slots are cores."""

    partition: str
    kind: str
    slots: int
    cpus: int
    memory_bytes: int

    @property
    def instance_type(self) -> str:
        """Name of the shape among the offers."""
        return f"{self.partition}/{self.kind}:{self.slots}"


@dataclass(frozen=True, slots=True)
class Pilot:
    """Batch job that holds a node for a lease. Times are Slurm's; `started_at` is a forecast while it waits."""

    number: str
    machine_id: str
    state: str
    started_at: datetime | None
    ended_at: datetime | None
    reason: str

    @property
    def waits(self) -> bool:
        """Return whether the pilot has no node yet."""
        return self.state in _WAITING

    @property
    def present(self) -> bool:
        """Return whether the pilot holds a node."""
        return self.state in _PRESENT

    @property
    def message(self) -> str:
        """Sentence about the end of the pilot."""
        why = f" ({self.reason})" if self.reason not in {"", "None"} else ""
        return f"Slurm's job {self.number} ended: {self.state}{why}"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of the Slurm cluster. `kill_wait_s` is the time from SIGTERM to SIGKILL of a job that it ends."""

    cluster: str
    kill_wait_s: int


@dataclass(frozen=True, slots=True)
class Description:
    """Settings of the cluster, the market of each partition, and the shapes of nodes by instance type."""

    config: Config
    markets: dict[str, Market]
    shapes: dict[str, Shape]


async def described(partitions: Iterable[str]) -> Description:
    """Return what Slurm says about itself and about these partitions. Raises: Unavailable."""
    return Description(*await asyncio.gather(config(), markets(), shapes(partitions)))


async def config() -> Config:
    """Return Slurm's settings. Raises: Unavailable."""
    lines = (
        line.split("=", 1) for line in (await asked("scontrol", "show", "config")).splitlines() if "=" in line
    )
    values = {name.strip(): value.strip() for name, value in lines}
    return Config(values.get("ClusterName", "slurm"), int(values.get("KillWait", "30").split()[0]))


async def pilots(prefix: str) -> list[Pilot]:
    """Return the jobs that Slurm still knows whose names begin so; those with a node first, then the newest.

    A job that ended before it had a node is left out: it was no machine.

    Raises:
        Unavailable: Slurm does not answer.
    """
    return pilots_in(
        await asked("squeue", "--me", "--all", "--noheader", "--states=all", f"--format={_PILOT_FORMAT}"),
        prefix,
    )


def pilots_in(text: str, prefix: str) -> list[Pilot]:
    """Return the pilots in the answer of `squeue`, in the order of `pilots`.

    Lines of another form are left out: the heading of each cluster with `SLURM_CLUSTERS`, and parts of odd names.
    """
    found = []
    for line in text.splitlines():
        pieces = line.split("|", _PILOT_FORMAT.count("|"))
        if len(pieces) <= _PILOT_FORMAT.count("|") or not pieces[0].isdecimal():
            continue
        number, state, started, ended, nodes, name, reason = pieces
        if name.startswith(prefix):
            machine_id = name.removeprefix(prefix)
            one = Pilot(number, machine_id, state, _moment(started), _moment(ended), reason)
            if nodes or one.waits:
                found.append(one)
    return sorted(found, key=lambda one: (not one.present, not one.waits, -int(one.number)))


async def markets() -> dict[str, Market]:
    """Return the market of each partition: spot if its jobs may be preempted. Raises: Unavailable."""
    found = {}
    for line in (await asked("scontrol", "--all", "--oneliner", "show", "partition")).splitlines():
        fields = dict(piece.split("=", 1) for piece in line.split() if "=" in piece)
        firm = fields.get("PreemptMode", "OFF") == "OFF"
        found[fields.get("PartitionName", "")] = Market.ON_DEMAND if firm else Market.SPOT
    return found


async def shapes(partitions: Iterable[str]) -> dict[str, Shape]:
    """Return the shapes of nodes of these partitions, if they are up, by instance type. Raises: Unavailable."""
    names = frozenset(partitions)
    text = await asked("sinfo", "--noheader", f"--partition={','.join(names)}", f"--format={_SHAPE_FORMAT}")
    return shapes_in(text, names)


def shapes_in(text: str, names: Set[str]) -> dict[str, Shape]:
    """Return the shapes of these partitions in the answer of `sinfo`, in which lines without fields are headings.

    Nodes of one shape may differ in cores and memory: each has at least those of the shape.
    """
    found: dict[str, Shape] = {}
    for line in text.splitlines():
        if line.count("|") < _SHAPE_FORMAT.count("|"):
            continue
        partition, available, cpus, memory_mib, gres = (piece.strip() for piece in line.split("|", 4))
        if available == "up" and partition in names:
            cores = int(cpus.rstrip("+"))
            kind, slots = devices(gres, cores)
            shape = Shape(partition, kind, slots, cores, int(memory_mib.rstrip("+")) << 20)
            alike = found.get(shape.instance_type, shape)
            found[shape.instance_type] = replace(
                shape, cpus=min(cores, alike.cpus), memory_bytes=min(shape.memory_bytes, alike.memory_bytes)
            )
    return found


def devices(gres: str, cpus: int) -> tuple[str, int]:
    """Return the device kind and the slots of a node: those of its first entry of GPUs, or its cores."""
    for entry in re.split(r",(?![^(]*\))", gres):
        if match := _GRES.match(entry):
            return (match["kind"] or "gpu").lower(), int(match["count"])
    return "cpu", cpus


async def asked(*command: str) -> str:
    """Return the answer of a command that changes nothing that must not be repeated. Raises: Unavailable."""
    try:
        return await run(command)
    except SlurmFailed as failed:
        raise meaning(failed) from failed


def _moment(text: str) -> datetime | None:
    """Return a time of Slurm, or None where it has none."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
