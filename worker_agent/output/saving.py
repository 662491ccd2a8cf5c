"""Save an output folder.

A file is never saved half-written. A save while ranks run takes a file only if it did not change for
`QUIET_S`. It discards what it read if the file changes meanwhile; the manifest then keeps the earlier
version. A file that changes constantly, such as a log, is saved at every second save. The last save runs
after the ranks have ended, and takes all files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from headway.contract.output import HOLE, MAX_FILES, PART_BYTES, OutputEntry, OutputManifest, data_prefix
from headway.contract.values.quantities import size_text
from worker_agent.output.tree import Scan, Signature, TooManyFiles, Tree, TreeEntry, Unreadable, next_data
from worker_agent.output.values import (
    CannotSave,
    Index,
    Outcome,
    Request,
    Store,
    read_part,
    store_manifest,
)

QUIET_S: Final = 2.0
_TOO_MANY: Final = f"The output folder cannot be saved: it has more than {MAX_FILES:,} files and folders. Pack them into fewer files."


class _Torn(Exception):  # not an error: the next save takes the file
    """Signal that a file changed while it was read."""


def save(store: Store, tree: Tree, request: Request, *, prune: bool = True) -> Outcome:
    """Save the changes since the last call. With `prune`, delete objects that the last two manifests do not name.

    Raises:
        CannotSave: the folder has more files than allowed.
        OSError: storage or the folder cannot be accessed. The last complete save is unchanged.
    """
    before = request.index or Index(lineage=request.generation, joined=request.joined)
    scan = _scan(tree, request)
    saving = _Saving(store, tree, request, before)
    left_out = choose_left_out(scan.entries, before.signatures, request.max_bytes)
    entries = {}
    for path, found in scan.entries.items():
        entry = before.entries.get(path) if path in left_out else saving.take(path, found)
        if entry is not None:
            entries[path] = entry
    hidden = tuple(f"{folder}/" for folder in scan.closed)
    entries |= {path: entry for path, entry in before.entries.items() if path.startswith(hidden)}
    gone = before.entries.keys() - scan.entries.keys() - entries.keys()
    removed = {path: one for path, one in before.removed.items() if path not in entries}
    removed |= dict.fromkeys(sorted(gone), request.version)
    outcome = Outcome(
        index=None,
        files=len(entries),
        size_bytes=sum(one.data_bytes for one in entries.values()),
        moved_bytes=saving.moved_bytes,
        busy=saving.busy,
        odd=[*scan.odd, *scan.closed, *saving.odd],
        left_out=[_sizes_text(path, scan.entries[path]) for path in left_out],
        problem=_problem(scan, left_out, request.max_bytes),
    )
    index = before.model_copy(
        update={"signatures": saving.signatures, "busy": saving.busy, "version": request.version}
    )
    if entries == before.entries and removed == before.removed:
        kept = index if request.index is not None or entries or saving.busy else None
        return outcome.model_copy(update={"index": kept})
    used = {key for one in entries.values() for key in one.parts}
    prefix = data_prefix(before.lineage, request.node)
    dropped = {key for one in before.entries.values() for key in one.parts if key.startswith(prefix)} - used
    index = index.model_copy(
        update={
            "entries": entries,
            "removed": dict(list(removed.items())[:MAX_FILES]),
            "sequence": before.sequence + 1,
            "dropped": sorted(dropped),
        }
    )
    store_manifest(store, index, request)
    if prune:
        _prune(store, index, request, [key for key in before.dropped if key not in used])
    return outcome.model_copy(update={"index": index, "changed": True})


def _scan(tree: Tree, request: Request) -> Scan:
    """Return the entries of the folder that are output.

    Raises:
        CannotSave: the output has more files than allowed.
    """
    try:
        scan = tree.scan(most=MAX_FILES + len(request.bundle))
    except TooManyFiles:
        raise CannotSave(_TOO_MANY) from None
    known = request.index.entries if request.index is not None else {}
    ours = {
        path: found
        for path, found in scan.entries.items()
        if path in known or not _is_of_bundle(found, request.bundle.get(path))
    }
    if len(ours) > MAX_FILES:
        raise CannotSave(_TOO_MANY)
    return Scan(ours, scan.odd, scan.closed)


def choose_left_out(
    entries: Mapping[str, TreeEntry], saved: Mapping[str, Signature], max_bytes: int
) -> list[str]:
    """Choose the files that do not fit into `max_bytes` on disk, largest first.

    Files that did not change since they were `saved` stay, then the smallest have room. Hard links count once.
    """
    files = {path: found for path, found in entries.items() if found.kind == "file"}
    unchanged = {path for path, found in files.items() if saved.get(path) == found.signature}
    counted: set[int] = set()
    used_bytes = 0
    left_out = []
    for path in sorted(files, key=lambda one: (one not in unchanged, files[one].disk_bytes, one)):
        found = files[path]
        more_bytes = 0 if found.inode in counted else found.disk_bytes
        if path not in unchanged and used_bytes + more_bytes > max_bytes:
            left_out.append(path)
        else:
            used_bytes += more_bytes
            counted.add(found.inode)
    return left_out[::-1]


def _sizes_text(path: str, found: TreeEntry) -> str:
    name = path if path.isprintable() else ascii(path)[1:-1]
    held = f", {size_text(found.disk_bytes)} on disk" if found.disk_bytes < found.size_bytes else ""
    return f"{name} ({size_text(found.size_bytes)}{held})"


def _problem(scan: Scan, left_out: Sequence[str], max_bytes: int) -> str:
    if not left_out:
        return ""
    disk_bytes = sum(
        {one.inode: one.disk_bytes for one in scan.entries.values() if one.kind == "file"}.values()
    )
    return (
        f"The output folder has {size_text(disk_bytes)} on disk, and output.max_size is {size_text(max_bytes)}. Remove files "
        "from it, or raise output.max_size."
    )


def _is_of_bundle(found: TreeEntry, known: tuple[int, int] | None) -> bool:
    if known is None:
        return False
    return found.kind == "folder" or known == found.signature[:2]


class _Saving:
    """Storing of changed entries, one after another."""

    def __init__(self, store: Store, tree: Tree, request: Request, before: Index) -> None:
        self._store = store
        self._tree = tree
        self._request = request
        self._before = before
        self._known = {
            key.rpartition("/")[2]: key for entry in before.entries.values() for key in entry.parts
        }
        self._prefix = data_prefix(before.lineage, request.node)
        self._links: dict[Signature, tuple[str, ...]] = {}
        """Parts of the files that were read, for their other hard links."""
        self.signatures: dict[str, Signature] = {}
        self.busy: list[str] = []
        self.odd: list[str] = []
        self.moved_bytes = 0

    def take(self, path: str, found: TreeEntry) -> OutputEntry | None:
        """Return the entry for the manifest, or None for a new file that is still being written."""
        old = self._before.entries.get(path)
        if found.kind != "file":
            self.signatures[path] = found.signature
            return self._unless_equal(old, self._entry(found, target=found.target))
        if old is not None and old.kind == "file" and self._before.signatures.get(path) == found.signature:
            self.signatures[path] = found.signature
            return old
        if not self._at_rest(path, found):
            self.busy.append(path)
            return old
        try:
            parts = self._store_parts(path, found)
        except _Torn:
            self.busy.append(path)
            return old
        except Unreadable:
            if self._tree.look(path) is None:  # removed since it was listed
                return None
            self.odd.append(path)
            return old
        self.signatures[path] = found.signature
        return self._unless_equal(old, self._entry(found, parts=parts))

    def _at_rest(self, path: str, found: TreeEntry) -> bool:
        if self._request.last or path in self._before.busy:
            return True
        return self._request.now_s - found.mtime_ns / 1e9 >= QUIET_S

    def _store_parts(self, path: str, found: TreeEntry) -> tuple[str, ...]:
        """Store a file, and return the keys of its parts. Holes are not read, nor a second hard link."""
        if found.signature in self._links:
            return self._links[found.signature]
        parts = []
        with self._tree.reading(path) as file:
            data = position = 0
            while position < found.size_bytes:
                if data <= position:
                    data = next_data(file, position, found.size_bytes)
                if data >= position + PART_BYTES:
                    parts.append(self._hole())
                    position = file.seek(PART_BYTES, os.SEEK_CUR)
                    continue
                part = read_part(file, PART_BYTES)
                position += len(part)
                if len(part) < PART_BYTES and position != found.size_bytes:
                    raise _Torn
                parts.append(self._store_part(part))
        after = self._tree.look(path)
        if position != found.size_bytes or after is None or after.signature != found.signature:
            raise _Torn
        return self._links.setdefault(found.signature, tuple(parts))

    def _hole(self) -> str:
        known = self._known.get(HOLE)
        return self._store_part(bytes(PART_BYTES)) if known is None else known

    def _store_part(self, part: bytes) -> str:
        digest = hashlib.sha256(part).hexdigest()
        known = self._known.get(digest)
        if known is None:
            known = self._prefix + digest
            self._store.put(known, part)
            self._known[digest] = known
            self.moved_bytes += len(part)
        return known

    def _entry(self, found: TreeEntry, *, parts: tuple[str, ...] = (), target: str = "") -> OutputEntry:
        return OutputEntry(
            kind=found.kind,
            version=self._request.version,
            saved_ns=round(self._request.now_s * 1e9),
            mode=found.mode,
            mtime_ns=found.mtime_ns if found.kind == "file" else 0,
            size_bytes=found.size_bytes,
            parts=parts,
            target=target,
        )

    def _unless_equal(self, old: OutputEntry | None, new: OutputEntry) -> OutputEntry:
        """Return the old entry if only times changed, so that it keeps its version."""
        return old if old is not None and (old.content, old.mode) == (new.content, new.mode) else new


def _prune(store: Store, index: Index, request: Request, parts: Sequence[str]) -> None:
    """Delete the third-last manifest of this node, and parts that only it named.

    An error leaves unused objects, but does no harm.
    """
    old = OutputManifest(
        lineage=index.lineage,
        joined=index.joined,
        node=request.node,
        sequence=max(index.sequence - 2, 0),
        saved_at=datetime.fromtimestamp(request.now_s, UTC),
        entries={},
    )
    with suppress(OSError):
        for key in (old.key, *parts):
            store.delete(key)
