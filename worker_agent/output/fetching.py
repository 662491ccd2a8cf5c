"""Fetch an output folder in the state that earlier generations saved."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

from headway.contract.output import (
    PART_BYTES,
    BadManifest,
    ManifestName,
    Merged,
    OutputEntry,
    OutputManifest,
    is_hole,
    manifest_names,
    merge,
    newest,
    surplus,
)
from worker_agent.output.saving import save
from worker_agent.output.tree import Signature, Tree, next_data
from worker_agent.output.values import (
    CannotSave,
    Index,
    Outcome,
    Request,
    Store,
    digest_matches,
    read_part,
    store_manifest,
)

_MOST_REMOVED: Final = 10_000
"""Maximum number of old objects that one fetch removes; the next fetch removes further ones."""
TRIES: Final = 3
"""Attempts of a fetch. A running node may delete parts that its replaced manifest names while they are fetched."""


def fetch(store: Store, tree: Tree, request: Request) -> Outcome:
    """Bring the folder to the state that earlier generations saved.

    First save the files that this node could not save when its ranks ended, under the generation that wrote
    them. Then replace or remove files that a newer generation replaced or removed.

    Raises:
        OSError: storage or the folder cannot be accessed.
    """
    index, unsaved = _save_remaining(store, tree, request)
    for attempt in range(TRIES):
        keys = store.keys()
        try:
            manifests = read_manifests(store, manifest_names(keys), request.generation)
            merged = merge(manifests)
            fetching = Fetching(store, tree, index)
            kept = index is not None and unsaved and _are_own(manifests, index, request.node)
            if not kept:
                fetching.apply(merged.entries)
            break
        except FileNotFoundError:
            if attempt == TRIES - 1:
                raise
    if not manifests and index is None:
        return Outcome(index=None)
    fresh = Index(
        lineage=request.generation,
        joined=request.joined,
        version=request.version,
        entries=merged.entries,
        signatures=index.signatures if kept and index is not None else fetching.signatures(merged.entries),
    )
    if manifests and not request.joined:
        fresh = fresh.model_copy(update={"sequence": 1})
        store_manifest(store, fresh, request)  # saves of older generations are ignored from now on
        if request.version[1] == 0:
            _tidy(store, keys, manifests, request.generation)
    return _fetched(fresh, merged, fetching)


def copy(store: Store, tree: Tree, _request: Request) -> Outcome:
    """Bring the folder to a stored state that nobody changes, and store nothing.

    Raises:
        OSError: storage or the folder cannot be accessed.
    """
    merged = merge(read_manifests(store, manifest_names(store.keys()), None))
    fetching = Fetching(store, tree, None)
    fetching.apply(merged.entries)
    size_bytes = sum(one.data_bytes for one in merged.entries.values())
    return Outcome(
        index=None, files=len(merged.entries), size_bytes=size_bytes, moved_bytes=fetching.moved_bytes
    )


def _save_remaining(store: Store, tree: Tree, request: Request) -> tuple[Index | None, bool]:
    """Save files that the last call on this node could not save.

    Return the index of the saved folder, and True if some files still could not be saved.
    """
    index = request.index
    if index is None or index.lineage >= request.generation:
        return index, False
    left = request.model_copy(update={"last": True, "version": index.version})
    try:
        outcome = save(store, tree, left, prune=False)
    except CannotSave:  # the last save of its ranks reported it
        return index, True
    return outcome.index or index, bool(outcome.left_out)


def _are_own(manifests: Sequence[OutputManifest], index: Index, node: str) -> bool:
    """Return True if only this node saved since it fetched its folder, so that the folder is up to date."""
    return all((one.lineage, one.node) == (index.lineage, node) for one in manifests)


def _fetched(index: Index, merged: Merged, fetching: Fetching) -> Outcome:
    return Outcome(
        index=index,
        files=len(merged.entries),
        size_bytes=sum(one.data_bytes for one in merged.entries.values()),
        moved_bytes=fetching.moved_bytes,
        changed=bool(merged.entries),
        conflicts=list(merged.conflicts),
    )


class Fetching:
    """Update of the folder to a given set of entries."""

    def __init__(self, store: Store, tree: Tree, index: Index | None) -> None:
        self._store = store
        self._tree = tree
        self._index = index or Index(lineage=0, joined=False)
        self.moved_bytes = 0

    def extend_or_replace(self, path: str, entry: OutputEntry) -> None:
        """Bring one entry to its new content. A file that only grew stays the same file, so that ranks may have it open."""
        if entry.kind == "folder":
            self._tree.make_folder(path)
        elif entry.kind == "link" or not self._extend(path, entry):
            self._replace(path, entry)

    def _extend(self, path: str, entry: OutputEntry) -> bool:
        """Append what is missing, and return True; False if the file is not the beginning of the new content."""
        found = self._tree.look(path)
        if found is None or found.kind != "file" or found.size_bytes > entry.size_bytes:
            return False
        if any(map(is_hole, entry.parts)):
            return False  # a whole copy keeps the holes
        with _naming_path(path), self._tree.growing(path) as file:
            here, left = 0, found.size_bytes
            missing: list[bytes | bytearray] = []
            for key in entry.parts:
                part = self._part(key)
                present = read_part(file, min(left - here, len(part)))
                if part[: len(present)] != present:
                    return False
                here += len(present)
                if len(present) < len(part):
                    missing.append(part[len(present) :])
            for rest in missing:
                _write_all(file, rest)
        return True

    def _part(self, key: str) -> bytearray:
        part = self._store.get(key)
        if not digest_matches(key, part):
            raise OSError(f"{key} is damaged: it does not match its checksum")
        self.moved_bytes += len(part)
        return part

    def apply(self, entries: Mapping[str, OutputEntry]) -> None:
        """Replace entries that differ, and remove those that were fetched or saved before but no longer exist."""
        for path in sorted(self._index.entries.keys() - entries.keys(), reverse=True):
            self._tree.remove(path)
        for path, entry in sorted(entries.items()):
            if entry.kind == "folder":
                self._tree.make_folder(path)
            elif not self._is_here(path, entry):
                self._replace(path, entry)

    def signatures(self, entries: Mapping[str, OutputEntry]) -> dict[str, Signature]:
        """Return the signatures of the entries in the folder."""
        found = ((path, self._tree.look(path)) for path in entries)
        return {path: entry.signature for path, entry in found if entry is not None}

    def _is_here(self, path: str, entry: OutputEntry) -> bool:
        found = self._tree.look(path)
        if found is None or found.kind != entry.kind:
            return False
        if entry.kind == "link":
            return found.target == entry.target
        known = self._index.entries.get(path)
        same = known is not None and known.content == entry.content
        if same and self._index.signatures.get(path) == found.signature:
            return True
        return found.size_bytes == entry.size_bytes and self._has_parts(path, entry)

    def _has_parts(self, path: str, entry: OutputEntry) -> bool:
        with self._tree.reading(path) as file:
            return all(self._has_part(file, number, key) for number, key in enumerate(entry.parts))

    def _has_part(self, file: BinaryIO, number: int, key: str) -> bool:
        begin, end = number * PART_BYTES, (number + 1) * PART_BYTES
        if is_hole(key) and next_data(file, begin, end) >= end:
            return True
        file.seek(begin)
        return digest_matches(key, read_part(file, PART_BYTES))

    def _replace(self, path: str, entry: OutputEntry) -> None:
        if entry.kind == "link":
            self._tree.make_link(path, entry.target)
            return
        with _naming_path(path), self._tree.replacing(path, mode=entry.mode, mtime_ns=entry.mtime_ns) as file:
            for key in entry.parts:
                if is_hole(key):
                    file.seek(PART_BYTES, os.SEEK_CUR)
                else:
                    _write_all(file, self._part(key))
            file.truncate(entry.size_bytes)  # the file may end with a hole


def read_manifests(
    store: Store, names: Sequence[ManifestName], generation: int | None
) -> list[OutputManifest]:
    """Read the manifests of the folder. If the last manifest of a node is damaged, use the previous one."""
    left = list(names)
    found: dict[str, OutputManifest] = {}
    while True:
        wanted = newest(left, before=generation)
        missing = [name for name in wanted if name.key not in found]
        if not missing:
            return [found[name.key] for name in wanted]
        for name in missing:
            try:
                manifest = OutputManifest.parse(store.get(name.key))
            except BadManifest:
                left.remove(name)
                continue
            if manifest.key == name.key:
                found[name.key] = manifest
            else:  # a rank stored another manifest under this name
                left.remove(name)


def _tidy(store: Store, keys: Sequence[str], kept: Sequence[OutputManifest], generation: int) -> None:
    with suppress(OSError):
        for key in surplus(keys, kept, before=generation)[:_MOST_REMOVED]:
            store.delete(key)


def _write_all(file: BinaryIO, part: bytes | bytearray) -> None:
    view = memoryview(part)
    while view:
        view = view[file.write(view) :]


@contextmanager
def _naming_path(path: str) -> Iterator[None]:
    """Name the file in the error for a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise OSError(
                error.errno, f"{path} of the output folder does not fit on this node's disk"
            ) from error
        raise
