"""`Jobs`: a submit is stored once, whoever repeats it, whenever."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobProgress, JobState, Reason
from service.adapters.postgres.database import Database
from service.domain.jobs.job import Job, Switch
from service.domain.shared.errors import InvalidField, NameTaken, NotFound
from service.usecases.ports.jobs import JobFilter, Submitted
from tests.conformance.conftest import NOW, job_of, make_projects, store


async def insert(database: Database, job: Job, key: str | None = None, digest: str = "digest") -> Submitted:
    async with database.begin() as tx:
        return await tx.jobs.insert(job, idempotency_key=key, request_digest=digest)


async def count(database: Database, table: str) -> int:
    async with database.engine.connect() as connection:
        return int((await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one())


async def ended(database: Database, job_id: str) -> None:
    async with database.begin() as tx:
        job = await tx.jobs.lock(job_id)
        await tx.jobs.save(replace(job, state=JobState.CANCELLED, finished_at=NOW))


async def test_a_job_is_stored_with_its_first_event(database: Database) -> None:
    submitted = await insert(database, job_of("j1"))
    assert submitted == Submitted(job_of("j1"), "digest", created=True)
    async with database.begin() as tx:
        assert await tx.jobs.lock("j1") == job_of("j1")
        (event,) = (await tx.job_queries.events("j1", after=0, limit=10)).items
    assert (event.kind, event.state, event.generation) == ("submit", JobState.PENDING, 0)


async def test_a_job_keeps_its_owner(database: Database) -> None:
    await insert(database, job_of("j1", owner="ada"))
    await insert(database, job_of("j2", owner="robot ci"))
    await insert(database, job_of("j3"))
    async with database.begin() as tx:
        await tx.jobs.save(replace(await tx.jobs.lock("j1"), message="changed", owner="eve"))
        everyone = await tx.job_queries.list_jobs(JobFilter(), limit=10, cursor=None)
        found = await tx.job_queries.list_jobs(JobFilter(owner="ada"), limit=10, cursor=None)
    assert {one.id: one.owner for one in everyone.items} == {"j1": "ada", "j2": "robot ci", "j3": None}
    assert [one.id for one in found.items] == ["j1"]


async def test_the_same_key_again_finds_the_first_job(database: Database) -> None:
    await insert(database, job_of("j1", name="same"), key="k", digest="first")
    again = await insert(database, job_of("j2", name="same"), key="k", digest="second")
    assert (again.job.id, again.request_digest, again.created) == ("j1", "first", False)
    assert (await count(database, "jobs"), await count(database, "events")) == (1, 1)


async def test_the_same_key_finds_a_job_that_has_ended(database: Database) -> None:
    await insert(database, job_of("j1"), key="k")
    await ended(database, "j1")
    again = await insert(database, job_of("j2", name="j1"), key="k")
    assert (again.job.id, again.job.state, again.created) == ("j1", JobState.CANCELLED, False)


async def test_a_key_belongs_to_a_project(database: Database) -> None:
    await make_projects(database, "here", "there")
    here, there = (JobSpec(name="same", run="x", project=project) for project in ("here", "there"))
    await insert(database, job_of("j1", spec=here), key="k")
    assert (await insert(database, job_of("j2", spec=there), key="k")).created


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_job_of_no_project_is_not_stored(database: Database, key: str | None) -> None:
    with pytest.raises(InvalidField, match="headway project create nowhere"):
        await insert(database, job_of("j1", spec=JobSpec(name="job", run="x", project="nowhere")), key=key)
    assert (await count(database, "jobs"), await count(database, "events")) == (0, 0)


async def test_jobs_without_a_key_are_each_their_own(database: Database) -> None:
    assert (await insert(database, job_of("j1"))).created
    assert (await insert(database, job_of("j2"))).created


async def test_a_live_name_is_taken(database: Database) -> None:
    await insert(database, job_of("j1", name="same"), key="one")
    for key in (None, "two"):
        with pytest.raises(NameTaken, match="same"):
            await insert(database, job_of("j2", name="same"), key=key)
    assert (await count(database, "jobs"), await count(database, "events")) == (1, 1)
    await ended(database, "j1")
    assert (await insert(database, job_of("j2", name="same"))).created


@pytest.mark.parametrize("name", ["same", None])
async def test_one_request_sent_many_times_at_once_is_one_job(database: Database, name: str | None) -> None:
    """The names are alike, as they are in a repeated request, or not."""
    results = await asyncio.gather(
        *(insert(database, job_of(f"j{index}", name=name or f"name-{index}"), key="k") for index in range(10))
    )
    assert sum(one.created for one in results) == 1
    assert len({one.job.id for one in results}) == 1
    assert (await count(database, "jobs"), await count(database, "events")) == (1, 1)


async def test_one_name_wanted_by_many_at_once_goes_to_one(database: Database) -> None:
    results = await asyncio.gather(
        *(insert(database, job_of(f"j{index}", name="same"), key=f"k{index}") for index in range(10)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Submitted) for one in results) == 1
    assert sum(isinstance(one, NameTaken) for one in results) == 9


async def test_a_conflict_undoes_what_the_transaction_did_before(database: Database) -> None:
    await insert(database, job_of("j1", name="same"))

    async def two_jobs() -> None:
        async with database.begin() as tx:
            await store(tx, job_of("j2"), job_of("j3", name="same"))

    with pytest.raises(NameTaken):
        await two_jobs()
    assert await count(database, "jobs") == 1


async def test_everything_about_a_job_is_stored(database: Database) -> None:
    full = job_of(
        "j1",
        state=JobState.RESIZING,
        reason=Reason.USER_REQUEST,
        message="ünïcode",
        generation=3,
        newest_generation=6,
        attempt=4,
        allocation={"n1": (0, 2)},
        target={"n2": (1,)},
        target_batch=96,
        live=True,
        switch=Switch(
            generation=6,
            began_at=NOW,
            deadline=NOW + timedelta(seconds=1),
            ordered=True,
            lost=True,
            stopping=True,
            ready_s={2: 0.5},
            left=((1, 0), (3, 1)),
        ),
        samples_at_loss=9,
        growth_failures=2,
        grow_after=NOW,
        pinned_size=1,
        pause_requested=True,
        preemptions=1,
        infrastructure_failures=2,
        user_errors=3,
        retry_at=NOW + timedelta(seconds=5),
        progress=JobProgress(epoch=1, samples=10, metrics={"loss": 0.5}, checkpoint_samples=8),
        started_at=NOW,
    )
    await insert(database, job_of("j1"))
    async with database.begin() as tx:
        await tx.jobs.lock("j1")
        await tx.jobs.save(full)
    async with database.begin() as tx:
        assert await tx.jobs.lock("j1") == full
    async with database.begin() as tx:
        assert (await tx.rounds.snapshot(NOW)).jobs == {"j1": full}


async def test_a_job_is_found_by_its_name_the_live_one_first(database: Database) -> None:
    await insert(database, job_of("j1", name="same", submitted_at=NOW))
    await ended(database, "j1")
    await insert(database, job_of("j2", name="same", submitted_at=NOW - timedelta(days=1)))
    async with database.begin() as tx:
        assert (await tx.jobs.lock("same")).id == "j2"
    await ended(database, "j2")
    async with database.begin() as tx:
        assert (await tx.jobs.lock("same")).id == "j1", "the newest of those that ended"
        with pytest.raises(NotFound, match="headway ps -a"):
            await tx.jobs.lock("other")


async def test_a_mistyped_name_is_answered_by_the_nearest_of_the_projects_that_count(
    database: Database,
) -> None:
    await insert(database, job_of("j1", name="train"))
    async with database.begin() as tx:
        with pytest.raises(NotFound, match="did you mean train"):
            await tx.job_queries.find("trian", frozenset({"default"}))
        with pytest.raises(NotFound) as unseen:
            await tx.job_queries.find("trian", frozenset({"another"}))
        assert "train" not in str(unseen.value)


async def test_locking_many_leaves_out_those_that_are_gone(database: Database) -> None:
    await insert(database, job_of("j1"))
    async with database.begin() as tx:
        assert await tx.jobs.lock_many(["j2", "j1"]) == {"j1": job_of("j1")}
        assert await tx.jobs.lock_many([]) == {}


async def test_locks_in_opposite_orders_do_not_dead_lock(database: Database) -> None:
    for job in ("j1", "j2", "j3"):
        await insert(database, job_of(job))

    async def turn(order: list[str]) -> None:
        for _ in range(20):
            async with database.begin() as tx:
                await tx.jobs.lock_many(order)

    await asyncio.gather(turn(["j1", "j2", "j3"]), turn(["j3", "j1", "j2"]), turn(["j2", "j1"]))


async def test_a_locked_job_waits_for_its_turn(database: Database) -> None:
    """Two who count up do not lose a count."""
    await insert(database, job_of("j1"))

    async def count_up() -> None:
        for _ in range(10):
            async with database.begin() as tx:
                job = await tx.jobs.lock("j1")
                await tx.jobs.save(replace(job, preemptions=job.preemptions + 1))

    await asyncio.gather(count_up(), count_up(), count_up())
    async with database.begin() as tx:
        assert (await tx.jobs.lock("j1")).preemptions == 30


@pytest.mark.parametrize("value", [math.inf, 1e308])
async def test_numbers_at_the_edge_of_json_can_be_read_again(database: Database, value: float) -> None:
    await insert(database, job_of("j1"))
    async with database.begin() as tx:
        job = await tx.jobs.lock("j1")
        await tx.jobs.save(replace(job, progress=JobProgress(samples_per_s=value)))
    async with database.begin() as tx:
        stored = await tx.jobs.lock("j1")
    assert stored.progress.samples_per_s in {None, value}
