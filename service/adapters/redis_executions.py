"""Commands beside ranks and their output in Redis: a hash and a stream for each, and a set for each job.

The lifetimes are Redis's own, by keys that expire: one while the agent reports, one while somebody reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from headway.contract.executions import (
    MAX_OUTPUT_BYTES,
    MAX_PART_BYTES,
    MAX_PARTS,
    ExecutionEnd,
    ExecutionEvent,
    ExecutionOutcome,
    ExecutionReport,
)
from service.domain.shared.errors import IdempotencyConflict, NotFound, TooLarge, TooManyCommands, Unavailable
from service.usecases.ports.executions import Execution, Executions

KEPT_S: Final = 600
"""Time after the last report for which a command and its output are kept, in seconds."""
SILENT_S: Final = 30
"""Time without a report after which an agent counts as lost, in seconds; also the time to claim a command."""
UNREAD_S: Final = 60
"""Time without a reader after which a command is killed, in seconds."""
_BATCH: Final = 16
_LARGEST: Final = MAX_OUTPUT_BYTES + MAX_PARTS * MAX_PART_BYTES


class RedisExecutions(Executions):
    """Commands beside ranks in Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def open(self, execution: Execution, most: int) -> None:
        key, of_job = _key(execution.id), _of_job(execution.job_id)
        async with _answers():
            if (known := await self._redis.hget(key, "job_id")) is not None:
                if known != execution.job_id.encode():
                    raise IdempotencyConflict(
                        f"the id {execution.id} is that of another command; take a new one"
                    )
                return  # a repeated request
            async with self._redis.pipeline() as pipeline:
                fields: dict[Any, Any] = asdict(execution)
                pipeline.hset(key, mapping=fields)
                pipeline.expire(key, KEPT_S)
                pipeline.set(f"{key}:alive", 1, ex=SILENT_S)
                pipeline.set(f"{key}:read", 1, ex=UNREAD_S)
                pipeline.sadd(of_job, execution.id)
                pipeline.expire(of_job, 86_400)
                await pipeline.execute()
            members: Any = await self._redis.smembers(of_job)
            ids = [one.decode() for one in members]
            running = [one for one in ids if await self._redis.exists(f"{_key(one)}:alive")]
            if over := set(ids) - set(running):
                await self._redis.srem(of_job, *over)
        if len(running) > most:
            await self.drop(execution)
            raise TooManyCommands(
                f"{most} commands run beside ranks of this job already; wait for one to end, or cancel it"
            )

    async def drop(self, execution: Execution) -> None:
        key = _key(execution.id)
        async with _answers(), self._redis.pipeline() as pipeline:
            pipeline.delete(key, f"{key}:alive", f"{key}:read", f"{key}:output")
            pipeline.srem(_of_job(execution.job_id), execution.id)
            await pipeline.execute()

    async def find(self, execution_id: str) -> Execution:
        async with _answers():
            found: Any = await self._redis.hgetall(_key(execution_id))
        if b"id" not in found:
            raise NotFound(f"there is no command {execution_id}, or it ended more than {KEPT_S} s ago")
        fields = {name.decode(): value.decode() for name, value in found.items()}
        return Execution(
            id=fields["id"],
            job_id=fields["job_id"],
            generation=int(fields["generation"]),
            rank=int(fields["rank"]),
            node_id=fields["node_id"],
        )

    async def claim(self, execution: Execution, claim: str) -> bool:
        key = _key(execution.id)
        async with _answers():
            await self._redis.hsetnx(key, "claim", claim)
            await self._redis.expire(key, KEPT_S)  # it may have expired just before
            return await self._goes_on(key, claim)

    async def append(self, execution: Execution, report: ExecutionReport) -> bool:
        key, output = _key(execution.id), f"{_key(execution.id)}:output"
        size = sum(len(part.data) for part in report.parts)
        async with _answers():
            claimed, stored, ended = await self._redis.hmget(key, "claim", "bytes", "ended")
            if claimed != report.claim.encode():
                raise NotFound(f"another start of an agent has claimed the command {execution.id}")
            if ended is not None and report.sequence > int(ended):
                raise NotFound(f"the command {execution.id} has ended")
            if int(stored or 0) + size > _LARGEST:
                raise TooLarge(f"a command may have {MAX_OUTPUT_BYTES:,} bytes of output")
            goes_on = await self._goes_on(key, report.claim)
            if report.parts or report.end is not None:
                body = report.model_dump_json(include={"parts", "end"})
                try:
                    # Redis refuses an id that is not larger than the last one: a repeated report counts once.
                    await self._redis.xadd(output, {"event": body}, id=f"{report.sequence}-0")
                except ResponseError as error:
                    if "equal or smaller" not in str(error):
                        raise
                else:
                    await self._redis.hincrby(key, "bytes", size)
            async with self._redis.pipeline() as pipeline:
                pipeline.expire(key, KEPT_S)
                pipeline.expire(output, KEPT_S)
                if report.end is not None:
                    pipeline.hset(key, "ended", str(report.sequence))
                    pipeline.delete(f"{key}:alive")
                    pipeline.srem(_of_job(execution.job_id), execution.id)
                elif goes_on:
                    pipeline.set(f"{key}:alive", 1, ex=SILENT_S)
                await pipeline.execute()
        return goes_on

    async def _goes_on(self, key: str, claim: str) -> bool:
        """Return True if the agent with this claim may start the command, or let it run."""
        async with self._redis.pipeline() as pipeline:
            pipeline.hmget(key, "claim", "cancelled")
            pipeline.exists(f"{key}:alive")
            pipeline.exists(f"{key}:read")
            (claimed, cancelled), alive, is_read = await pipeline.execute()
        return bool(claimed == claim.encode() and not cancelled and alive and is_read)

    async def cancel(self, execution: Execution) -> None:
        async with _answers():
            await self._redis.hset(_key(execution.id), "cancelled", "1")
            await self._redis.expire(_key(execution.id), KEPT_S)  # it may have expired just before

    async def read(self, execution_id: str, after: str) -> Sequence[ExecutionEvent]:
        key = _key(execution_id)
        async with _answers(), self._redis.pipeline() as pipeline:
            pipeline.set(f"{key}:read", 1, ex=UNREAD_S)
            pipeline.hget(key, "claim")
            pipeline.exists(f"{key}:alive")  # before the output: the end is stored first
            pipeline.xrange(f"{key}:output", min=f"({after}-0", count=_BATCH)
            _, claimed, alive, entries = await pipeline.execute()
        events = [_event(entry_id, fields) for entry_id, fields in entries]
        if not events and not alive:
            return [ExecutionEvent(cursor=after, end=_silent(claimed=claimed is not None))]
        return events


def _silent(*, claimed: bool) -> ExecutionEnd:
    if claimed:
        message = f"The agent has not reported for {SILENT_S} s; its launcher kills the command without it."
        return ExecutionEnd(outcome=ExecutionOutcome.AGENT_LOST, message=message)
    message = (
        f"The agent has not taken the command within {SILENT_S} s. `headway nodes` shows if it is there."
    )
    return ExecutionEnd(outcome=ExecutionOutcome.UNANSWERED, message=message)


def _event(entry_id: bytes, fields: dict[bytes, bytes]) -> ExecutionEvent:
    event = ExecutionReportBody.model_validate_json(fields[b"event"])
    return event.model_copy(update={"cursor": entry_id.decode().partition("-")[0]})


class ExecutionReportBody(ExecutionEvent):
    """The stored part of a report. Its cursor is the id of its entry."""

    cursor: str = ""


def _key(execution_id: str) -> str:
    return f"headway:execution:{execution_id}"


def _of_job(job_id: str) -> str:
    return f"headway:job:{job_id}:executions"


@asynccontextmanager
async def _answers() -> AsyncIterator[Any]:
    """Raise Unavailable if Redis does not answer."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise Unavailable(f"Redis does not answer ({type(error).__name__}); try again") from error
