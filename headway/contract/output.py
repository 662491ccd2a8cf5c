"""The output folder of a job as stored: manifests, and the merge of several manifests into one folder.

Every node that runs ranks of a job saves its own copy of the folder. A save stores the parts of changed files
first and a manifest last, so a manifest never names a part that is missing. Keys are relative to the job's
checkpoints:

    output/manifests/<lineage>-<G or J>-<node>-<sequence>.json
    output/data/<lineage>-<node>/<sha256 of the part>

A *lineage* is the generation for which a node fetched the folder. `G` marks a gang start: no rank of an older
generation ran beside it, so its folder replaces every older one. `J` marks ranks that joined a running
generation.

Every file has a *version*: the generation of the job in which a node saved this content, and the lowest rank
of that node. The highest generation wins; within a generation the lowest rank wins.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

ROOT = "output/"
MARKS = f"{ROOT}handovers/"
"""Prefix of the marks that rank 0's node leaves when it has saved the last file of a generation."""
FORMAT = 1
PART_BYTES = 32 * 2**20
"""Size of the parts of a file: appending to a long file costs one part, and memory use stays bounded."""
HOLE = "83ee47245398adee79bd9c0a8bc57b821e92aba10f5f9ade8a5d1fae4d8c4302"
"""SHA-256 of a part of zeros, such as the holes of a sparse file have. Readers leave a hole and need not read it."""
MAX_FILES = 50_000
MAX_PATH_BYTES = 1024
_KEY = re.compile(r"^output/manifests/(\d{10})-([GJ])-([a-z0-9]{1,32})-(\d{10})\.json$")
_PART_KEY = r"^output/data/\d{10}-[a-z0-9]{1,32}/[0-9a-f]{64}$"


class OutputPlan(BaseModel):
    """The output folder of a job, see `contract.spec_parts.OutputFolder`."""

    dir: Annotated[str, Field(max_length=512)] | None = None
    as_cwd: bool = False
    every_s: Annotated[float, Field(gt=0)] = 300.0
    max_bytes: Annotated[int, Field(gt=0)] = 100 * 2**30


class OutputHandover(BaseModel):
    """One node's part when rank 0, the writer of most files, goes on on another node while training does.

    The node that `give`s saves the folder once rank 0 writes no more there, and leaves a mark in storage. The node that
    `take`s waits for the mark and fetches the folder, before its rank 0 writes.
    """

    role: Literal["give", "take"]
    before: int
    """Generation in which rank 0 was on the giving node; it names the mark."""
    alive: bool = True
    """True if the giving node still has processes of the job, so that its mark is to be expected."""
    stays: bool = False
    """True if the giving node keeps ranks, which go on to save files of their own."""
    renumbered: bool = False
    """True if the process that was rank 0 trains on under another number."""


class BadManifest(ValueError):
    """Raised when a manifest in storage cannot be read."""


def _inside(path: str) -> str:
    """Refuse a path that is not a plain relative path inside of the folder."""
    if (
        not path
        or len(path.encode()) > MAX_PATH_BYTES
        or "\0" in path
        or any(part in {"", ".", ".."} for part in path.split("/"))
    ):
        raise ValueError("not a path inside of the output folder")
    return path


FilePath: TypeAlias = Annotated[str, AfterValidator(_inside)]
Version: TypeAlias = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]
"""Generation of the job, and the lowest rank of the node that saved it."""


class OutputEntry(BaseModel):
    """A file, a folder or a symbolic link of the output folder."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["file", "folder", "link"] = "file"
    version: Version
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o600
    mtime_ns: int = 0
    size_bytes: Annotated[int, Field(ge=0)] = 0
    parts: tuple[Annotated[str, Field(pattern=_PART_KEY)], ...] = ()
    """Keys of the parts of a file, in order; each ends in its SHA-256."""
    saved_ns: int = 0
    """Time of the save that first had this content, by its node's clock in nanoseconds of Unix time.

    Of two copies with one version, the later is that of the node that wrote the file; the other was fetched before.
    """
    target: Annotated[str, Field(max_length=4096)] = ""
    """The path that a link points to."""

    @property
    def data_bytes(self) -> int:
        """Size of a file in bytes without its holes."""
        return self.size_bytes - PART_BYTES * sum(map(is_hole, self.parts))

    @property
    def content(self) -> tuple[object, ...]:
        """A value that is equal for equal contents, independent of the node that stored them."""
        return self.kind, self.size_bytes, tuple(key.rpartition("/")[2] for key in self.parts), self.target


def is_hole(key: str) -> bool:
    """Return True for the key of a part that has only zeros."""
    return key.endswith(f"/{HOLE}")


class OutputManifest(BaseModel):
    """The whole folder as one node saved it."""

    format: Literal[1] = 1
    lineage: Annotated[int, Field(ge=1)]
    joined: bool
    node: Annotated[str, Field(pattern=r"^[a-z0-9]{1,32}$")]
    sequence: Annotated[int, Field(ge=0)]
    saved_at: datetime
    entries: Annotated[dict[FilePath, OutputEntry], Field(max_length=MAX_FILES)]
    removed: Annotated[dict[FilePath, Version], Field(max_length=MAX_FILES)] = Field(default_factory=dict)
    """Paths that this node removed since it fetched the folder."""

    @property
    def key(self) -> str:
        """Key under which the manifest is stored."""
        kind = "J" if self.joined else "G"
        return f"{ROOT}manifests/{self.lineage:010d}-{kind}-{self.node}-{self.sequence:010d}.json"

    @classmethod
    def parse(cls, text: bytes | bytearray) -> OutputManifest:
        """Read a manifest from storage, which ranks of the job can write to.

        Raises:
            BadManifest: the text is no valid manifest.
        """
        try:
            return cls.model_validate_json(bytes(text))
        except ValidationError as error:
            raise BadManifest(f"{error.error_count()} fields are wrong") from None


@dataclass(frozen=True, slots=True, order=True)
class ManifestName:
    """The fields of a manifest's key."""

    lineage: int
    joined: bool
    node: str
    sequence: int
    key: str

    @classmethod
    def parse(cls, key: str) -> ManifestName | None:
        """Return the fields of a manifest's key, or None if the key is not one of a manifest."""
        match = _KEY.fullmatch(key)
        if match is None:
            return None
        return cls(int(match[1]), match[2] == "J", match[3], int(match[4]), key)


