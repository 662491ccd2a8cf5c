"""Layout of a checkpoint in storage: names, manifests, and the choice of objects that may be deleted.

The module does no I/O and uses the standard library only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

FORMAT = 2
MANIFEST = "manifest.json"
_NAME = re.compile(r"(\d{8,})-(\d{6,})-(\d{12,})(?:-(\d+))?")
_OF_RANKS = 10_000
_LONGEST = 120
_NUMBERS = ("generation", "epoch", "samples_in_epoch", "samples")
_MOST = 2**63
"""Bound on the numbers of a manifest: those of the API have 64 bits."""


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """The name of a checkpoint. Names sort by age.

    `again` numbers the saves at one position in training, because no save overwrites another.
    """

    generation: int
    epoch: int
    samples: int
    again: int = 0

    def __str__(self) -> str:
        place = f"{self.generation:08d}-{self.epoch:06d}-{self.samples:012d}"
        return f"{place}-{self.again}" if self.again else place

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """Return the name in `text`, or None if it holds no name."""
        match = _NAME.fullmatch(text)
        return cls(*(int(number or 0) for number in match.groups())) if match else None

    @classmethod
    def in_uri(cls, uri: str) -> Name | None:
        """Return the name at the end of a checkpoint's URI, or None if the URI ends with another name."""
        last = uri.rstrip("/").rpartition("/")[2]
        return cls.parse(last) if len(last) <= _LONGEST else None

    def of_rank(self, rank: int) -> Name:
        """Return this name with an `again` that only `rank` uses, for ranks that save without knowledge of each other."""
        return replace(self, again=_OF_RANKS + rank)

    def unused(self, keys: Collection[str]) -> Name:
        """Return this name with the next `again` for which no key exists at this position."""
        place = (self.generation, self.epoch, self.samples)
        taken = [
            name.again
            for name in names(keys)
            if (name.generation, name.epoch, name.samples) == place and name.again < _OF_RANKS
        ]
        return Name(*place, again=max(taken, default=-1) + 1)


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """An object of a checkpoint, with the size and digest that verify it."""

    key: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The parts of a checkpoint, and the position in training at which it was taken."""

    generation: int
    epoch: int
    samples_in_epoch: int
    samples: int
    parts: tuple[CheckpointPart, ...]

    @property
    def size_bytes(self) -> int:
        """Total size of all parts, in bytes."""
        return sum(part.size_bytes for part in self.parts)

    def to_text(self) -> bytes:
        """Return the manifest as stored: JSON with a checksum of itself."""
        contents = {"format": FORMAT, "size_bytes": self.size_bytes, **asdict(self)}
        return json.dumps({**contents, "sha256": _digest(contents)}, indent=1).encode()

    @classmethod
    def from_text(cls, text: bytes | bytearray) -> Manifest:
        """Read a manifest from its stored text.

        Raises:
            ValueError: the manifest is damaged, or of another format.
        """
        try:
            contents = json.loads(text)
            if contents["format"] != FORMAT:
                raise ValueError("its manifest is of another format")
            if contents.pop("sha256") != _digest(contents):
                raise ValueError("its manifest does not match its checksum")
            numbers = {field: contents[field] for field in _NUMBERS}
            parts = tuple(CheckpointPart(**part) for part in contents["parts"])
            if not (all(map(_is_count, numbers.values())) and all(map(_is_part, parts))):
                raise ValueError("its manifest is damaged")
            return cls(**numbers, parts=parts)
        except (
            json.JSONDecodeError,
            UnicodeDecodeError,
            RecursionError,
            TypeError,
            KeyError,
            AttributeError,
        ) as error:
            raise ValueError("its manifest is damaged") from error


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < _MOST


def _is_part(part: CheckpointPart) -> bool:
    texts: tuple[object, ...] = (part.key, part.sha256)
    return all(isinstance(text, str) for text in texts) and _is_count(part.size_bytes)


def _digest(contents: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def names(keys: Collection[str]) -> list[Name]:
    """Return the checkpoints that the keys belong to, oldest first, including those without a manifest."""
    found = {Name.parse(key.partition("/")[0]) for key in keys if "/" in key}
    return sorted(name for name in found if name is not None)


def complete(keys: Collection[str]) -> list[Name]:
    """Return the checkpoints that have a manifest, oldest first."""
    return [name for name in names(keys) if f"{name}/{MANIFEST}" in keys]


def surplus(keys: Collection[str], *, generation: int, keep: int) -> list[str]:
    """Return the keys that a writer of `generation` may delete so that `keep` complete checkpoints stay.

    The result holds nothing of a newer generation and nothing younger than the oldest checkpoint kept.
    Manifests come first, so that a half-deleted checkpoint never looks complete.
    """
    kept = [name for name in complete(keys) if name.generation <= generation][-keep:]
    if not kept:
        return []
    doomed = {str(name) for name in names(keys) if name < kept[0]}
    return sorted(
        (key for key in keys if key.partition("/")[0] in doomed),
        key=lambda key: (not key.endswith(f"/{MANIFEST}"), key),
    )
