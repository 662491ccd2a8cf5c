"""What is known from outside about a run, as values, and how it is read."""

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
    """One rank process, by its own journal and by the process table.

    It lived on the slot from `born_s` until at least `seen_s`, when it was last seen alive (seconds since boot).
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
    """A submit that a client made: `job` is the id that was acknowledged, None when no answer came."""

    name: str
    script: str
    seed: int
    job: str | None
    may_be_cancelled: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """What the service says of a job after the run."""

    job: str
    name: str
    state: str
    message: str


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a client was told of a job, one after the other."""

    job: str
    at_s: float
    generation: int
    state: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """A checkpoint whose manifest appeared in storage, written at `at_s` (Unix time)."""

    job: str
    generation: int
    epoch: int
    samples: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """What a training has come to: how often each sample of each epoch went into the weights (epochs, samples), and
    the loss after each epoch (epochs).
    """

    table: NDArray[np.float64]
    losses: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Left:
    """Something that is still there and should not be."""

    what: str
    where: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that was broken: which, by whom, and how it is known."""

    promise: str
    whom: str
    sentence: str


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The facts in a journal; a last line that was cut short by a kill is none."""
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def checkpoints(folder: Path) -> list[Name]:
    """The checkpoints of a job that have a manifest, oldest first."""
    named = {manifest.parent.name for manifest in folder.glob(f"*/{MANIFEST}")}
    found = [Name.parse(name) for name in named]
    return sorted(name for name in found if name is not None)


def read_result(folder: Path) -> Result | None:
    """What the newest checkpoint of a job says; None without one.

    Raises:
        ValueError: it is damaged: nothing writes to it any more, so nothing excuses that.
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
    """The tensor whose path ends so, that of the optimizer's state left out."""
    fits = [path for path in tensors if path.rpartition(".")[2] == name]
    if len(fits) != 1:
        raise ValueError(f"the checkpoint has {len(fits)} tensors called {name}: {sorted(tensors)}")
    return tensors[fits[0]]


def read_safetensors(data: bytes) -> dict[str, NDArray[np.float64]]:
    """The tensors of 64-bit reals in a file of the safetensors layout: a length, a header in JSON, the bytes."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    return {
        name: np.frombuffer(data[8 + length + begin : 8 + length + end], dtype="<f8").reshape(entry["shape"])
        for name, entry in header.items()
        if entry["dtype"] == "F64"
        for begin, end in [entry["data_offsets"]]
    }


def listening(lines: Sequence[str]) -> list[int]:
    """The ports that somebody listens on, of the lines of `/proc/net/tcp`."""
    fields = [line.split() for line in lines[1:]]
    return sorted({int(one[1].rpartition(":")[2], 16) for one in fields if one[3] == "0A"})
