"""Outside evidence of a run as values, and functions to read it."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.contract.manifest import MANIFEST, Manifest, Name

_TABLE, _LOSSES = "table", "losses"


@dataclass(frozen=True, slots=True)
class Life:
    """Lifetime of a rank process on its slot, from its own journal and the process table.

    It lived from `born_s` at least until `seen_s`, its last observation (both in seconds since boot).
    """

    job: str
    name: str
    generation: int
    rank: int
    node: str
    slot: int
    pid: int
    born_s: float
    seen_s: float


@dataclass(frozen=True, slots=True)
class Submission:
    """Submit of a client. `job` is the acknowledged id, or None without an answer."""

    name: str
    script: str
    seed: int
    job: str | None
    may_be_cancelled: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """State of a job after the run, from the service."""

    job: str
    name: str
    state: str
    message: str


@dataclass(frozen=True, slots=True)
class Sighting:
    """State of a job during the run, from an answer of the service."""

    job: str
    at_s: float
    generation: int
    state: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """Checkpoint whose manifest appeared in storage at `at_s` (Unix time)."""

    job: str
    generation: int
    epoch: int
    samples: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a training.

    Attributes:
        table: (epochs, samples) the negative of how often each sample was trained on in each epoch.
        losses: (epochs,) loss after each epoch.
    """

    table: NDArray[np.float64]
    losses: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Left:
    """Remainder of a cluster that should not exist any more."""

    what: str
    where: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Violation of a guarantee: its name, the job or part concerned, and a description."""

    promise: str
    whom: str
    sentence: str


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the facts of a journal, except an incomplete last line of a killed process."""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def checkpoints(folder: Path) -> list[Name]:
    """Return the checkpoints of a job that have a manifest, oldest first."""
    named = {manifest.parent.name for manifest in folder.glob(f"*/{MANIFEST}")}
    found = [Name.parse(name) for name in named]
    return sorted(name for name in found if name is not None)


def read_result(folder: Path) -> Result | None:
    """Return the result in the newest checkpoint of a job, or None without a checkpoint.

    Raises:
        ValueError: the checkpoint is damaged.
    """
    names = checkpoints(folder)
    if not names:
        return None
    newest = folder / str(names[-1])
    manifest = Manifest.from_text((newest / MANIFEST).read_bytes())
    tensors: dict[str, NDArray[np.float64]] = {}
    for part in manifest.parts:
        data = (newest / part.key).read_bytes()
        if hashlib.sha256(data).hexdigest() != part.sha256:
            raise ValueError(f"{newest / part.key} does not match its checksum")
        if part.key.endswith(".safetensors"):
            tensors |= read_safetensors(data)
    return Result(_one(tensors, _TABLE), _one(tensors, _LOSSES))


def _one(tensors: Mapping[str, NDArray[np.float64]], name: str) -> NDArray[np.float64]:
    """Return the only tensor whose path ends with this name.

    Raises:
        ValueError: the number of such tensors is not 1.
    """
    fits = [path for path in tensors if path.rpartition(".")[2] == name]
    if len(fits) != 1:
        raise ValueError(f"the checkpoint has {len(fits)} tensors called {name}: {sorted(tensors)}")
    return tensors[fits[0]]


def read_safetensors(data: bytes) -> dict[str, NDArray[np.float64]]:
    """Return the tensors of 64-bit floats in a safetensors file: header length, header in JSON, data."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    return {
        name: np.frombuffer(data[8 + length + begin : 8 + length + end], dtype="<f8").reshape(entry["shape"])
        for name, entry in header.items()
        if entry["dtype"] == "F64"
        for begin, end in [entry["data_offsets"]]
    }


def listening(lines: Sequence[str]) -> list[int]:
    """Return the ports with a listening socket, from the lines of `/proc/net/tcp`, heads included."""
    fields = [line.split() for line in lines]
    return sorted({int(one[1].rpartition(":")[2], 16) for one in fields if one[3] == "0A"})
