"""`Leadership` and the fence: one scheduler leads at a time, and what an older one still writes is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import asyncpg
import pytest
import pytest_asyncio
from sqlalchemy import text

from service.adapters.postgres.database import Database
from service.adapters.postgres.engine.leadership import PostgresLeadership
from service.domain.shared.errors import Superseded, Unavailable
from service.usecases.ports.facts import WakeUp
from tests.conformance.conftest import NOW, Rung, job_of, node_of, store
from tests.waiting import until

BOUND_S = 10.0


@dataclass
class Candidate:
    """A scheduler's process: its leadership, its other connections, and a clock that the test moves."""

    leadership: PostgresLeadership
    database: Database
    clock_s: list[float] = field(default_factory=lambda: [0.0])

    async def leads_after(self, *seconds: float) -> int | None:
        """Ask for the lead, and again after each of these times; return the last answer."""
        term = await self.leadership.acquire()
        for passed_s in seconds:
            term = await self.leads_once_passed(passed_s)
        return term

    async def leads_once_passed(self, passed_s: float) -> int | None:
        """Ask for the lead `passed_s` seconds later; return the term, or None."""
        self.clock_s[0] += passed_s
        return await self.leadership.acquire()


@dataclass
class Candidates:
    """The schedulers of one database."""

    url: str
    rung: Rung
    all: list[Candidate] = field(default_factory=list)

    def stand(self, name: str, *, bound_s: float = BOUND_S, renew_every_s: float = 0.02) -> Candidate:
        clock_s = [0.0]
        leadership = PostgresLeadership(
            self.url, name, bound_s=bound_s, renew_every_s=renew_every_s, clock_s=lambda: clock_s[0]
        )
        candidate = Candidate(leadership, Database(self.url, self.rung.wake, holder=name), clock_s)
        self.all.append(candidate)
        return candidate


@pytest_asyncio.fixture
async def candidates(database_url: str, rung: Rung) -> AsyncIterator[Candidates]:
    made = Candidates(database_url, rung)
    yield made
    for one in made.all:
        await one.leadership.resign()
        await one.database.close()


async def end_connections(url: str, name: str) -> int:
    """As an operator, or a failing network, does."""
    connection = await asyncpg.connect(url)
    try:
        ended: int = await connection.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1", name
        )
        return ended
    finally:
        await connection.close()


async def renewals(url: str, number: int) -> None:
    """Wait until the leader's row has said so many things, one after the other."""
    said = set()

    async def enough() -> bool:
        connection = await asyncpg.connect(url)
        said.add(await connection.fetchval("SELECT renewed_at FROM leadership"))
        await connection.close()
        return len(said) >= number

    await until(enough)


async def somebody_waits_for_the_table(url: str) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'leadership'::regclass AND NOT granted"

    async def enough() -> bool:
        connection = await asyncpg.connect(url)
        number: int = await connection.fetchval(waiting)
        await connection.close()
        return number > 0

    await until(enough)


async def test_one_of_two_leads_and_terms_grow(candidates: Candidates) -> None:
    first, second = candidates.stand("first"), candidates.stand("second")
    assert await first.leads_after() == 1
    assert await second.leads_after() is None
    await first.leadership.resign()
    assert await second.leads_after() == 2
    await second.leadership.resign()
    assert await second.leads_after() == 3


async def test_of_many_that_stand_at_once_one_leads(candidates: Candidates) -> None:
    standing = [candidates.stand(f"number {number}") for number in range(8)]
    terms = await asyncio.gather(*(one.leads_after() for one in standing))
    assert sorted(term or 0 for term in terms) == [0] * 7 + [1]


async def test_a_cut_connection_is_noticed_and_another_one_leads(candidates: Candidates) -> None:
    first, second = candidates.stand("first", renew_every_s=60.0), candidates.stand("second")
    assert await first.leads_after() == 1
    losing = asyncio.create_task(first.leadership.lost())
    assert await end_connections(candidates.url, "first") == 1
    assert "connection" in await asyncio.wait_for(losing, 60)
    assert await second.leads_after() == 2
    assert await first.leads_after() is None


