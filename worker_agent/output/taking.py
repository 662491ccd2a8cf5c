"""Handover of an output folder between two nodes while training goes on: rank 0 moves, and with it the writer of most files.

The giving node saves the folder once its leaving ranks have ended, and leaves a mark in storage. The taking node waits
for the mark, fetches what changed, and only then lets its rank 0 write.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from headway.contract.output import Merged, OutputEntry, manifest_names, merge
from worker_agent.output.fetching import TRIES, Fetching, read_manifests
from worker_agent.output.saving import save
from worker_agent.output.tree import Tree
from worker_agent.output.values import CannotSave, Index, Outcome, Request, Store, mark_key, store_manifest

_LOOK_EVERY_S: Final = 0.1


def save_and_mark(store: Store, tree: Tree, request: Request) -> Outcome:
    """Save the folder, and leave the mark of a handover if one is due.

    Raises:
        CannotSave: the folder is larger than allowed. The mark is left: a retry would not help.
        OSError: storage or the folder cannot be accessed.
    """
    try:
        outcome = save(store, tree, request)
    except CannotSave:
        _mark(store, request)
        raise
    _mark(store, request)
    return outcome


def take(store: Store, tree: Tree, request: Request) -> Outcome:
    """Wait for the giving node's mark, and bring this node's folder to what all nodes have saved.

    Files that only this node changed stay as they are. Files that the giving node wrote replace those here.

    Raises:
        OSError: storage or the folder cannot be accessed.
    """
    marked = _await_mark(store, request)
    own = _save_own(store, tree, request)
    for attempt in range(TRIES):
        manifests = read_manifests(store, manifest_names(store.keys()), None)
        merged = merge(manifests)
        fetching = Fetching(store, tree, own)
        try:
            changed = _apply(tree, fetching, own, merged)
            break
        except FileNotFoundError:
            if attempt == TRIES - 1:
                raise
    index = None
    if manifests or own.entries:
        index = _taken(own, merged, fetching, request, changed)
        store_manifest(store, index, request)
    with suppress(OSError):
        store.delete(mark_key(request.mark or 0))
    return Outcome(
        index=index,
        files=len(merged.entries),
        size_bytes=sum(one.size_bytes for one in merged.entries.values()),
        moved_bytes=fetching.moved_bytes,
        changed=bool(changed),
        conflicts=list(merged.conflicts),
        marked=marked,
    )


def _mark(store: Store, request: Request) -> None:
    if request.mark is not None:
        store.put(mark_key(request.mark), b"saved")


def _await_mark(store: Store, request: Request) -> bool:
    give_up_s = time.monotonic() + request.wait_s
    while True:
        try:
            store.get(mark_key(request.mark or 0))
        except FileNotFoundError:
            if time.monotonic() >= give_up_s:
                return False
            time.sleep(_LOOK_EVERY_S)
        else:
            return True


def _save_own(store: Store, tree: Tree, request: Request) -> Index:
    """Save what ranks of this node wrote, below the files of the giving node."""
    before = request.index or Index(lineage=request.generation, joined=request.joined)
    own = request.model_copy(update={"last": True, "version": request.own_version})
    try:
        return save(store, tree, own, prune=False).index or before
    except CannotSave:  # the next periodic save reports it
        return before


def _apply(tree: Tree, fetching: Fetching, own: Index, merged: Merged) -> set[str]:
    """Change the files that differ from what other nodes saved later. Return their paths."""
    gone = own.entries.keys() - merged.entries.keys()
    for path in sorted(gone, reverse=True):
        tree.remove(path)
    changed = {
        path
        for path, entry in merged.entries.items()
        if path not in own.entries or own.entries[path].content != entry.content
    }
    for path in sorted(changed):
        fetching.extend_or_replace(path, merged.entries[path])
    return changed


def _taken(own: Index, merged: Merged, fetching: Fetching, request: Request, changed: set[str]) -> Index:
    entries = {path: _fenced(entry, request) for path, entry in merged.entries.items()}
    kept = {path: one for path, one in own.signatures.items() if path in entries and path not in changed}
    fresh = fetching.signatures({path: entries[path] for path in changed})
    return own.model_copy(
        update={
            "entries": entries,
            "signatures": kept | fresh,
            "removed": {path: one for path, one in own.removed.items() if path not in entries},
            "sequence": own.sequence + 1,
            "version": request.version,
            "busy": [],
        }
    )


def _fenced(entry: OutputEntry, request: Request) -> OutputEntry:
    """Return an entry of rank 0 under the new generation, so that no late save of the giving node replaces it."""
    if not request.fence or entry.version[1] != 0 or entry.version >= request.version:
        return entry
    return entry.model_copy(update={"version": request.version})
