"""`Thinning`: what goes on for months keeps its history, but not all of it; and nodes that are gone for good."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from headway.contract.agents import Member, NodeState, StopCommand
from headway.contract.runtime import Metrics, Progress
from headway.contract.views.jobs import JobState, Reason
from service.adapters.postgres.database import Database
from service.domain.jobs.failures import RankExit
from service.domain.jobs.records import AllocationRecord, Event
from service.domain.rental.ledger import to_us
from service.domain.rental.timeline import TimelineEvent, phases_of
from service.domain.shared.retention import MAX_EVENTS, TIERS, Horizons, horizons
from service.usecases.money.accrue import accrue
from service.usecases.ports.jobs import Measured, Reported
from service.usecases.ports.transactions import Transaction
from tests.conformance.conftest import NOW, job_of, node_of, store
from tests.conformance.test_retention import clean, counts, tidy

DAY = timedelta(days=1)
KEEP_DAYS = 90


def allocation(generation: int, at: datetime, kind: str = "cpu", size: int = 1) -> AllocationRecord:
    return AllocationRecord(
        job_id="j1",
        generation=generation,
        slots={"n1": tuple(range(size))},
        device_kind=kind,
        first_node="n1",
        master_port=20000,
        reason=Reason.ALLOCATED,
        message="",
        round_id=None,
        granted_at=at,
        members=(Member(rank=0, node_id="n1", slot=0, born_generation=1, born_rank=0),),
        stores={"n1": 20000},
    )


async def running(database: Database, generation: int) -> None:
    async with database.begin() as tx:
        job = job_of("j1", submitted_at=NOW - 200 * DAY)
        await store(tx, node_of("n1"), job)
        fields: dict[str, Any] = {"generation": generation, "newest_generation": generation}
        await tx.jobs.save(replace(job, state=JobState.RUNNING, started_at=NOW - 200 * DAY, **fields))


async def shorten(database: Database, at: datetime = NOW) -> None:
    kept = horizons(at, KEEP_DAYS, None)
    gone = 1
    while gone:
        async with database.begin() as tx:
            gone = await tx.retention.thin_history("j1", kept)


async def served(database: Database, at: datetime) -> tuple[dict[str, float], float]:
    async with database.begin() as tx:
        found = (await tx.rounds.snapshot(at)).served["j1"]
    seconds = {kind: round(value, 3) for kind, value in found.seconds.items() if round(value, 3)}
    return seconds, round(found.slot_s, 3)


TURNS = st.lists(
    st.tuples(
        st.integers(-3, 30),  # hours from the grant to the end of the generation before; negative: afterwards
        st.integers(0, 200),  # hours of its own turn
        st.sampled_from(["cpu", "a100"]),
        st.integers(1, 4),
        st.booleans(),  # given up before its turn
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TURNS, st.sets(st.integers(1, 6), max_size=2))
async def test_what_a_job_was_served_does_not_depend_on_what_is_kept(
    database: Database, turns: list[tuple[int, int, str, int, bool]], still_held: set[int]
) -> None:
    async with database.engine.begin() as connection:
        await connection.execute(text("TRUNCATE jobs, nodes, past_allocations CASCADE"))
    await running(database, len(turns))
    end = NOW - timedelta(hours=120 * len(turns))
    async with database.begin() as tx:
        for number, (overlap_h, length_h, kind, size, given_up) in enumerate(turns, 1):
            granted = end - timedelta(hours=overlap_h)
            await tx.grants.add_allocation(allocation(number, granted, kind, size))
            if number in still_held:
                assert await tx.grants.grant("j1", number, {"n1": (number,)}, granted)
            last = number == len(turns)
            ended = granted if given_up else max(end, granted) + timedelta(hours=length_h)
            if not last:
                await tx.grants.end_allocation("j1", number, ended)
                end = max(end, ended)
    at = max(NOW, end + DAY)
    before = await served(database, at)
    await shorten(database, at)
    assert await served(database, at) == before
    await shorten(database, at)
    assert await served(database, at) == before, "nothing is counted twice"
    async with database.begin() as tx:
        assert await tx.grants.allocation("j1", len(turns)) is not None
        for number in still_held & set(range(1, len(turns) + 1)):
            assert await tx.grants.allocation("j1", number) is not None, "ranks of it still run"


async def test_old_allocations_are_folded_into_one_row(database: Database) -> None:
    await running(database, 500)
    async with database.begin() as tx:
        for number in range(1, 501):
            at = NOW - timedelta(hours=2 * (501 - number))
            await tx.grants.add_allocation(allocation(number, at))
            if number < 500:
                await tx.grants.end_allocation("j1", number, at + timedelta(hours=2))
    await shorten(database)
    after = await counts(database)
    assert after["past_allocations"] == 1
    assert after["allocations"] == 361, "those of the last 30 days, and the current one"
    assert await served(database, NOW) == ({"cpu": 500 * 7200.0}, 500 * 7200.0)


def metric(at: datetime, names: tuple[str, ...] = ("loss",)) -> Metrics:
    return Metrics(
        rank=0, generation=1, at_s=at.timestamp(), epoch=0, samples=1, values=dict.fromkeys(names, 1.0)
    )


async def test_values_that_scripts_report_get_sparser_with_age(database: Database) -> None:
    """Values of two jobs alternate: thinning must not depend on rows in between."""
    await running(database, 1)
    began = NOW - 60 * DAY
    async with database.begin() as tx:
        await store(tx, job_of("j2"))
    async with database.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO metrics (job_id, at, generation, epoch, samples, name, value)"
                " SELECT job, CAST(:began AS timestamptz) + n * interval '20 minutes', 1, 0, n, name, n"
                " FROM generate_series(0, :n) AS n, unnest(ARRAY['j1', 'j2']) AS job,"
                " unnest(ARRAY['loss', 'accuracy']) AS name ORDER BY n"
            ),
            {"began": began, "n": 60 * 72},
        )
    before = (await counts(database))["metrics"]
    await clean(database, NOW)
    query = text(
        "SELECT CAST(:now AS timestamptz) - at AS age, value FROM metrics WHERE job_id = 'j1' AND name = 'loss' ORDER BY id"
    )
    async with database.engine.connect() as connection:
        kept = (await connection.execute(query, {"now": NOW})).all()
    young = [row for row in kept if row.age < 7 * DAY]
    hourly = [row for row in kept if 7 * DAY <= row.age < 30 * DAY]
    daily = [row for row in kept if row.age >= 30 * DAY]
    assert len(young) in {7 * 72, 7 * 72 + 1}, "thinned to no more than one a minute"
    assert abs(len(hourly) - 23 * 24) <= 1
    assert abs(len(daily) - 30) <= 2, "days of the calendar"
    assert kept[0].value == 0, "the first one of all stays"
    assert (await counts(database))["metrics"] == 4 * len(kept) < before
    await clean(database, NOW)
    assert (await counts(database))["metrics"] == 4 * len(kept)


async def test_what_is_reported_often_is_thinned_soon(database: Database) -> None:
    await running(database, 1)
    times = [NOW - timedelta(seconds=7200 - second) for second in range(7200)]
    async with database.begin() as tx:
        await tx.jobs.add_reported([Reported("j1", metric(at), at) for at in times])
    await clean(database, NOW)
    assert abs((await counts(database))["metrics"] - (3600 + 360)) <= 2
    assert [tier.every for tier in TIERS] == sorted(tier.every for tier in TIERS)


async def add_events(tx: Transaction, *events: tuple[str, datetime, JobState]) -> None:
    for kind, at, state in events:
        await tx.jobs.add_event(
            Event(
                job_id="j1",
                at=at,
                kind=kind,
                message="",
                generation=1,
                state=state,
                reason=Reason.PROGRESSING,
            )
        )


async def marks(database: Database, since: datetime) -> list[TimelineEvent]:
    async with database.begin() as tx:
        return (await tx.ledger.timeline_events(["j1"], to_us(since)))["j1"]


@pytest.mark.parametrize("quiet_days", [1, 100])
async def test_what_a_jobs_slots_do_is_still_told_from_its_events(
    database: Database, quiet_days: int
) -> None:
    """The last change may be recent or long ago."""
    await running(database, 1)
    last = NOW - quiet_days * DAY
    async with database.begin() as tx:
        for number in range(50):
            at = last - timedelta(hours=6 * (50 - number))
            await add_events(
                tx,
                ("allocate", at, JobState.STARTING),
                ("start", at + timedelta(minutes=1), JobState.RUNNING),
                ("first_step", datetime(2001, 1, 1, tzinfo=NOW.tzinfo), JobState.RUNNING),
                ("vacate", at + timedelta(hours=5), JobState.RESIZING),
            )
        await add_events(tx, ("allocate", last, JobState.STARTING), ("start", last, JobState.RUNNING))
        await add_events(tx, *[("batch_changed", last + DAY / 2, JobState.RUNNING)] * 100)
    since = NOW - timedelta(hours=2)
    before, rows = phases_of(await marks(database, since)), (await counts(database))["events"]
    await shorten(database)
    assert phases_of(await marks(database, since))[-1] == before[-1]
    after = (await counts(database))["events"]
    assert after < rows
    assert quiet_days == 1 or after <= 3


async def test_a_job_that_flaps_keeps_so_many_events(database: Database) -> None:
    await running(database, 1)
    async with database.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO events (job_id, at, kind, state, reason, message, generation)"
                " SELECT 'j1', CAST(:now AS timestamptz) - (:n - n) * interval '1 minute', 'start', 'RUNNING',"
                " 'PROGRESSING', '', 1 FROM generate_series(1, :n) AS n"
            ),
            {"now": NOW, "n": 2 * MAX_EVENTS},
        )
    await shorten(database)
    of_a_week = 7 * 24 * 60
    assert abs((await counts(database))["events"] - max(of_a_week, MAX_EVENTS)) <= 2


@pytest.mark.parametrize(
    ("crossed", "table"),
    [("", "measurements"), ("link", "slow_link_measurements")],
    ids=["usual", "slow link"],
)
async def test_every_plan_keeps_its_latest_statistics(database: Database, crossed: str, table: str) -> None:
    await running(database, 200)
    async with database.begin() as tx:
        for number in range(1, 201):
            at = NOW - timedelta(days=60, hours=200 - number)
            granted = replace(allocation(number, at, size=1 + (number == 3)), crossed=crossed)
            await tx.grants.add_allocation(granted)
            record = await tx.grants.allocation("j1", number)
            assert record is not None
            progress = Progress(
                rank=0,
                generation=number,
                at_s=0,
                epoch=0,
                samples=1,
                total_samples=None,
                steps=20,
                step_s_sum=1.0,
                step_s_squares=0.1,
                global_batch=8,
                local_batch=8,
                accumulation=1,
            )
            await tx.jobs.add_measured([Measured("j1", record, progress)], at)
    await shorten(database)
    async with database.engine.connect() as connection:
        query = text(f"SELECT generation, slots FROM {table} ORDER BY 1")
        left = (await connection.execute(query)).all()
    assert [row.generation for row in left] == [3, *range(181, 201)], "a size it had once is not forgotten"


async def test_exits_stay_as_long_as_anybody_of_their_generation_runs(database: Database) -> None:
    await running(database, 10)
    ended = RankExit(rank=1, exit_code=1, signal=None, stopped_by_agent=False, completed=False)
    async with database.begin() as tx:
        assert await tx.grants.grant("j1", 4, {"n1": (0,)}, NOW - 60 * DAY)
        for generation in range(1, 11):
            await tx.jobs.add_exit("j1", generation, ended, NOW - 50 * DAY)
    await shorten(database)
    async with database.begin() as tx:
        left = await tx.jobs.exits("j1", 0)
    assert sorted(generation for generation, _ in left) == list(range(4, 11))


async def test_nothing_goes_before_the_ledger_has_charged_for_it(database: Database) -> None:
    await running(database, 2)
    async with database.begin() as tx:
        await accrue(tx, {"cpu": 1.0}, NOW - 100 * DAY)
        assert await tx.grants.grant("j1", 1, {"n1": (0,)}, NOW - 90 * DAY)
        await tx.grants.release("j1", 1, None, {}, NOW - 80 * DAY)
    await clean(database, NOW)
    await tidy(database, NOW)
    assert (await counts(database))["slot_grants"] == 1
    async with database.begin() as tx:
        await accrue(tx, {"cpu": 1.0}, NOW)
    await clean(database, NOW)
    assert (await counts(database))["slot_grants"] == 0


def test_history_is_kept_no_longer_than_jobs() -> None:
    kept: Horizons = horizons(NOW, 5, None)
    assert kept.jobs == kept.history == kept.capped == NOW - 5 * DAY
    assert horizons(NOW, 90, NOW - 200 * DAY).jobs == NOW - 201 * DAY


async def test_a_node_that_is_gone_for_good_goes_with_what_it_never_took_up(database: Database) -> None:
    lost: dict[str, Any] = {"state": NodeState.LOST, "wanted_state": NodeState.READY}
    stop = StopCommand(command_id="c", job_id="j1", generation=1, mode="kill", grace_s=0)
    async with database.begin() as tx:
        await store(
            tx,
            job_of("j1"),
            node_of("rented", machine_id="m1", seen_at=NOW - 2 * DAY, **lost),
            node_of("seen-today", machine_id="m2", seen_at=NOW, **lost),
            node_of("own", seen_at=NOW - 5 * DAY, **lost),
            node_of("own-long-gone", seen_at=NOW - 11 * DAY, **lost),
            node_of("silent-but-not-lost", seen_at=NOW - 11 * DAY),
            node_of("held", machine_id="m3", seen_at=NOW - 2 * DAY, **lost),
        )
        await tx.commands.add([("rented", stop)], NOW - 3 * DAY)
        assert await tx.grants.grant("j1", 1, {"held": (0,)}, NOW - 3 * DAY)
    await clean(database, NOW)
    async with database.engine.connect() as connection:
        left = set((await connection.execute(text("SELECT id FROM nodes"))).scalars())
    assert left == {"seen-today", "own", "silent-but-not-lost", "held"}
    assert (await counts(database))["commands"] == 0
