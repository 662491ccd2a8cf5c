"""Checkpoints: one folder each, a manifest written last, a checksum, and a fence against old writers.

    <generation>-<epoch>-<samples in it>/state-<digest>.pt
                                         manifest.json

A checkpoint without a manifest does not exist; one whose state differs from its manifest is passed over
for the one before. The order is by (generation, epoch, samples).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from headway.train.position import Position
from headway.train.storage import Storage

FORMAT = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"(\d{8,})-(\d{6,})-(\d{12,})")


class Fenced(RuntimeError):
    """A newer generation of the job has written checkpoints: this process is a leftover and must end."""


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """The name of a checkpoint, in its order of age."""

    generation: int
    epoch: int
    samples: int

    def __str__(self) -> str:
        return f"{self.generation:08d}-{self.epoch:06d}-{self.samples:012d}"

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """The name in `text`, or None when it is not one."""
        match = _NAME.fullmatch(text)
        return cls(*map(int, match.groups())) if match else None


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that was read and proved whole."""

    name: Name
    state: bytes


def names(keys: Collection[str]) -> list[Name]:
    """The checkpoints that the keys belong to, oldest first; those without a manifest too."""
    found = {Name.parse(key.partition("/")[0]) for key in keys if "/" in key}
    return sorted(name for name in found if name is not None)


def complete(keys: Collection[str]) -> list[Name]:
    """The checkpoints that have a manifest, oldest first."""
    return [name for name in names(keys) if f"{name}/{MANIFEST}" in keys]


def surplus(keys: Collection[str], *, generation: int, keep: int) -> list[str]:
    """The keys that a writer of `generation` may delete so that `keep` complete checkpoints stay.

    Nothing of a newer generation, nor what is younger than the oldest one kept, is among them. Manifests
    come first: what is half deleted must not pass for a checkpoint.
    """
    kept = [name for name in complete(keys) if name.generation <= generation][-keep:]
    if not kept:
        return []
    doomed = {str(name) for name in names(keys) if name < kept[0]}
    return sorted(
        (key for key in keys if key.partition("/")[0] in doomed),
        key=lambda key: (not key.endswith(f"/{MANIFEST}"), key),
    )


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one job, as one generation of it sees them."""

    storage: Storage
    generation: int
    keep: int

    def save(self, state: bytes | memoryview, position: Position, *, samples: int) -> str:
        """Write a checkpoint, delete what is beyond `keep`, and return its URI.

        `samples` is the number committed since the job began.

        Raises:
            Fenced: a newer generation has written.
            OSError: the storage failed; what was there is as it was.
        """
        self._refuse_stale(self.storage.keys())
        name = Name(self.generation, position.epoch, position.samples)
        digest = hashlib.sha256(state).hexdigest()
        manifest = {
            "format": FORMAT,
            "generation": self.generation,
            "epoch": position.epoch,
            "samples_in_epoch": position.samples,
            "samples": samples,
            # Named by content, so that writing a checkpoint again never damages the one that is there.
            "state": f"state-{digest[:16]}.pt",
            "size_bytes": len(state),
            "sha256": digest,
        }
        self.storage.put(f"{name}/{manifest['state']}", state)
        self.storage.put(f"{name}/{MANIFEST}", json.dumps(manifest, indent=1).encode())
        for key in surplus(self.storage.keys(), generation=self.generation, keep=self.keep):
            self.storage.delete(key)
        return f"{self.storage.uri}/{name}"

    def latest(self) -> Found | None:
        """The newest checkpoint that is whole, or None. Says on stderr which ones were passed over.

        Raises:
            Fenced: a newer generation has written.
            OSError: the storage does not answer; starting from nothing would be wrong then.
        """
        keys = self.storage.keys()
        self._refuse_stale(keys)
        for name in reversed(names(keys)):
            try:
                return Found(name, self._read(name))
            except (FileNotFoundError, ValueError) as damage:
                sys.stderr.write(f"headway: checkpoint {self.storage.uri}/{name} is passed over: {damage}\n")
        return None

    def _read(self, name: Name) -> bytes:
        """The state of a checkpoint.

        Raises:
            FileNotFoundError: a part of it is missing.
            ValueError: it is damaged, or of another format.
        """
        manifest = _parse(self.storage.get(f"{name}/{MANIFEST}"))
        state = self.storage.get(f"{name}/{manifest['state']}")
        if len(state) != manifest["size_bytes"]:
            raise ValueError(f"its state has {len(state)} bytes of {manifest['size_bytes']}")
        if hashlib.sha256(state).hexdigest() != manifest["sha256"]:
            raise ValueError("its state does not match its checksum")
        return state

    def _refuse_stale(self, keys: Collection[str]) -> None:
        newer = [name for name in complete(keys) if name.generation > self.generation]
        if newer:
            raise Fenced(
                f"this process is of generation {self.generation}, but generation {newer[-1].generation} has "
                f"written checkpoints to {self.storage.uri}; it must not write there and ends"
            )


def _parse(text: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
        known = manifest["format"] == FORMAT and {"state", "size_bytes", "sha256"} <= manifest.keys()
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError("its manifest is damaged") from None
    if not known:
        raise ValueError("its manifest is of another format")
    return dict(manifest)


class Schedule:
    """When a periodic checkpoint is due.

    `every_s` fixes the interval. None means at least a minute, and long enough that saving takes at most
    2 % of the time, by what the last save cost. Times are of one monotonic clock, in seconds.
    """

    MIN_INTERVAL_S = 60.0
    COSTS = 50

    def __init__(self, every_s: float | None, now: float) -> None:
        self._every_s = every_s
        self._cost_s = 0.0
        self._last = now

    @property
    def interval_s(self) -> float:
        """The time from the end of one save to the next."""
        return self._every_s or max(self.MIN_INTERVAL_S, self.COSTS * self._cost_s)

    def due(self, now: float) -> bool:
        """Whether a checkpoint should be saved."""
        return now - self._last >= self.interval_s

    def saved(self, now: float, cost_s: float) -> None:
        """A save ended, or failed, after `cost_s`."""
        self._last, self._cost_s = now, cost_s
