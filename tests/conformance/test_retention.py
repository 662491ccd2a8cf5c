"""`Retention`: every table has an end."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from headway.contract.agents import Member, StopCommand
from headway.contract.runtime import Metrics, Progress
from headway.contract.spec import JobSpec
from headway.contract.values.markets import Market
from headway.contract.views.decisions import RoundChange, RoundView
from headway.contract.views.jobs import JobState, Reason, SizeOption
from headway.contract.views.money import BudgetRequest, Period
from service.adapters.postgres.database import Database
from service.adapters.postgres.tables.core import metadata
from service.adapters.storage import ObjectStorage
from service.domain.allocation.decision.plan import Action, Decision
from service.domain.jobs.failures import RankExit
from service.domain.jobs.records import AllocationRecord, Event
from service.domain.rental.machines import MachineState
from service.usecases.money.accrue import accrue
from service.usecases.ports.jobs import Measured, Reported
from service.usecases.ports.storage import BundleRecord
from service.usecases.ports.transactions import Transaction
from service.usecases.upkeep.retain import Retained, retain
from service.usecases.upkeep.sweep import Swept, sweep
from tests.conformance.conftest import NOW, job_of, node_of, store
from tests.conformance.ledger_rig import machine_of

KEEP_DAYS = 10
OF_JOBS = (
    "jobs",
    "events",
    "metrics",
    "measurements",
    "allocations",
    "rank_exits",
    "decisions",
    "slot_grants",
    "commands",
)
MONEY = {"machines", "leases", "charges", "ledger_state", "budgets", "budget_notices"}
DIGEST = "sha256:" + "0" * 64


async def counts(database: Database) -> dict[str, int]:
    query = " UNION ALL ".join(
        f"SELECT '{one}' AS of, count(*) AS rows FROM {one}" for one in metadata.tables
    )
    async with database.engine.connect() as connection:
        return {row.of: row.rows for row in await connection.execute(text(query))}


async def live_a_whole_life(tx: Transaction, job_id: str, at: datetime) -> None:
    """Something in every table that hangs on a job, and a round, at one moment."""
    job = job_of(job_id, submitted_at=at, state_since=at)
    allocation = AllocationRecord(
        job_id=job_id,
        generation=1,
        slots={"n1": (0,)},
        device_kind="cpu",
        first_node="n1",
        master_port=20000,
        reason=Reason.ALLOCATED,
        message="",
        round_id=f"r-{job_id}",
        granted_at=at,
        members=(Member(rank=0, node_id="n1", slot=0, born_generation=1, born_rank=0),),
        stores={"n1": 20000},
    )
    option = SizeOption(
        device_kind="cpu", slots=1, goodput_samples_per_s=None, speedup=1, measured=False, utility=1, note="",
        nodes=1, market=Market.ON_DEMAND, anchor=0, usd_per_h=0.0,
    )  # fmt: skip
    head = {"rank": 0, "generation": 1, "at_s": at.timestamp(), "epoch": 0, "samples": 1}
    steps = {"steps": 20, "step_s_sum": 1.0, "step_s_squares": 0.1, "global_batch": 8}
    progress = Progress(**head, **steps, total_samples=None, local_batch=8, accumulation=1)  # type: ignore[arg-type]
    await store(tx, job)
    assert await tx.grants.grant(job_id, 1, {"n1": (0,)}, at)
    await tx.grants.add_allocation(allocation)
    command = StopCommand(command_id=f"c-{job_id}", job_id=job_id, generation=1, mode="kill", grace_s=0)
    await tx.commands.add([("n1", command)], at)
    await tx.commands.acknowledge({"n1": [command.command_id]}, at)
    unseen = RankExit(rank=0, exit_code=0, signal=None, stopped_by_agent=False, completed=True)
    await tx.jobs.add_exit(job_id, 1, unseen, at)
    await tx.jobs.add_event(Event(job_id=job_id, at=at, kind="k", message="m", generation=1))
    await tx.jobs.add_measured([Measured(job_id, allocation, progress)], at)
    await tx.jobs.add_reported([Reported(job_id, Metrics(**head, values={"loss": 1.0}), at)])  # type: ignore[arg-type]
    decided = Decision(
        job_id=job_id,
        action=Action.KEEP,
        allocation={},
        reason=Reason.PROGRESSING,
        message="m",
        options=(option,),
    )
    await tx.rounds.store_decisions([decided], "r", at)
    await tx.rounds.store_round(round_of(f"r-{job_id}", at))
    await tx.nodes.beat(f"api-{job_id}", at, 6.0)
    await tx.grants.release(job_id, 1, None, {}, at)
    await tx.jobs.save(replace(job, state=JobState.SUCCEEDED, finished_at=at))


def round_of(round_id: str, at: datetime) -> RoundView:
    return RoundView(
        id=round_id,
        at=at,
        took_s=0.1,
        policy="goodput",
        inputs_digest="",
        status="optimal",
        objective=1,
        bound=1,
        gap=0,
        unit="",
        jobs=1,
        changes=[
            RoundChange.model_validate(
                {
                    "job_id": "j",
                    "job_name": "j",
                    "reason": "ALLOCATED",
                    "action": "start",
                    "from": 0,
                    "to": 1,
                    "message": "",
                }
            )
        ],
    )


def memory() -> ObjectStorage:
    return ObjectStorage("memory:///")


async def clean(database: Database, now: datetime, storage: ObjectStorage | None = None) -> Retained:
    return await retain(database, storage or memory(), keep_days=KEEP_DAYS, now=now)


async def tidy(database: Database, now: datetime, storage: ObjectStorage | None = None) -> Swept:
    return await sweep(database, storage or memory(), keep_days=KEEP_DAYS, now=now)


async def test_nothing_of_an_old_job_stays(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"))
        await live_a_whole_life(tx, "j1", NOW)
    before = await counts(database)
    hung_on_the_job = {table for table, rows in before.items() if rows}
    assert set(OF_JOBS) <= hung_on_the_job
    assert (await clean(database, NOW + timedelta(days=KEEP_DAYS, seconds=1))).jobs == 1
    left = {table for table, rows in (await counts(database)).items() if rows}
    assert left <= {"nodes", "projects", "database_state", "retention_cursors"}


async def test_a_job_is_kept_as_long_as_promised(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"))
        await live_a_whole_life(tx, "j1", NOW)
    assert (await clean(database, NOW + timedelta(days=KEEP_DAYS, seconds=-1))).jobs == 0
    after = await counts(database)
    assert all(after[table] for table in OF_JOBS if table != "commands")


async def test_a_held_slot_stays_held(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"), job_of("j1"))
        assert await tx.grants.grant("j1", 1, {"n1": (0,)}, NOW)
    await clean(database, NOW + timedelta(days=1000))
    await tidy(database, NOW + timedelta(days=1000))
    async with database.begin() as tx:
        assert await tx.grants.held("j1") == {1: {"n1": (0,)}}


async def test_a_command_that_nobody_has_taken_up_stays(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"), job_of("j1"))
        command = StopCommand(command_id="c", job_id="j1", generation=1, mode="kill", grace_s=0)
        await tx.commands.add([("n1", command)], NOW)
    await clean(database, NOW + timedelta(days=1000))
    await tidy(database, NOW + timedelta(days=1000))
    assert (await counts(database))["commands"] == 1


async def test_growth_is_bounded(database: Database) -> None:
    """A day after a day of jobs: what is stored does not depend on how long the service has run."""
    async with database.begin() as tx:
        await store(tx, node_of("n1"))
    sizes = []
    for day in range(3 * KEEP_DAYS):
        at = NOW + timedelta(days=day)
        async with database.begin() as tx:
            await live_a_whole_life(tx, f"j{day}", at)
        await clean(database, at)
        sizes.append(sum((await counts(database)).values()))
    assert len(set(sizes[KEEP_DAYS + 1 :])) == 1


async def test_many_at_once_are_deleted_in_batches(database: Database) -> None:
    async with database.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO jobs (id, project, name, spec, request_digest, state, reason, message,"
                " submitted_at, state_since, finished_at) SELECT 'j' || n, 'p', 'n', '{}', '', 'FAILED', '', '',"
                " now(), now(), '2020-01-01' FROM generate_series(1, 1200) AS n"
            )
        )
    deleted: list[int] = []
    while not deleted or deleted[-1]:
        async with database.begin() as tx:
            deleted.append(len((await tx.retention.delete_jobs(NOW)).job_ids))
    assert sum(deleted) == 1200
    assert max(deleted) <= 50


async def unused(database: Database, before: datetime) -> list[str]:
    async with database.begin() as tx:
        return await tx.retention.unused_bundles(before)


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.SUCCEEDED])
async def test_a_bundle_lives_as_long_as_a_job_that_uses_it(database: Database, state: JobState) -> None:
    bundle = BundleRecord(DIGEST, 10, ("train.py",))
    finished = NOW if state is JobState.SUCCEEDED else None
    async with database.begin() as tx:
        await tx.bundles.add(bundle, NOW)
        await tx.bundles.add(bundle, NOW + timedelta(days=1))
        assert await tx.bundles.get(DIGEST) == bundle
        job = job_of("j1", spec=JobSpec(name="j", run="x", bundle=DIGEST))
        await store(tx, job)
        await tx.jobs.save(replace(job, state=state, finished_at=finished))
    assert await unused(database, NOW + timedelta(days=1000)) == []


async def test_a_bundle_that_nobody_uses_goes(database: Database) -> None:
    async with database.begin() as tx:
        await tx.bundles.add(BundleRecord(DIGEST, 10, ()), NOW)
    assert await unused(database, NOW) == []
    async with database.begin() as tx:
        await tx.bundles.add(BundleRecord(DIGEST, 10, ()), NOW + timedelta(seconds=1))
    assert await unused(database, NOW + timedelta(seconds=1)) == [], "an upload of the same is a new one"
    assert await unused(database, NOW + timedelta(seconds=2)) == [DIGEST]
    assert await unused(database, NOW + timedelta(seconds=1)) == []
    async with database.begin() as tx:
        assert await tx.bundles.get(DIGEST) is None


async def test_money_is_kept_for_more_than_a_year_and_budgets_until_they_are_removed(
    database: Database,
) -> None:
    async with database.begin() as tx:
        ended = machine_of("old", billed_to=NOW, state=MachineState.GONE)
        await tx.machines.insert(ended)
        await tx.machines.insert(machine_of("going", requested_at=NOW))
        await tx.spending.save_budget("daily", BudgetRequest(usd=1, period=Period.DAY), 1, NOW)
        await tx.spending.add_notice("budget/daily", NOW, 0.8, NOW)
        await accrue(tx, {}, NOW + timedelta(hours=1))
    before = await counts(database)
    assert all(before[table] for table in MONEY)
    await clean(database, NOW + timedelta(days=390))
    assert await counts(database) == before
    later = NOW + timedelta(days=410)
    async with database.begin() as tx:
        await accrue(tx, {}, later)
    await clean(database, later)
    after = await counts(database)
    assert (after["machines"], after["leases"], after["budgets"], after["budget_notices"]) == (1, 1, 1, 0)
    async with database.begin() as tx:
        assert await tx.ledger.machines_due(later) != []