async def test_a_leader_that_renews_is_left_alone_for_ever(candidates: Candidates) -> None:
    first, second = candidates.stand("first"), candidates.stand("second")
    await first.leads_after()
    keeping = asyncio.create_task(first.leadership.lost())
    await second.leads_after()
    for _ in range(4):
        await renewals(candidates.url, 2)
        assert await second.leads_once_passed(10 * BOUND_S) is None, "it has said something new meanwhile"
    await renewals(candidates.url, 2)
    assert not keeping.done()
    keeping.cancel()


async def test_a_leader_that_stands_still_is_deposed(candidates: Candidates) -> None:
    """It does not renew, and keeps its connection: nobody would ever take the lock from it."""
    first, second = candidates.stand("first"), candidates.stand("second")
    await first.leads_after()
    async with first.database.begin() as tx:
        await tx.nodes.device_kinds()
    assert await second.leads_after(BOUND_S - 1) is None
    assert await second.leads_after(2.0) is None, "its connections were only just ended"
    await until(first.leadership._gone.is_set)
    assert await second.leads_after() == 2
    assert await end_connections(candidates.url, "first") == 0, "its other connections are gone as well"
    assert "connection" in await first.leadership.lost()
    assert await first.leads_after() is None


async def test_a_standby_that_stood_still_between_two_questions_deposes_nobody(
    candidates: Candidates,
) -> None:
    first, second = candidates.stand("first"), candidates.stand("second")
    await first.leads_after()
    assert await second.leads_after() is None
    keeping = asyncio.create_task(first.leadership.lost())
    await renewals(candidates.url, 2)
    assert await second.leads_once_passed(600.0) is None
    await renewals(candidates.url, 2)
    assert not keeping.done()
    keeping.cancel()


async def test_nobody_is_deposed_while_the_database_answers_nobody(candidates: Candidates) -> None:
    """The leader could not renew either."""
    first, second = candidates.stand("first"), candidates.stand("second")
    await first.leads_after()
    assert await second.leads_after() is None
    async with first.database.engine.begin() as holding:
        await holding.execute(text("LOCK TABLE leadership IN ACCESS EXCLUSIVE MODE"))
        asking = asyncio.create_task(second.leadership.acquire())
        await somebody_waits_for_the_table(candidates.url)
        second.clock_s[0] += 600.0
    assert await asking is None
    keeping = asyncio.create_task(first.leadership.lost())
    await renewals(candidates.url, 2)
    assert not keeping.done()
    keeping.cancel()


async def test_rows_that_a_deposed_leader_had_locked_are_free(candidates: Candidates) -> None:
    first, second = candidates.stand("first"), candidates.stand("second")
    await first.leads_after()
    async with second.database.begin() as tx:
        await store(tx, node_of("n"))

    async def round_of_the_first() -> None:
        async with first.database.of_term(1).begin() as stopped:
            await stopped.nodes.lock("n")
            await second.leads_after(0.0, BOUND_S + 1)
            async with second.database.begin() as tx:
                assert (await tx.nodes.lock("n")).id == "n"
            await stopped.nodes.save(node_of("n", message="too late"))

    with pytest.raises(Unavailable):
        await round_of_the_first()


async def test_a_leader_finds_that_its_term_is_over(candidates: Candidates, database_url: str) -> None:
    first = candidates.stand("first")
    await first.leads_after()
    connection = await asyncpg.connect(database_url)
    await connection.execute("UPDATE leadership SET term = term + 1")
    await connection.close()
    assert "newer term" in await first.leadership.lost()


async def test_a_leader_that_cannot_renew_stops(candidates: Candidates, database_url: str) -> None:
    first = candidates.stand("first", bound_s=3.0)
    await first.leads_after()
    connection = await asyncpg.connect(database_url)
    async with connection.transaction():
        await connection.execute("SELECT FROM leadership FOR UPDATE")
        assert "in time" in await asyncio.wait_for(first.leadership.lost(), 60)
    await connection.close()


async def test_a_database_that_does_not_answer(candidates: Candidates) -> None:
    nobody = PostgresLeadership("postgresql://headway@/none?host=/nowhere", "nobody")
    with pytest.raises(Unavailable):
        await nobody.acquire()


# The fence