@dataclass(frozen=True, slots=True)
class Merged:
    """One folder, merged from the manifests of several nodes."""

    entries: dict[str, OutputEntry] = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()
    """Paths that two nodes wrote differently in the same generation; the node with the lowest rank won."""


def manifest_names(keys: Iterable[str]) -> list[ManifestName]:
    """Return the manifests among the keys, oldest first."""
    return sorted(name for name in map(ManifestName.parse, keys) if name is not None)


def newest(names: Sequence[ManifestName], *, before: int | None = None) -> list[ManifestName]:
    """Choose the manifests that make up the folder: the last of every node since the newest gang start.

    Only lineages before the generation `before` count, if it is given. A save of a node that was lost, made after a newer
    gang start, is older than that start and is left out.
    """
    names = [name for name in names if before is None or name.lineage < before]
    starts = [name.lineage for name in names if not name.joined]
    first = max(starts, default=0)
    last: dict[tuple[int, str], ManifestName] = {}
    for name in sorted(names):
        if name.lineage >= first:
            last[name.lineage, name.node] = name
    return sorted(last.values())


def merge(manifests: Iterable[OutputManifest]) -> Merged:
    """Merge the folders of several nodes into one, path by path. The order of `manifests` has no influence."""
    found: dict[str, list[tuple[Version, OutputEntry | None]]] = {}
    for manifest in manifests:
        for path, entry in manifest.entries.items():
            found.setdefault(path, []).append((entry.version, entry))
        for path, version in manifest.removed.items():
            found.setdefault(path, []).append((version, None))
    entries: dict[str, OutputEntry] = {}
    conflicts = []
    for path, candidates in found.items():
        newest_generation = max(version[0] for version, _ in candidates)
        latest = _without_stale_copies([c for c in candidates if c[0][0] == newest_generation])
        ranked = sorted(latest, key=_rank_first)
        winner = ranked[0][1]
        if winner is not None:
            entries[path] = winner
        contents = {entry.content for _, entry in ranked if entry is not None and entry.kind != "folder"}
        if len(contents) > 1:
            conflicts.append(path)
    return Merged(_without_orphans(entries), tuple(sorted(conflicts)))


def surplus(keys: Collection[str], kept: Iterable[OutputManifest], *, before: int) -> list[str]:
    """Choose the keys that nothing needs any more, manifests first.

    `kept` are the manifests from which generation `before` fetched its folder. Everything stored since the
    oldest of them stays.
    """
    kept = list(kept)
    oldest = min((manifest.lineage for manifest in kept), default=before)
    used = {key for manifest in kept for entry in manifest.entries.values() for key in entry.parts}
    names = [name.key for name in manifest_names(keys) if name.lineage < oldest]
    data = [
        key for key in keys if re.fullmatch(_PART_KEY, key) and _lineage_of(key) < oldest and key not in used
    ]
    return names + sorted(data)


def data_prefix(lineage: int, node: str) -> str:
    """Return the prefix under which a node stores the parts that it saves."""
    return f"{ROOT}data/{lineage:010d}-{node}/"


def _lineage_of(part_key: str) -> int:
    return int(part_key.removeprefix(f"{ROOT}data/")[:10])


def _without_stale_copies(
    candidates: Sequence[tuple[Version, OutputEntry | None]],
) -> list[tuple[Version, OutputEntry | None]]:
    """Leave out contents that a node fetched before the node of their version saved the file once more."""
    saved_ns: dict[Version, int] = {}
    for version, entry in candidates:
        if entry is not None:
            saved_ns[version] = max(saved_ns.get(version, 0), entry.saved_ns)
    return [one for one in candidates if one[1] is None or one[1].saved_ns == saved_ns[one[0]]]


def _rank_first(candidate: tuple[Version, OutputEntry | None]) -> tuple[int, bool, str]:
    version, entry = candidate
    return version[1], entry is None, repr(entry.content) if entry is not None else ""


def _without_orphans(entries: dict[str, OutputEntry]) -> dict[str, OutputEntry]:
    """Leave out entries below a path that is a folder on one node and a file or a link on another."""
    leaves = {path for path, entry in entries.items() if entry.kind != "folder"}
    return {
        path: entry
        for path, entry in entries.items()
        if not any(str(parent) in leaves for parent in PurePosixPath(path).parents)
    }
