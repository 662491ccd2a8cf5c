"""Starts of new jobs from checkpoints of other jobs of their project.

The checkpoint is copied to the place of the new job before its row is stored, so that pruning or deletion at the other
job no longer concerns it. It has the generation 0, before every one that writes there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

import structlog

from headway.contract.manifest import MANIFEST, Manifest, Name
from headway.contract.run_facts import StartedFrom
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobView
from headway.contract.views.stored_files import CheckpointView
from service.domain.identity.access import Principal
from service.domain.shared.errors import InvalidField, NotFound, Unavailable
from service.usecases.ports.storage import StoredObjects
from service.usecases.ports.transactions import Transactions
from service.usecases.storage.checkpoints import checkpoint_prefix, list_checkpoints

log = structlog.get_logger()
FIELD: Final = "checkpoint.from"
_AT_ONCE: Final = 4
_NAMED: Final = 5
"""Number of checkpoints that a refusal names."""
_PAGE: Final = 20
_TRIES: Final = 3
"""Attempts to copy the newest checkpoint of a job that deletes old ones meanwhile."""


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """The storage of all checkpoints, and the URI of their folder."""

    objects: StoredObjects
    root: str


@asynccontextmanager
async def inherited(
    transactions: Transactions, store: CheckpointStore, spec: JobSpec, *, caller: Principal, job_id: str
) -> AsyncIterator[StartedFrom | None]:
    """Copy the checkpoint that a new job starts from, if its spec names one, and delete the copy after an error.

    Raises:
        InvalidField: no such job of the project, or no such complete checkpoint; the message names what exists.
        Unavailable: object storage does not answer.
    """
    if spec.checkpoint.from_ is None:
        yield None
        return
    try:
        yield await _copy(transactions, store, spec, caller, job_id)
    except BaseException:
        await discard(store, job_id)
        raise


async def discard(store: CheckpointStore, job_id: str) -> None:
    """Delete the copy for a job that was not stored. If that fails, the sweep deletes it."""
    with suppress(Unavailable):
        await store.objects.delete_folder(checkpoint_prefix(job_id))


async def _copy(
    transactions: Transactions, store: CheckpointStore, spec: JobSpec, caller: Principal, job_id: str
) -> StartedFrom:
    wanted_job, _, wanted = (spec.checkpoint.from_ or "").partition("@")
    source = await _source(transactions, spec.project, wanted_job, caller)
    for _ in range(_TRIES):
        chosen = await _chosen(store, source, wanted)
        try:
            await _copy_objects(store.objects, source.id, chosen, job_id)
        except NotFound:  # its job has pruned it since it was listed
            await discard(store, job_id)
            continue
        return StartedFrom(
            job_id=source.id, job=source.name, checkpoint=chosen.name, samples=chosen.samples or 0
        )
    raise InvalidField(
        FIELD, f"checkpoints of job {source.name} were deleted while they were copied; submit the job again"
    )


async def _source(transactions: Transactions, project: str, job: str, caller: Principal) -> JobView:
    """Return the job of the project with this id or name. Jobs that the caller cannot see do not exist."""
    async with transactions.begin() as tx:
        try:
            found = await tx.job_queries.find(job, frozenset({project}))
        except NotFound as unknown:
            try:
                other = await tx.job_queries.find(job, caller.projects())
            except NotFound:
                raise InvalidField(FIELD, f"project {project}: {unknown.message}") from None
            raise InvalidField(
                FIELD,
                f"job {job} belongs to project {other.project}, and a job starts only from checkpoints of its own project, "
                f"{project}",
            ) from None
        return await tx.job_queries.job(found.id)


async def _chosen(store: CheckpointStore, source: JobView, wanted: str) -> CheckpointView:
    """Return the checkpoint of this name, or the newest complete one without a name."""
    complete: list[str] = []
    cursor, note = None, ""
    while True:
        page = await list_checkpoints(store.objects, store.root, source, cursor=cursor, limit=_PAGE)
        for one in page.items:
            if one.complete and wanted in {"", one.name}:
                return one
            if one.name == wanted:
                note = f"its checkpoint {wanted} is not complete: {one.problem}"
            elif one.complete:
                complete.append(one.name)
            elif not wanted:
                note = note or f"its newest, {one.name}: {one.problem}"
        note = note or page.note
        cursor = page.next_cursor
        if cursor is None:
            break
    if not complete:
        raise InvalidField(FIELD, f"job {source.name} has no complete checkpoint; {note}".rstrip("; "))
    more = f" and {len(complete) - _NAMED} older ones" if len(complete) > _NAMED else ""
    problem = note or f"it has no checkpoint {wanted}"
    raise InvalidField(
        FIELD, f"job {source.name}: {problem}; complete are {', '.join(complete[:_NAMED])}{more}"
    )


def inherited_name(checkpoint: str) -> str:
    """Return the name of the copy of a checkpoint at the job that starts from it."""
    name = Name.parse(checkpoint)
    assert name is not None, f"{checkpoint} is no name of a checkpoint"
    return str(Name(0, name.epoch, name.samples))


async def _copy_objects(objects: StoredObjects, source_id: str, chosen: CheckpointView, job_id: str) -> None:
    """Copy a checkpoint, its manifest last. Raise NotFound if it was deleted meanwhile."""
    here = f"{checkpoint_prefix(source_id)}{chosen.name}/"
    there = f"{checkpoint_prefix(job_id)}{inherited_name(chosen.name)}/"
    manifest = Manifest.from_text(await objects.get(here + MANIFEST))
    slots = asyncio.Semaphore(_AT_ONCE)

    async def copy(key: str) -> None:
        async with slots:
            await objects.copy(here + key, there + key)

    await asyncio.gather(*(copy(part.key) for part in manifest.parts))
    await objects.put(there + MANIFEST, replace(manifest, generation=0).to_text())
    log.info("checkpoint_copied", job=job_id, source=source_id, checkpoint=chosen.name)
