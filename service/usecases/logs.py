"""Logs go from the agent to object storage, past every table.

A chunk is one object: `logs/<job>/<received, microseconds>-<generation>-<rank>-<offset>`. Keys are
assigned on receipt and sort by time, so one listing reads all ranks in order, and a key is a cursor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

from headway.contract.jobs import LogChunk
from service.domain.errors import NotFound
from service.usecases.outside_ports import Storage


def log_prefix(job_id: str) -> str:
    """Under this prefix lie all chunks of a job."""
    return f"logs/{job_id}/"


def received_at(key: str) -> datetime:
    """When the chunk of a key was received."""
    micros = int(key.rpartition("/")[2].partition("-")[0])
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


def missing_before(offset: int) -> str:
    """What is said in place of the beginning of a rank's output."""
    return f"[headway] The first {offset:,} bytes of what this rank wrote are not kept any more.\n"


async def append_log(
    storage: Storage, job_id: str, *, generation: int, rank: int, offset: int, data: bytes, now: datetime
) -> None:
    """Store a chunk. What was sent twice is stored twice and read once (by its offset)."""
    micros = int(now.timestamp() * 1_000_000)
    key = f"{log_prefix(job_id)}{micros:017d}-{generation:08d}-{rank:06d}-{offset:012d}"
    await storage.put(key, data)


async def read_logs(
    storage: Storage, job_id: str, *, after: str | None = None, rank: int | None = None
) -> AsyncIterator[LogChunk]:
    """Chunks in the order of their receipt, after the cursor `after`, of one rank or of all.

    Where the beginning of a rank's output was deleted, its first chunk says so. What its agent left out, because it was
    too much at once, the output itself says.

    Raises:
        Unavailable: object storage does not answer.
    """
    prefix = log_prefix(job_id)
    read_to: dict[tuple[int, int], int] = {}
    start = f"{prefix}{after}" if after else None
    async for key in storage.list(prefix, after=start):
        name = key.removeprefix(prefix)
        micros, generation, chunk_rank, offset = (int(part) for part in name.split("-"))
        stream = (generation, chunk_rank)
        if rank is not None and chunk_rank != rank:
            continue
        try:
            data = await storage.get(key)
        except NotFound:
            continue  # the oldest output is deleted while it is read
        cut = after is None and offset > 0 and stream not in read_to
        read_already = max(0, read_to.get(stream, 0) - offset)
        if read_already and read_already >= len(data):
            continue
        # Sent again since no answer came, a chunk may have got longer: its rank wrote on meanwhile.
        offset, data = offset + read_already, data[read_already:]
        read_to[stream] = offset + len(data)
        yield LogChunk(
            cursor=name,
            at=datetime.fromtimestamp(micros / 1_000_000, UTC),
            generation=generation,
            rank=chunk_rank,
            offset=offset,
            text=(missing_before(offset) if cut else "") + data.decode(errors="replace"),
        )