async def test_a_commit_of_an_older_term_is_refused(candidates: Candidates) -> None:
    first, second = candidates.stand("first"), candidates.stand("second")
    assert await first.leads_after() == 1
    late = first.database.of_term(1)
    async with late.begin() as tx:
        await store(tx, job_of("written"))
    await first.leadership.resign()
    assert await second.leads_after() == 2

    async def write() -> None:
        async with late.begin() as tx:
            await store(tx, job_of("refused"))
            tx.wake(WakeUp.ROUND)

    with pytest.raises(Superseded, match="term 2"):
        await write()
    assert candidates.rung.wake_ups == []
    async with second.database.of_term(2).begin() as tx:
        assert set(await tx.jobs.lock_many(["written", "refused"])) == {"written"}


async def test_commit_in_a_term_of_the_same_number_of_another_process_is_refused(
    candidates: Candidates,
) -> None:
    """A failover loses the first one's term, and the second one gets the number again."""
    first, second = candidates.stand("first"), candidates.stand("second")
    assert await first.leads_after() == 1
    connection = await asyncpg.connect(candidates.url)
    await connection.execute("DELETE FROM leadership")
    await connection.close()
    await first.leadership.resign()
    assert await second.leads_after() == 1

    async def write() -> None:
        async with first.database.of_term(1).begin() as tx:
            await store(tx, job_of("refused"))

    with pytest.raises(Superseded):
        await write()
    async with second.database.of_term(1).begin() as tx:
        await store(tx, job_of("written"))
    async with second.database.begin() as tx:
        assert set(await tx.jobs.lock_many(["written", "refused"])) == {"written"}


async def test_a_lock_alone_is_refused_as_well(candidates: Candidates) -> None:
    """Whoever asks for a row to see whether it still leads learns it."""
    first = candidates.stand("first")
    await first.leads_after()
    async with first.database.begin() as tx:
        await store(tx, job_of("j"))
    with pytest.raises(Superseded):
        async with first.database.of_term(0).begin() as tx:
            await tx.jobs.lock_many(["j"])


async def test_reading_needs_no_term(candidates: Candidates) -> None:
    first = candidates.stand("first")
    await first.leads_after()
    async with first.database.of_term(0).begin() as tx:
        assert (await tx.rounds.snapshot(NOW)).jobs == {}


async def test_no_term_begins_between_the_check_and_the_commit(candidates: Candidates) -> None:
    first, second = candidates.stand("first"), candidates.stand("second")
    await first.leads_after()
    connection = await asyncpg.connect(candidates.url)
    async with connection.transaction():
        # This is the check of a transaction that is about to commit.
        assert await connection.fetchval("SELECT term FROM leadership FOR SHARE") == 1
        await first.leadership.resign()
        taking_over = asyncio.create_task(second.leads_after())
        await asyncio.wait({taking_over}, timeout=0.2)
        assert not taking_over.done()
    await connection.close()
    assert await taking_over == 2


async def test_a_commit_that_hangs_is_ended(candidates: Candidates) -> None:
    """Its process stopped just there, and its lock had gone before."""
    first, second = candidates.stand("first"), candidates.stand("second", bound_s=5.0)
    await first.leads_after()
    connection = await asyncpg.connect(candidates.url, server_settings={"application_name": "first"})
    transaction = connection.transaction()
    await transaction.start()
    await connection.fetchval("SELECT term FROM leadership FOR SHARE")
    await first.leadership.resign()
    assert await second.leads_after() is None
    await until(connection.is_closed)
    assert await second.leads_after() == 2


async def test_everybody_can_see_who_leads_and_whether(candidates: Candidates, database_url: str) -> None:
    first = candidates.stand("first")

    async def seen() -> tuple[int, float]:
        async with first.database.begin() as tx:
            return await tx.round_queries.leader()

    assert await seen() == (0, 0.0)
    await first.leads_after()
    connection = await asyncpg.connect(database_url)
    await connection.execute("UPDATE leadership SET renewed_at = clock_timestamp() - interval '1 hour'")
    await connection.close()
    term, silent_s = await seen()
    assert term == 1
    assert 3600 <= silent_s < 3700


async def test_sessions_say_whose_they_are_and_do_not_stand_still_in_a_transaction(
    candidates: Candidates,
) -> None:
    first = candidates.stand("first")
    async with first.database.engine.connect() as connection:
        for setting, value in (
            ("application_name", "first"),
            ("idle_in_transaction_session_timeout", "30s"),
        ):
            assert (await connection.execute(text(f"SHOW {setting}"))).scalar_one() == value
