"""`Executions` on a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from headway.contract.agents import COMMAND_FIELD, COMMANDS, ExecInput
from headway.contract.executions import (
    INPUT_WINDOW,
    MAX_EVENTS,
    MAX_OUTPUT_BYTES,
    MAX_PART_BYTES,
    MAX_PARTS,
    MAX_TERMINAL_EVENTS,
    TERMINAL_UNREAD_EVENTS,
    ExecutionEnd,
    ExecutionInput,
    ExecutionInputReply,
    ExecutionOutcome,
    ExecutionReport,
    OutputPart,
)
from service.adapters.redis import connect, stream_of
from service.adapters.redis_executions import RedisExecutions
from service.domain.shared.errors import (
    IdempotencyConflict,
    InvalidField,
    NotFound,
    TooLarge,
    TooManyCommands,
    Unavailable,
)
from service.usecases.ports.executions import Execution

CLAIM = "0123456789abcdef"
END = ExecutionEnd(outcome=ExecutionOutcome.EXITED, exit_code=0)


@pytest_asyncio.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    made = connect(redis_url)
    yield made
    await made.aclose()


def execution(name: str, job: str = "j01arz3ndek") -> Execution:
    return Execution(id=name, job_id=job, generation=2, rank=0, node_id="n1")


def report(
    sequence: int, data: bytes = b"", *, end: ExecutionEnd | None = None, claim: str = CLAIM
) -> ExecutionReport:
    parts = [OutputPart(stream="stdout", data=data)] if data else []
    return ExecutionReport(
        job_id="j01arz3ndek", generation=2, claim=claim, sequence=sequence, parts=parts, end=end
    )  # fmt: skip


async def test_repeated_report_counts_once_and_reading_goes_on_behind_a_cursor(client: Redis) -> None:
    store, one = RedisExecutions(client), execution("x1")
    await store.open(one, 4)
    assert await store.find("x1") == one
    assert await store.claim(one, CLAIM)
    for sequence, data in ((1, b"\xffa"), (2, b"b"), (2, b"b"), (1, b"\xffa")):
        assert await store.append(one, report(sequence, data))
    first, second = await store.read("x1", "0")
    assert (first.parts[0].data, second.parts[0].data, second.cursor) == (b"\xffa", b"b", "2")
    assert await store.read("x1", second.cursor) == []
    await store.append(one, report(3, end=END))
    assert [event.end for event in await store.read("x1", "2")] == [END]


async def test_second_claim_is_refused_and_cannot_report(client: Redis) -> None:
    store, one = RedisExecutions(client), execution("x1")
    await store.open(one, 4)
    assert await store.claim(one, CLAIM)
    assert await store.claim(one, CLAIM)
    assert not await store.claim(one, "another-claim")
    with pytest.raises(NotFound):
        await store.append(one, report(1, b"a", claim="another-claim"))


async def test_cancelled_command_is_not_started_or_is_to_be_killed(client: Redis) -> None:
    store, early, late = RedisExecutions(client), execution("x1"), execution("x2")
    await store.open(early, 4)
    await store.cancel(early)
    assert not await store.claim(early, CLAIM)
    await store.open(late, 4)
    assert await store.claim(late, CLAIM)
    await store.cancel(late)
    assert (await store.append(late, report(1))).cancelled


async def test_job_has_at_most_its_number_of_commands_until_one_ends(client: Redis) -> None:
    store = RedisExecutions(client)
    for name in ("x1", "x2"):
        await store.open(execution(name), 2)
    await store.open(execution("x1"), 2)
    with pytest.raises(TooManyCommands) as refused:
        await store.open(execution("x3"), 2)
    assert refused.value.code == "too_many_commands"
    with pytest.raises(NotFound):
        await store.find("x3")
    await store.open(execution("x4", job="j2"), 2)
    await store.claim(execution("x1"), CLAIM)
    await store.append(execution("x1"), report(1, end=END))
    await store.open(execution("x5"), 2)


async def test_silence_of_an_agent_is_an_end_for_the_reader(client: Redis) -> None:
    store, one = RedisExecutions(client), execution("x1")
    await store.open(one, 4)
    await client.delete("headway:execution:x1:alive")  # as after its expiry
    (event,) = await store.read("x1", "0")
    assert event.end is not None
    assert event.end.outcome is ExecutionOutcome.UNANSWERED
    assert not await store.claim(one, CLAIM)
    (event,) = await store.read("x1", "0")
    assert event.end is not None
    assert event.end.outcome is ExecutionOutcome.AGENT_LOST


async def test_command_without_a_reader_is_to_be_killed(client: Redis) -> None:
    store, one = RedisExecutions(client), execution("x1")
    await store.open(one, 4)
    assert await store.claim(one, CLAIM)
    await client.delete("headway:execution:x1:read")  # as after its expiry
    assert (await store.append(one, report(1))).cancelled


async def test_output_beyond_the_limit_is_refused(client: Redis) -> None:
    store, one = RedisExecutions(client), execution("x1")
    await store.open(one, 4)
    await store.claim(one, CLAIM)
    full = (MAX_OUTPUT_BYTES + MAX_PARTS * MAX_PART_BYTES) // MAX_PART_BYTES
    for sequence in range(1, full + 1):
        await store.append(one, report(sequence, bytes(MAX_PART_BYTES)))
    with pytest.raises(TooLarge):
        await store.append(one, report(full + 1, b"a"))


async def test_nothing_follows_the_end_but_its_own_repetition(client: Redis) -> None:
    store, one = RedisExecutions(client), execution("x1")
    await store.open(one, 4)
    await store.claim(one, CLAIM)
    for _ in range(2):
        await store.append(one, report(1, end=END))
    with pytest.raises(NotFound):
        await store.append(one, report(2, end=END))
    assert len(await store.read("x1", "0")) == 1


async def test_id_of_a_command_of_another_job_is_refused_and_that_command_stays(client: Redis) -> None:
    store, one = RedisExecutions(client), execution("x1")
    await store.open(one, 4)
    with pytest.raises(IdempotencyConflict):
        await store.open(execution("x1", job="j2"), 4)
    assert await store.find("x1") == one


async def sent(client: Redis) -> list[ExecInput]:
    """Return the chunks of input that are on the way to the agent."""
    entries = await client.xrange(stream_of("n1"))
    found = [COMMANDS.validate_json(fields[COMMAND_FIELD.encode()]) for _, fields in entries]
    return [one for one in found if isinstance(one, ExecInput)]


async def test_input_waits_for_the_start_and_arrives_once_within_its_window(client: Redis) -> None:
    store, one = RedisExecutions(client), replace(execution("x1"), has_input=True)
    await store.open(one, 4)
    chunk = ExecutionInput(sequence=1, data=b"\xffa")
    assert await store.send_input(one, chunk) == ExecutionInputReply(accepted=False)
    assert await store.claim(one, CLAIM)
    for _ in range(2):
        assert await store.send_input(one, chunk) == ExecutionInputReply(accepted=True)
    assert [message.chunk for message in await sent(client)] == [chunk]
    with pytest.raises(InvalidField):
        await store.send_input(one, ExecutionInput(sequence=3))
    for sequence in range(2, INPUT_WINDOW + 1):
        assert (await store.send_input(one, ExecutionInput(sequence=sequence))).accepted
    beyond = ExecutionInput(sequence=INPUT_WINDOW + 1)
    assert not (await store.send_input(one, beyond)).accepted
    await store.append(one, report(1).model_copy(update={"taken": 1}))
    assert (await store.send_input(one, beyond)).accepted
    assert [message.chunk.sequence for message in await sent(client)] == list(range(1, INPUT_WINDOW + 2))
    await store.append(one, report(2, end=END))
    over = ExecutionInputReply(accepted=False, ended=True)
    assert await store.send_input(one, ExecutionInput(sequence=INPUT_WINDOW + 2)) == over


async def test_command_without_input_refuses_it(client: Redis) -> None:
    store, one = RedisExecutions(client), execution("x1")
    await store.open(one, 4)
    assert await store.claim(one, CLAIM)
    with pytest.raises(InvalidField):
        await store.send_input(await store.find("x1"), ExecutionInput(sequence=1))


async def test_number_of_entries_of_a_command_is_bounded(client: Redis) -> None:
    store, one = RedisExecutions(client), execution("x1")
    await store.open(one, 4)
    assert await store.claim(one, CLAIM)
    await client.xadd("headway:execution:x1:output", {"event": "{}"}, id=f"{MAX_EVENTS}-0")
    async with client.pipeline(transaction=False) as pipeline:
        for number in range(MAX_EVENTS + 1, 2 * MAX_EVENTS):
            pipeline.xadd("headway:execution:x1:output", {"event": "{}"}, id=f"{number}-0")
        await pipeline.execute()
    with pytest.raises(TooLarge):
        await store.append(one, report(2 * MAX_EVENTS, b"a"))
    await store.append(one, report(2 * MAX_EVENTS, end=END))


async def test_terminal_is_held_back_while_its_reader_is_behind_and_notes_a_gap(client: Redis) -> None:
    store, one = RedisExecutions(client), replace(execution("x1"), has_input=True, has_terminal=True)
    await store.open(one, 4)
    assert await store.find("x1") == one
    assert await store.claim(one, CLAIM)
    replies = [
        await store.append(one, report(number, b"a")) for number in range(1, TERMINAL_UNREAD_EVENTS + 2)
    ]
    assert [reply.hold for reply in replies] == [False] * TERMINAL_UNREAD_EVENTS + [True]
    assert await store.read("x1", str(TERMINAL_UNREAD_EVENTS)) != []
    assert not (await store.append(one, report(TERMINAL_UNREAD_EVENTS + 2, b"a"))).hold
    last = MAX_TERMINAL_EVENTS + 5
    for number in range(TERMINAL_UNREAD_EVENTS + 3, last + 1):
        await store.append(one, report(number, b"a"))
    assert await client.xlen("headway:execution:x1:output") == MAX_TERMINAL_EVENTS
    gap, first, *_ = await store.read("x1", "3")
    assert (gap.cursor, gap.parts[0].stream, first.cursor) == ("5", "stderr", "6")
    assert (await store.read("x1", "5"))[0].cursor == "6"


@pytest.mark.parametrize("late", ["claim", "cancel"])
async def test_request_about_an_expired_command_leaves_nothing_for_ever(client: Redis, late: str) -> None:
    store, one = RedisExecutions(client), execution("x1")
    await (store.cancel(one) if late == "cancel" else store.claim(one, CLAIM))
    assert await client.ttl("headway:execution:x1") > 0


async def test_every_key_expires(client: Redis) -> None:
    store, one = RedisExecutions(client), execution("x1")
    await store.open(one, 4)
    await store.claim(one, CLAIM)
    await store.append(one, report(1, b"a"))
    keys = [key async for key in client.scan_iter("headway:*") if b":x1" in key or b"executions" in key]
    assert len(keys) == 5
    assert all([await client.ttl(key) > 0 for key in keys])


async def test_store_that_is_away_is_said_so() -> None:
    away = connect("redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable):
        await RedisExecutions(away).find("x1")
    await away.aclose()
