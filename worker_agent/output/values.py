"""Requests to fetch or save an output folder, and their outcomes."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Annotated, BinaryIO, Protocol

from pydantic import BaseModel, Field

from headway.contract.output import MARKS, OutputEntry, OutputManifest, Version
from worker_agent.output.tree import Signature


class CannotSave(OSError):
    """Raised when the folder cannot be saved, and a retry does not help."""


class Store(Protocol):
    """Object store with the methods of `headway.storage.stores.Storage` that are needed here."""

    def put(self, key: str, data: bytes) -> None:
        """Store an object under its key."""

    def get(self, key: str) -> bytearray:
        """Return the object with this key."""
        ...

    def keys(self) -> list[str]:
        """Return the keys of all objects."""
        ...

    def delete(self, key: str) -> None:
        """Delete the object with this key."""


class Index(BaseModel):
    """State of this node's folder at the last fetch or save. The agent stores it between two calls."""

    lineage: int
    joined: bool
    version: Version = (0, 0)
    """Version of the last call, for files that could not be saved then."""
    sequence: int = 0
    entries: dict[str, OutputEntry] = Field(default_factory=dict)
    signatures: dict[str, Signature] = Field(default_factory=dict)
    removed: dict[str, Version] = Field(default_factory=dict)
    busy: list[str] = Field(default_factory=list)
    """Files that were being written at the last save."""
    dropped: list[str] = Field(default_factory=list)
    """Parts that only the second-last manifest names."""


class Request(BaseModel):
    """Request of one call. `index` is the result of the previous call, or None before the first fetch."""

    do: Annotated[str, Field(pattern="^(copy|fetch|save|take)$")]
    node: str
    generation: int
    joined: bool
    version: Version
    max_bytes: int
    last: bool = False
    """True if no rank runs, so that no file changes."""
    mark: int | None = None
    """Generation whose last files are saved: a save leaves its mark, and a take waits for it up to `wait_s` seconds."""
    wait_s: float = 0.0
    own_version: Version = (0, 0)
    """In a take: the version of changes that this node made before it took over."""
    fence: bool = False
    """In a take: True if later saves of the giving node are not to replace what it saved before."""
    now_s: float
    index: Index | None = None
    bundle: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """Size and modification time of the files of the bundle. An unchanged one is not output."""


class Outcome(BaseModel):
    """Result of a call. The counts cover the whole folder."""

    index: Index | None
    files: int = 0
    size_bytes: int = 0
    moved_bytes: int = 0
    changed: bool = False
    busy: list[str] = Field(default_factory=list)
    odd: list[str] = Field(default_factory=list)
    left_out: list[str] = Field(default_factory=list)
    """Files without room in the maximum size, largest first, with their sizes; what was saved of them before is kept."""
    problem: str = ""
    """Reason and remedy for `left_out`."""
    conflicts: list[str] = Field(default_factory=list)
    marked: bool = True
    """False if a take did not find the mark."""


class Below:
    """The objects of a store under a prefix, which ends in `/`, as a store of their own."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def put(self, key: str, data: bytes) -> None:
        """Store an object under its key."""
        self._store.put(self._prefix + key, data)

    def get(self, key: str) -> bytearray:
        """Return the object with this key."""
        return self._store.get(self._prefix + key)

    def keys(self) -> list[str]:
        """Return the keys of all objects under the prefix."""
        found = self._store.keys()
        return [key.removeprefix(self._prefix) for key in found if key.startswith(self._prefix)]

    def delete(self, key: str) -> None:
        """Delete the object with this key."""
        self._store.delete(self._prefix + key)


def mark_key(generation: int) -> str:
    """Return the key of the mark that rank 0's node leaves when the last files of `generation` are saved."""
    return f"{MARKS}{generation:010d}"


def store_manifest(store: Store, index: Index, request: Request) -> None:
    """Store the manifest of the folder, the last step of a save."""
    manifest = OutputManifest(
        lineage=index.lineage,
        joined=index.joined,
        node=request.node,
        sequence=index.sequence,
        saved_at=datetime.fromtimestamp(request.now_s, UTC),
        entries=index.entries,
        removed=index.removed,
    )
    store.put(manifest.key, manifest.model_dump_json().encode())


def read_part(file: BinaryIO, size_bytes: int) -> bytes:
    """Read `size_bytes` bytes, or fewer only at the end of the file."""
    pieces = []
    left = size_bytes
    while left:
        piece = file.read(left)
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def digest_matches(key: str, part: bytes | bytearray) -> bool:
    """Return True if the digest of a part matches its key."""
    return hashlib.sha256(part).hexdigest() == key.rpartition("/")[2]
