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

from headway.contract.agents import COMMAND_FIELD, ExecInput
from headway.contract.executions import (
    INPUT_WINDOW,
    MAX_EVENTS,
    MAX_OUTPUT_BYTES,
    MAX_PART_BYTES,
    MAX_PARTS,
    MAX_TERMINAL_EVENTS,
    TERMINAL_UNREAD_EVENTS,
    ExecutionEnd,
    ExecutionEvent,
    ExecutionInput,
    ExecutionInputReply,
    ExecutionOutcome,
    ExecutionReply,
    ExecutionReport,
    OutputPart,
)
from service.adapters.redis import STREAM_KEPT_S, STREAM_MAX, stream_of
from service.domain.shared.errors import (
    IdempotencyConflict,
    InvalidField,
    NotFound,
    TooLarge,
    TooManyCommands,
    Unavailable,
)
from service.usecases.ports.executions import Execution, Executions

KEPT_S: Final = 600
"""Time after the last report for which a command and its output are kept, in seconds."""
SILENT_S: Final = 30
"""Time without a report after which an agent counts as lost, in seconds; also the time to claim a command."""
UNREAD_S: Final = 60
"""Time without a reader after which a command is killed, in seconds."""
_BATCH: Final = 16
_GAP: Final = ExecutionEvent(
    cursor="0",
    parts=[OutputPart(stream="stderr", data=b"\r\n[headway: output is missing here]\r\n")],
)
"""Event in place of entries of a terminal that its reader came too late for."""
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
                fields: dict[Any, Any] = {
                    name: int(value) if isinstance(value, bool) else value
                    for name, value in asdict(execution).items()
                }
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
            has_input=fields.get("has_input") == "1",
            has_terminal=fields.get("has_terminal") == "1",
        )

    async def claim(self, execution: Execution, claim: str) -> bool:
        key = _key(execution.id)
        async with _answers():
            await self._redis.hsetnx(key, "claim", claim)
            await self._redis.expire(key, KEPT_S)  # it may have expired just before
            return await self._goes_on(key, claim)

    async def append(self, execution: Execution, report: ExecutionReport) -> ExecutionReply:
        key = _key(execution.id)
        size = sum(len(part.data) for part in report.parts)
        async with _answers():
            claimed, stored, ended = await self._redis.hmget(key, "claim", "bytes", "ended")
            if claimed != report.claim.encode():
                raise NotFound(f"another start of an agent has claimed the command {execution.id}")
            if ended is not None and report.sequence > int(ended):
                raise NotFound(f"the command {execution.id} has ended")
            if not execution.has_terminal and int(stored or 0) + size > _LARGEST:
                raise TooLarge(f"a command may have {MAX_OUTPUT_BYTES:,} bytes of output")
            goes_on = await self._goes_on(key, report.claim)
            if report.parts or report.end is not None:
                await self._store(execution, report, size)
            hold = execution.has_terminal and await self._unread(key) > TERMINAL_UNREAD_EVENTS
            async with self._redis.pipeline() as pipeline:
                pipeline.expire(key, KEPT_S)
                pipeline.expire(f"{key}:output", KEPT_S)
                if report.taken:
                    pipeline.hset(key, "taken", str(report.taken))
                if report.end is not None:
                    pipeline.hset(key, "ended", str(report.sequence))
                    pipeline.delete(f"{key}:alive")
                    pipeline.srem(_of_job(execution.job_id), execution.id)
                elif goes_on:
                    pipeline.set(f"{key}:alive", 1, ex=SILENT_S)
                await pipeline.execute()
        return ExecutionReply(cancelled=not goes_on, hold=hold)

    async def _store(self, execution: Execution, report: ExecutionReport, size: int) -> None:
        """Add an entry of output, with the sequence of the one before, by which a reader notices a gap."""
        key = _key(execution.id)
        output = f"{key}:output"
        last, count = await self._redis.hget(key, "last"), await self._redis.xlen(output)
        if report.end is None and not execution.has_terminal and count >= MAX_EVENTS:
            raise TooLarge(f"a command may have {MAX_EVENTS:,} entries of output; write more at a time")
        entry: dict[Any, Any] = {
            "event": report.model_dump_json(include={"parts", "end"}),
            "previous": last or b"0",
        }
        kept = MAX_TERMINAL_EVENTS if execution.has_terminal else None
        try:
            # Redis refuses an id that is not larger than the last one: a repeated report counts once.
            await self._redis.xadd(output, entry, id=f"{report.sequence}-0", maxlen=kept, approximate=False)
        except ResponseError as error:
            if "equal or smaller" not in str(error):
                raise
            return
        async with self._redis.pipeline() as pipeline:
            pipeline.hincrby(key, "bytes", size)
            pipeline.hset(key, "last", str(report.sequence))
            await pipeline.execute()

    async def _unread(self, key: str) -> int:
        """Return the number of entries that the reader has not got."""
        read_to = await self._redis.hget(key, "read_to")
        behind: Any = await self._redis.xrange(
            f"{key}:output", min=f"({int(read_to or 0)}-0", count=TERMINAL_UNREAD_EVENTS + 1
        )
        return len(behind)

    async def send_input(self, execution: Execution, chunk: ExecutionInput) -> ExecutionInputReply:
        if not execution.has_input:
            raise InvalidField("sequence", "the command was started without standard input")
        key, stream = _key(execution.id), stream_of(execution.node_id)
        async with _answers():
            async with self._redis.pipeline() as pipeline:
                pipeline.hmget(key, "claim", "ended", "cancelled", "taken", "sent")
                pipeline.exists(f"{key}:alive")
                (claimed, ended, cancelled, taken, sent), alive = await pipeline.execute()
            if ended is not None or cancelled or not alive:
                return ExecutionInputReply(accepted=False, ended=True)
            last = int(sent or 0)
            if chunk.sequence <= last:
                return ExecutionInputReply(accepted=True)  # a repeated request
            if chunk.sequence > last + 1:
                raise InvalidField("sequence", f"the next chunk of input is {last + 1}")
            if claimed is None or chunk.sequence - int(taken or 0) > INPUT_WINDOW:
                return ExecutionInputReply(accepted=False)
            message = ExecInput(
                command_id=f"{execution.job_id}.{execution.generation}.input-{execution.id}.{chunk.sequence}",
                job_id=execution.job_id,
                generation=execution.generation,
                execution=execution.id,
                chunk=chunk,
            )
            async with self._redis.pipeline() as pipeline:
                body: dict[Any, Any] = {COMMAND_FIELD: message.model_dump_json()}
                pipeline.xadd(stream, body, maxlen=STREAM_MAX)
                pipeline.expire(stream, STREAM_KEPT_S)
                pipeline.hset(key, "sent", str(chunk.sequence))
                await pipeline.execute()
        return ExecutionInputReply(accepted=True)

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
            pipeline.hset(key, "read_to", after)
            pipeline.expire(key, KEPT_S)
            pipeline.xrange(f"{key}:output", min=f"({after}-0", count=_BATCH)
            _, claimed, alive, _, _, entries = await pipeline.execute()
        events = [_event(entry_id, fields) for entry_id, fields in entries]
        if not events and not alive:
            return [ExecutionEvent(cursor=after, end=_silent(claimed=claimed is not None))]
        if entries and int(entries[0][1].get(b"previous", b"0")) > int(after):
            return [_GAP.model_copy(update={"cursor": entries[0][1][b"previous"].decode()}), *events]
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
