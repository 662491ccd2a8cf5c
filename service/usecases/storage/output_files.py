"""Files of a job's output folder in object storage."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Final

from headway.contract.output import (
    PART_BYTES,
    ROOT,
    BadManifest,
    Merged,
    OutputEntry,
    OutputManifest,
    is_hole,
    manifest_names,
    merge,
    newest,
)
from headway.contract.views.jobs import JobView
from headway.contract.views.stored_files import OutputFileView, OutputPage
from service.domain.shared.errors import NotFound, Unavailable
from service.usecases.ports.storage import StoredObjects
from service.usecases.storage.checkpoints import checkpoint_prefix

_MOST_MANIFEST_BYTES: Final = 32 << 20
_MOST_MANIFESTS: Final = 256
"""Maximum number of nodes that saved since the last start.

The listing of a job with more of them is incomplete.
"""
_LIST_TIMEOUT_S: Final = 15.0


async def list_output(
    store: StoredObjects, root: str, job: JobView, *, cursor: str | None, limit: int, failure: str | None
) -> OutputPage:
    """Return a page of the files that the job would find at its next start, by path.

    `root` is the URI of all jobs' checkpoints. `failure` says why the last save failed; None if it did not.

    Raises:
        Unavailable: object storage does not answer, or not in time.
    """
    manifests = await output_manifests(store, job.id)
    merged = merge(manifests)
    paths = sorted(path for path in merged.entries if cursor is None or path > cursor)
    shown = paths[:limit]
    return OutputPage(
        items=[_view(path, merged.entries[path]) for path in shown],
        next_cursor=shown[-1] if len(paths) > limit else None,
        uri=f"{root}/{job.id}/{ROOT}",
        saved_at=max((one.saved_at for one in manifests), default=None),
        note=_note(job, merged, failure),
    )


async def read_output_part(store: StoredObjects, job: JobView, path: str, part: int) -> bytes:
    """Return a part of a file, counted from 0.

    Raises:
        NotFound: there is no such file or part, or its content is damaged.
        Unavailable: object storage does not answer.
    """
    entry = merge(await output_manifests(store, job.id)).entries.get(path)
    if entry is None or entry.kind != "file" or part >= len(entry.parts):
        raise NotFound(
            f"the output folder of {job.name} has no part {part} of a file {path}; list it again: it may have changed"
        )
    key = entry.parts[part]
    data = await _bounded(store, checkpoint_prefix(job.id) + key, PART_BYTES)
    digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
    if digest != key.rpartition("/")[2]:
        raise NotFound(f"part {part} of {path} is damaged: it does not match its checksum")
    return data


async def output_manifests(store: StoredObjects, job_id: str) -> list[OutputManifest]:
    """Return the manifests that make up the output folder of a job.

    Raises:
        Unavailable: object storage does not answer, or not in time.
    """
    try:
        async with asyncio.timeout(_LIST_TIMEOUT_S):
            return await _read(store, checkpoint_prefix(job_id))
    except TimeoutError:
        raise Unavailable(
            f"object storage took more than {_LIST_TIMEOUT_S:g} s to list the output folder of job {job_id}"
        ) from None


async def _read(store: StoredObjects, prefix: str) -> list[OutputManifest]:
    keys = [one.key.removeprefix(prefix) async for one in store.entries(f"{prefix}{ROOT}manifests/")]
    found = []
    for name in newest(manifest_names(keys))[:_MOST_MANIFESTS]:
        try:
            text = await _bounded(store, prefix + name.key, _MOST_MANIFEST_BYTES)
            found.append(await asyncio.to_thread(OutputManifest.parse, text))
        except (BadManifest, NotFound):  # a node may be replacing it, and ranks can write there too
            continue
    return found


async def _bounded(store: StoredObjects, key: str, most_bytes: int) -> bytes:
    """Return an object that is within its size limit.

    Ranks of the job can put other objects in its place.

    Raises:
        NotFound: it does not exist, or is larger.
    """
    sizes = [one.size_bytes async for one in store.entries(f"{key.rpartition('/')[0]}/") if one.key == key]
    if not sizes or sizes[0] > most_bytes:
        raise NotFound(f"no object {key} of up to {most_bytes} bytes in storage")
    return await store.get(key)


def _view(path: str, entry: OutputEntry) -> OutputFileView:
    return OutputFileView(
        path=path,
        kind=entry.kind,
        size_bytes=entry.size_bytes,
        mode=entry.mode,
        mtime_ns=entry.mtime_ns,
        generation=entry.version[0],
        parts=len(entry.parts),
        target=entry.target,
        holes=_holes(entry),
    )


def _holes(entry: OutputEntry) -> list[tuple[int, int]]:
    """Return the ranges of parts that have only zeros, as first and end."""
    found: list[tuple[int, int]] = []
    for part, key in enumerate(entry.parts):
        if is_hole(key):
            first = found.pop()[0] if found and found[-1][1] == part else part
            found.append((first, part + 1))
    return found


def _note(job: JobView, merged: Merged, failure: str | None) -> str:
    if failure is not None:
        return f"{'The files are those of the last save that succeeded' if merged.entries else 'No file is saved'}: {failure}"
    if not merged.entries:
        return (
            f"No output of {job.name} is saved. Its script has written nothing to $HEADWAY_OUTPUT_DIR, or the first save "
            f"is still to come: saves follow every {job.spec.output.every:g} s and when the ranks end."
        )
    if merged.conflicts:
        return "Several nodes wrote these files, and those of the lowest rank are shown: " + ", ".join(
            merged.conflicts[:10]
        )
    return ""
