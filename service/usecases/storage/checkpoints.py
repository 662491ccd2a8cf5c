"""Listing of a job's checkpoints from object storage. No table has them, since ranks write them directly."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headway.contract.manifest import MANIFEST, Manifest, Name
from headway.contract.views.jobs import TERMINAL_STATES, JobView
from headway.contract.views.stored_files import CheckpointPage, CheckpointView
from service.domain.jobs.restorable import Restorable
from service.domain.shared.errors import InvalidField, NotFound, Unavailable
from service.usecases.ports.storage import Stored, StoredObjects
from service.usecases.ports.transactions import Transactions

MOST_OBJECTS: Final = 5_000
"""Maximum number of objects read for a page, and for one checkpoint."""
MOST_MANIFEST_BYTES: Final = 1 << 20
"""Largest manifest that is read: ranks write it, and may write anything."""
_AT_ONCE: Final = 4
_LIST_TIMEOUT_S: Final = 15.0
_PART_KEY: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
"""Keys of parts as the library names them. No other key of a manifest is looked up, because a job may have written it."""
_CURSOR: Final = re.compile(r"([0-9-]{1,120})(~?)")


def checkpoint_prefix(job_id: str) -> str:
    """Return the prefix of all checkpoints of a job in object storage."""
    return f"checkpoints/{job_id}/"


@dataclass(frozen=True, slots=True)
class _Place:
    """The start of a page: after the checkpoint `after`, or (None) at the newest.

    `found` says that an earlier page has the checkpoint that would be restored.
    """

    after: Name | None = None
    found: bool = False

    @classmethod
    def of(cls, cursor: str | None) -> _Place:
        """Return the place of a cursor. Raise InvalidField if it is malformed."""
        if cursor is None:
            return cls()
        match = _CURSOR.fullmatch(cursor)
        after = Name.parse(match[1]) if match is not None else None
        if match is None or after is None:
            raise InvalidField("cursor", "not a cursor of this listing; start without one")
        return cls(after, found=bool(match[2]))

    def __str__(self) -> str:
        return f"{self.after}{'~' if self.found else ''}"


async def list_checkpoints(
    store: StoredObjects, root: str, job: JobView, *, cursor: str | None, limit: int
) -> CheckpointPage:
    """Return a page of a job's checkpoints.

    `root` is the URI of the folder with the checkpoints of all jobs.

    `job` must be read before the call, so that every checkpoint that it mentions is already in storage. The last
    one that its ranks reported is shown even where the lists of the store lag behind its objects.

    Raises:
        InvalidField: the cursor does not belong to this listing.
        Unavailable: object storage does not answer, or not in time.
    """
    place = _Place.of(cursor)
    try:
        async with asyncio.timeout(_LIST_TIMEOUT_S):
            views, more = await _page(store, job, place, limit)
    except TimeoutError:
        raise Unavailable(
            f"object storage took more than {_LIST_TIMEOUT_S:g} s to list the checkpoints of job {job.name}; "
            "ask for fewer of them with `limit`."
        ) from None
    newest = None if place.found else next((one for one in views if one.complete), None)
    if newest is not None:
        newest.restored_next = True
    uri = f"{root}/{job.id}"
    after = _Place(Name.parse(views[-1].name), place.found or newest is not None) if views else place
    return CheckpointPage(
        items=views,
        next_cursor=str(after) if more else None,
        uri=uri,
        note=note_of(job, views, uri) if cursor is None else "",
    )


async def restorable_of(
    transactions: Transactions, store: StoredObjects, root: str, job_id: str
) -> Restorable | None:
    """Return the newest complete checkpoint of a job that has ended; None for others.

    Raises:
        Unavailable: as `list_checkpoints`.
    """
    async with transactions.begin() as tx:
        job = await tx.job_queries.job(job_id)
    return await find_restorable(store, root, job) if job.state in TERMINAL_STATES else None


async def find_restorable(store: StoredObjects, root: str, job: JobView) -> Restorable:
    """Return the newest complete checkpoint of a job that was read before the call.

    Raises:
        Unavailable: as `list_checkpoints`.
    """
    cursor, note = None, ""
    while True:
        page = await list_checkpoints(store, root, job, cursor=cursor, limit=_AT_ONCE)
        found = next((one for one in page.items if one.complete), None)
        note = note or page.note or "; ".join(f"{one.name}: {one.problem}" for one in page.items)
        cursor = page.next_cursor
        if found is not None or cursor is None:
            return Restorable(found, "" if found is not None else note)


async def _page(
    store: StoredObjects, job: JobView, place: _Place, limit: int
) -> tuple[list[CheckpointView], bool]:
    """Return a page of views, newest first, and True if there are older checkpoints."""
    prefix = checkpoint_prefix(job.id)
    found = {Name.parse(folder) async for folder in store.folders(prefix)}
    reported = Name.parse(job.progress.checkpoint_name or "")
    if reported is not None and reported not in found:
        found.add(reported if await store.find(f"{prefix}{reported}/{MANIFEST}") is not None else None)
    names = sorted((one for one in found if one is not None), reverse=True)
    names = [one for one in names if place.after is None or one < place.after]
    views: list[CheckpointView] = []
    seen = 0
    for start in range(0, min(limit, len(names)), _AT_ONCE):
        batch = names[start : min(start + _AT_ONCE, limit)]
        read = await asyncio.gather(*(_read_checkpoint(store, f"{prefix}{name}/") for name in batch))
        views += [_view(name, *one) for name, one in zip(batch, read, strict=True)]
        seen += sum(len(objects) for objects, _ in read)
        if seen >= MOST_OBJECTS:
            break
    return views, len(views) < len(names)


async def _read_checkpoint(store: StoredObjects, folder: str) -> tuple[Mapping[str, Stored], Manifest | str]:
    """Return the objects in a checkpoint's folder, and its manifest or the reason why that cannot be read.

    Objects that the list lacks are looked up one by one, because lists of some stores lag behind.
    """
    objects: dict[str, Stored] = {}
    async for stored in store.entries(folder):
        if len(objects) == MOST_OBJECTS:
            break
        objects[stored.key.removeprefix(folder)] = stored
    manifest = await _read_manifest(store, folder, objects)
    parts = manifest.parts if isinstance(manifest, Manifest) and len(objects) < MOST_OBJECTS else ()
    for part in parts:
        if part.key not in objects and _PART_KEY.fullmatch(part.key):
            unlisted = await store.find(folder + part.key)
            if unlisted is None:
                break
            objects[part.key] = unlisted
    return objects, manifest


async def _read_manifest(store: StoredObjects, folder: str, objects: dict[str, Stored]) -> Manifest | str:
    """Return the manifest in a checkpoint's folder, or the reason why it cannot be read.

    One that the list lacks is added to `objects`.
    """
    if MANIFEST not in objects and len(objects) < MOST_OBJECTS:
        unlisted = await store.find(folder + MANIFEST)
        if unlisted is None:
            return "it has no manifest: it is being written now, or its save failed"
        objects[MANIFEST] = unlisted
    written = objects.get(MANIFEST)
    if written is not None and not 0 < written.size_bytes <= MOST_MANIFEST_BYTES:
        return f"its manifest has {written.size_bytes:,} bytes; at most {MOST_MANIFEST_BYTES:,} are read"
    try:
        return Manifest.from_text(await store.get(folder + MANIFEST))
    except NotFound:
        return "it has no manifest: it is being written or deleted now, or its save failed"
    except ValueError as damage:
        return str(damage)


def _view(name: Name, objects: Mapping[str, Stored], manifest: Manifest | str) -> CheckpointView:
    read = manifest if isinstance(manifest, Manifest) else None
    problem = manifest if isinstance(manifest, str) else ""
    whole = len(objects) < MOST_OBJECTS
    if read is not None and whole:
        problem = _damage(objects, read)
    written = objects.get(MANIFEST)
    latest = max((one.at for one in objects.values()), default=None)
    return CheckpointView(
        name=str(name),
        generation=name.generation,
        epoch=name.epoch,
        samples_in_epoch=name.samples,
        samples=None if read is None else read.samples,
        saved_at=latest if written is None else written.at,
        size_bytes=read.size_bytes
        if read is not None and not whole
        else sum(one.size_bytes for one in objects.values()),
        complete=not problem,
        problem=problem,
    )


def _damage(objects: Mapping[str, Stored], manifest: Manifest) -> str:
    """Return the first part of a manifest that is missing or has another size, as text, or "".

    Only a restore verifies the bytes.
    """
    for part in manifest.parts:
        stored = objects.get(part.key)
        if stored is None:
            return f"its part {part.key} is missing"
        if stored.size_bytes != part.size_bytes:
            return f"its part {part.key} has {stored.size_bytes:,} bytes instead of {part.size_bytes:,}"
    return ""


def note_of(job: JobView, newest: list[CheckpointView], uri: str) -> str:
    """Return a note for the first page: why it is empty, or that checkpoints lie elsewhere; else ""."""
    reported = job.progress.checkpoint_samples
    if reported is not None and all(one.samples is not None and one.samples < reported for one in newest):
        return (
            f"The ranks reported a checkpoint at {reported:,} samples, but the service does not find it at {uri}. That folder may "
            "be local to the hosts, the checkpoint may be deleted, or another library, such as the Trainer of "
            "Transformers, wrote it in its own layout. Only storage that all hosts and the service share is listed: "
            "set HEADWAY_STORAGE_URL."
        )
    if newest:
        return ""
    return (
        "No checkpoint was saved. Scripts that call headway's run.prepare() save checkpoints regularly and before each "
        "stop. Files that other scripts write are not listed."
    )
