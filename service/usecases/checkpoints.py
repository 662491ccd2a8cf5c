"""Which checkpoints of a job there are, by what lies in storage: no table has them, since ranks write them by themselves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from headway.contract.jobs import CheckpointPage, CheckpointView, JobView
from headway.contract.manifest import MANIFEST, Manifest, Name
from service.domain.errors import InvalidField, NotFound, Unavailable
from service.usecases.retain import checkpoint_prefix
from service.usecases.retention_ports import Stored

MOST_OBJECTS: Final = 5_000
"""A page ends once it has looked at so many, and of one checkpoint no more are looked at."""
_AT_ONCE: Final = 4
_LOOKED_FOR_S: Final = 15.0
_CURSOR: Final = re.compile(r"([0-9-]{1,120})(~?)")


class CheckpointStore(Protocol):
    """Object storage, as who looks for checkpoints sees it. Every method raises Unavailable."""

    def folders(self, prefix: str) -> AsyncIterator[str]:
        """Names of what looks like folders right under a prefix."""
        ...

    def entries(self, prefix: str) -> AsyncIterator[Stored]:
        """Objects under a prefix, by key."""
        ...

    async def get(self, key: str) -> bytes:
        """An object. Raises NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a page begins: behind `after` (None: at the newest). `found`: what would be restored was on a page before."""

    after: Name | None = None
    found: bool = False

    @classmethod
    def of(cls, cursor: str | None) -> _Place:
        """Raises InvalidField."""
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
    store: CheckpointStore, root: str, job: JobView, *, cursor: str | None, limit: int
) -> CheckpointPage:
    """A page of a job's checkpoints. `root` is the URI of the folder that all jobs' checkpoints lie in.

    `job` was read before: what its ranks have told of by then is in storage.

    Raises:
        InvalidField: the cursor is none of this listing.
        Unavailable: object storage does not answer, or not in time.
    """
    place = _Place.of(cursor)
    try:
        async with asyncio.timeout(_LOOKED_FOR_S):
            views, more = await _page(store, checkpoint_prefix(job.id), place, limit)
    except TimeoutError:
        raise Unavailable(
            f"object storage took more than {_LOOKED_FOR_S:g} s to list the checkpoints of job {job.name}; "
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


async def _page(
    store: CheckpointStore, prefix: str, place: _Place, limit: int
) -> tuple[list[CheckpointView], bool]:
    """Newest first, and whether there are older ones."""
    parsed = [Name.parse(folder) async for folder in store.folders(prefix)]
    names = sorted((one for one in parsed if one is not None), reverse=True)
    names = [one for one in names if place.after is None or one < place.after]
    views: list[CheckpointView] = []
    seen = 0
    for start in range(0, min(limit, len(names)), _AT_ONCE):
        few = names[start : min(start + _AT_ONCE, limit)]
        looked = await asyncio.gather(*(_look(store, f"{prefix}{name}/") for name in few))
        views += [_view(name, *one) for name, one in zip(few, looked, strict=True)]
        seen += sum(len(objects) for objects, _ in looked)
        if seen >= MOST_OBJECTS:
            break
    return views, len(views) < len(names)


async def _look(store: CheckpointStore, folder: str) -> tuple[Mapping[str, Stored], Manifest | str]:
    """What lies in a checkpoint's folder, and its manifest, or what is wrong with that."""
    objects: dict[str, Stored] = {}
    async for stored in store.entries(folder):
        if len(objects) == MOST_OBJECTS:
            break
        objects[stored.key.removeprefix(folder)] = stored
    if MANIFEST not in objects and len(objects) < MOST_OBJECTS:
        return objects, "it has no manifest: it is being written now, or its save failed"
    try:
        return objects, Manifest.from_text(await store.get(folder + MANIFEST))
    except NotFound:
        return objects, "it has no manifest: it is being written or deleted now, or its save failed"
    except ValueError as damage:
        return objects, str(damage)


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
    """What of a manifest is not there as it says; "" when all is. Whether the bytes are right only a restore finds out."""
    for part in manifest.parts:
        stored = objects.get(part.key)
        if stored is None:
            return f"its part {part.key} is missing"
        if stored.size_bytes != part.size_bytes:
            return f"its part {part.key} has {stored.size_bytes:,} bytes instead of {part.size_bytes:,}"
    return ""


def note_of(job: JobView, newest: list[CheckpointView], uri: str) -> str:
    """What whoever reads the first page of a list must know: that it is empty and why, or that checkpoints lie elsewhere."""
    told = job.progress.checkpoint_samples
    if told is not None and all(one.samples is not None and one.samples < told for one in newest):
        return (
            f"The ranks have told of a checkpoint at {told:,} samples, which the service does not see at {uri}: the hosts keep "
            "that folder for themselves, it was deleted, or another library wrote it in a layout of its own, as the Trainer of "
            "Transformers does. Only a place that all hosts and the service share is listed: HEADWAY_STORAGE_URL."
        )
    if newest:
        return ""
    return (
        "No checkpoint was saved. Scripts that call run.prepare() of headway save them, and before each stop; what other "
        "scripts write by themselves is not listed."
    )
