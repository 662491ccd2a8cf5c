"""Release of jobs that start after others, with the files of those.

The end of a job notes itself for its successors in its own transaction (`usecases.jobs.life.apply`). A job whose last
predecessor has ended is released here: the predecessors' output folders are copied to its own place in storage, which its
ranks may read, and then one transaction lets it wait for slots. If the process dies in between, the copy is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import structlog

from headway.contract.output import OutputManifest, is_hole, merge
from headway.contract.spec_after import files_prefix
from service.domain.life.chains import files_missing, release
from service.domain.life.life import Launch
from service.domain.shared.errors import HeadwayServiceError, NotFound
from service.usecases.jobs.life import apply, load_outline
from service.usecases.ports.storage import StoredObjects
from service.usecases.ports.transactions import Transactions
from service.usecases.storage.checkpoints import checkpoint_prefix
from service.usecases.storage.output_files import output_manifests

log = structlog.get_logger()

AT_ONCE: Final = 32
"""Maximum number of jobs whose files are copied at once."""
_COPIES: Final = 8
"""Copies of one job at once."""
_TRIES: Final = 3
"""Attempts of a copy. A late save of the predecessor may replace files that are being copied."""


@dataclass(slots=True, kw_only=True)
class Releases:
    """The jobs that this process releases now."""

    transactions: Transactions
    objects: StoredObjects
    launch: Launch
    now: Callable[[], datetime]
    _tasks: dict[asyncio.Task[None], str] = field(default_factory=dict, init=False)
    """The releases under way, with the ids of their jobs."""

    async def start(self) -> int:
        """Begin to release the jobs whose predecessors have all ended. Return their number.

        Raises:
            Unavailable, Superseded: see `Transactions`.
        """
        room = AT_ONCE - len(self._tasks)
        if room <= 0:
            return 0
        async with self.transactions.begin() as tx:
            ready = await tx.chains.ready(room, without=set(self._tasks.values()))
        for job_id in ready:
            task = asyncio.create_task(self._release(job_id), name=f"release of {job_id}")
            self._tasks[task] = job_id
            task.add_done_callback(self._tasks.pop)
        return len(ready)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """End the releases under way with the block. The next leader repeats them."""
        try:
            yield
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def settled(self) -> None:
        """Wait for the releases under way."""
        await asyncio.gather(*self._tasks)

    async def _release(self, job_id: str) -> None:
        """Copy the files for a job, and let it wait for slots. After an error, a later pass tries again."""
        try:
            failure = await self._copied(job_id)
            async with self.transactions.begin() as tx:
                job = (await tx.jobs.lock_many([job_id])).get(job_id)
                if job is None or not job.waits:
                    return
                life = await load_outline(tx, job, self.launch, self.now())
                predecessors = await tx.chains.of(job_id)
                after = (
                    release(life, predecessors)
                    if failure is None
                    else files_missing(life, predecessors, failure.message)
                )
                await apply(tx, job, after)
        except HeadwayServiceError as error:
            log.warning(
                "release_waits", job=job_id, reason=error.message, what_next="the next pass tries again"
            )
        except Exception:
            log.exception("release_failed", job=job_id)

    async def _copied(self, job_id: str) -> HeadwayServiceError | None:
        """Copy the files of a job's predecessors to its place. Return the reason if they cannot be copied."""
        async with self.transactions.begin() as tx:
            predecessors = await tx.chains.of(job_id)
        try:
            for one in predecessors:
                if one.files:
                    await copy_files(self.objects, one.id, job_id, one.key)
        except HeadwayServiceError as error:
            log.warning(
                "files_not_copied", job=job_id, reason=error.message, what_next="the next pass tries again"
            )
            return error
        return None


async def copy_files(objects: StoredObjects, source_id: str, job_id: str, key: str) -> int:
    """Copy the output folder of an ended job to the place of a job that waited for it. Return the number of files.

    The copy has one manifest, which is stored last. Parts are addressed by their content, so a repeated copy changes nothing.

    Raises:
        NotFound: files disappeared while they were copied, again and again.
        Unavailable: object storage does not answer.
    """
    here, there = checkpoint_prefix(source_id), f"{checkpoint_prefix(job_id)}{files_prefix(key)}"
    for attempt in range(_TRIES):
        manifests = await output_manifests(objects, source_id)
        if not manifests:
            return 0
        entries = merge(manifests).entries
        parts = {part for one in entries.values() for part in one.parts if not is_hole(part)}
        try:
            await _copy_parts(objects, here, there, sorted(parts))
            break
        except NotFound:
            if attempt == _TRIES - 1:
                raise
    last = max(manifests, key=lambda one: one.saved_at)
    copied = OutputManifest(
        lineage=1, joined=False, node="copy", sequence=1, saved_at=last.saved_at, entries=entries
    )
    await objects.put(there + copied.key, copied.model_dump_json().encode())
    return len(entries)


async def _copy_parts(objects: StoredObjects, here: str, there: str, keys: list[str]) -> None:
    slots = asyncio.Semaphore(_COPIES)

    async def copy(key: str) -> None:
        async with slots:
            await objects.copy(here + key, there + key)

    await asyncio.gather(*(copy(key) for key in keys))
