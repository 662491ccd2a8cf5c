"""`Decisions`, `ClusterSettings` and `DecisionQueries`: what rounds see, what they leave, and what is read of it."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.agents import Member, NodeState, StopCommand
from headway.contract.runtime import Progress
from headway.contract.views.decisions import RoundChange, RoundView, RowPrice
from headway.contract.views.jobs import JobState, Reason
from service.adapters.postgres.database import Database
from service.adapters.postgres.rounds.snapshot import LATE_S
from service.domain.cluster.snapshot import Measurement, Orders, PolicySetting, Served, Snapshot
from service.domain.jobs.records import AllocationRecord, Prediction
from service.domain.shared.errors import InvalidField, NotFound
from service.usecases.ports.jobs import Measured
from service.usecases.ports.transactions import Transaction
from tests.conformance.conftest import NOW, job_of, node_of, store


def allocation_of(job_id: str, slots: dict[str, tuple[int, ...]], **fields: Any) -> AllocationRecord:
    first = next(iter(slots))
    generation = fields.get("generation", 1)
    return AllocationRecord(
        **{
            "job_id": job_id,
            "generation": 1,
            "slots": slots,
            "device_kind": "cpu",
            "first_node": first,
            "master_port": 20000,
            "reason": Reason.ALLOCATED,
            "message": "",
            "round_id": None,
            "granted_at": NOW,
            "members": tuple(
                Member(rank=rank, node_id=node, slot=slot, born_generation=generation, born_rank=rank)
                for rank, (node, slot) in enumerate((node, slot) for node in slots for slot in slots[node])
            ),
            **fields,
        }
    )


def progress_of(**fields: Any) -> Progress:
    steps = {"steps": 20, "step_s_sum": 4.0, "step_s_squares": 0.85, "global_batch": 64, "sync_s_sum": 1.0}
    head = {"rank": 0, "generation": 1, "at_s": 1.0, "epoch": 0, "samples": 1, "total_samples": None}
    return Progress(**{**head, **steps, "local_batch": 16, "accumulation": 2, **fields})


async def snapshot(database: Database, now_s: float = 0.0, **prices: float) -> Snapshot:
    async with database.begin() as tx:
        return await tx.rounds.snapshot(NOW + timedelta(seconds=now_s), prices)


async def start(tx: Transaction, job_id: str, slots: dict[str, tuple[int, ...]], **fields: Any) -> None:
    """The job's generation starts on slots, and the job has started."""
    allocation = allocation_of(job_id, slots, **fields)
    assert await tx.grants.grant(job_id, allocation.generation, slots, allocation.granted_at)
    await tx.grants.add_allocation(allocation)
    job = await tx.jobs.lock(job_id)
    await tx.jobs.save(replace(job, started_at=allocation.granted_at))


async def test_an_empty_cluster_has_defaults(database: Database) -> None:
    seen = await snapshot(database)
    assert (seen.policy, seen.policy_state, seen.usd_per_slot_h) == (PolicySetting(), {}, {})
    assert (seen.served, seen.class_measurements) == ({}, {})


async def test_the_prices_are_those_that_were_handed_in(database: Database) -> None:
    assert (await snapshot(database, a100=2.5)).usd_per_slot_h == {"a100": 2.5}


async def test_measurements_have_the_batch_plan_and_the_spread(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"), job_of("j1"))
        await start(tx, "j1", {"n1": (0, 1)})
        await tx.jobs.add_measured([Measured("j1", allocation_of("j1", {"n1": (0, 1)}), progress_of())], NOW)
    (one,) = (await snapshot(database)).measurements["j1"]
    expected = Measurement(
        "cpu",
        2,
        320.0,
        20,
        generation=1,
        global_batch=64,
        local_batch=16,
        accumulation=2,
        step_s=0.2,
        step_s_spread=one.step_s_spread,
        sync_s=0.05,
    )
    assert one == expected
    assert one.step_s_spread == pytest.approx(0.05)


@pytest.mark.parametrize(("slots", "sync_s"), [((0,), 0.0), ((0, 1), None)])
async def test_several_ranks_that_never_waited_did_not_measure_it(
    database: Database, slots: tuple[int, ...], sync_s: float | None
) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"), job_of("j1"))
        allocation = allocation_of("j1", {"n1": slots})
        await tx.jobs.add_measured([Measured("j1", allocation, progress_of(sync_s_sum=0.0))], NOW)
    (one,) = (await snapshot(database)).measurements["j1"]
    assert one.sync_s == sync_s


async def test_what_several_generations_measured_of_one_configuration_is_one_measurement(
    database: Database,
) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"), job_of("j1"))
        for generation, noise in ((1, 5.0), (2, 7.0), (3, None)):
            allocation = allocation_of("j1", {"n1": (0,)}, generation=generation)
            progress = progress_of(gradient_sqr=noise, gradient_var=noise)
            await tx.jobs.add_measured(
                [Measured("j1", allocation, progress)], NOW + timedelta(seconds=generation)
            )
    (one,) = (await snapshot(database)).measurements["j1"]
    assert (one.steps, one.generation, one.step_s) == (60, 3, pytest.approx(0.2))
    assert (one.gradient_sqr, one.gradient_var) == (7.0, 7.0)


async def test_the_logarithm_of_the_noise_is_added_up_over_the_steps_that_have_one(
    database: Database,
) -> None:
    reports = [(20, 1.0, 8.0), (40, 1.0, 64.0), (20, None, None), (20, -1.0, 8.0), (20, 0.0, 1.0)]
    async with database.begin() as tx:
        await store(tx, node_of("n1"), job_of("j1"))
        allocation = allocation_of("j1", {"n1": (0,)})
        for steps, sqr, var in reports[:1]:  # in two statements, and several reports in one
            progress = progress_of(steps=steps, gradient_sqr=sqr, gradient_var=var)
            await tx.jobs.add_measured([Measured("j1", allocation, progress)], NOW)
        rest = [
            Measured("j1", allocation, progress_of(steps=steps, gradient_sqr=sqr, gradient_var=var))
            for steps, sqr, var in reports[1:]
        ]
        await tx.jobs.add_measured(rest, NOW)
    (one,) = (await snapshot(database)).measurements["j1"]
    assert (one.steps, one.noise_steps) == (120, 80)
    expected = 20 * math.log(8.0) + 40 * math.log(64.0) + 20 * math.log(1e12)
    assert one.log_noise_sum == pytest.approx(expected)


@pytest.mark.parametrize(("state", "noise_steps"), [(JobState.RUNNING, 0), (JobState.SUCCEEDED, 20)])
async def test_a_class_has_the_noise_of_its_whole_runs(
    database: Database, state: JobState, noise_steps: int
) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"), job_of("j1", name="gpt-1"), job_of("j2", name="gpt-2"))
        await start(tx, "j1", {"n1": (0,)})
        progress = progress_of(gradient_sqr=1.0, gradient_var=8.0)
        await tx.jobs.add_measured([Measured("j1", allocation_of("j1", {"n1": (0,)}), progress)], NOW)
        job = await tx.jobs.lock("j1")
        await tx.jobs.save(
            replace(job, state=state, finished_at=NOW if state is JobState.SUCCEEDED else None)
        )
    (one,) = (await snapshot(database)).class_measurements["default/gpt"]
    assert (one.steps, one.noise_steps) == (20, noise_steps)
    assert one.log_noise_sum == pytest.approx(noise_steps * math.log(8.0))
    assert (one.gradient_sqr, one.gradient_var) == (1.0, 8.0)


async def test_a_batch_plan_that_changes_is_the_last_one(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"), job_of("j1"))
        for local in (16, 24):
            allocation = allocation_of("j1", {"n1": (0,)})
            await tx.jobs.add_measured([Measured("j1", allocation, progress_of(local_batch=local))], NOW)
    (one,) = (await snapshot(database)).measurements["j1"]
    assert (one.local_batch, one.steps) == (24, 40)


async def test_a_class_has_what_its_latest_jobs_measured_ended_ones_too(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"))
        for number in range(25):
            at = NOW + timedelta(seconds=number)
            await store(tx, job_of(f"j{number}", name=f"gpt-{number}", submitted_at=at))
            await start(tx, f"j{number}", {"n1": (0,)})
            progress = progress_of(global_batch=1 + number if number < 23 else 23)
            await tx.jobs.add_measured(
                [Measured(f"j{number}", allocation_of(f"j{number}", {"n1": (0,)}), progress)], NOW
            )
            await tx.grants.release(f"j{number}", 1, None, {}, NOW)
            job = await tx.jobs.lock(f"j{number}")
            await tx.jobs.save(replace(job, state=JobState.SUCCEEDED, finished_at=NOW))
        await store(tx, job_of("new", name="gpt-99"), job_of("other", name="bert"))
    seen = (await snapshot(database)).class_measurements
    assert list(seen) == ["default/gpt"]
    steps = {one.global_batch: one.steps for one in seen["default/gpt"]}
    assert steps == {**dict.fromkeys(range(6, 23), 20), 23: 60}
    assert {one.step_s for one in seen["default/gpt"]} == {0.2}


async def test_what_a_job_was_served_is_the_turns_of_its_generations(database: Database) -> None:
    """Two slots for 10 s; then one, prepared 3 s before that, for 20 s; one that was given up; then another kind."""
    generations = (
        (1, (0, 1), "cpu", 0, 10),
        (2, (0,), "cpu", 7, 30),
        (3, (0, 1, 2), "cpu", 12, 15),
        (4, (2, 3), "a100", 28, None),
        (5, (2,), "a100", 33, None),
    )
    async with database.begin() as tx:
        await store(tx, node_of("n1"), job_of("j1"), job_of("j2"))
        for generation, slots, kind, begin_s, end_s in generations:
            at = NOW + timedelta(seconds=begin_s)
            fields = {"generation": generation, "device_kind": kind, "granted_at": at}
            await tx.grants.add_allocation(allocation_of("j1", {"n1": slots}, **fields))
            if end_s is not None:
                await tx.grants.end_allocation("j1", generation, NOW + timedelta(seconds=end_s))
    served = (await snapshot(database, 35.0)).served
    assert served == {"j1": Served({"cpu": 30.0, "a100": 5.0}, 50.0)}


async def test_a_clock_that_went_back_serves_nothing(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"), job_of("j1"))
        await start(tx, "j1", {"n1": (0,)})
    assert (await snapshot(database, -5.0)).served == {"j1": Served({"cpu": 0.0}, 0.0)}


@pytest.mark.parametrize("predicted", [None, Prediction(100.0, 80.0, 125.0)])
async def test_a_prediction_is_kept_with_its_allocation(
    database: Database, predicted: Prediction | None
) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"), job_of("j1"))
        await tx.grants.add_allocation(allocation_of("j1", {"n1": (0,)}, predicted=predicted))
    async with database.begin() as tx:
        found = await tx.grants.allocation("j1", 1)
    assert found is not None
    assert found.predicted == predicted


async def test_a_prediction_that_is_no_number_is_none(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"), job_of("j1"))
        nothing = Prediction(math.nan, 0.0, math.inf)
        await tx.grants.add_allocation(allocation_of("j1", {"n1": (0,)}, predicted=nothing))
        found = await tx.grants.allocation("j1", 1)
    assert found is not None
    assert found.predicted is None


async def test_the_policy_is_the_one_chosen_last_and_starts_afresh(database: Database) -> None:
    first, second = PolicySetting("budget", {"usd_per_h": 10.0}), PolicySetting("srtf")
    async with database.begin() as tx:
        await tx.rounds.choose_policy(first, NOW)
        await tx.rounds.carry_over(first, {"price": 0.5}, NOW)
    seen = await snapshot(database)
    assert (seen.policy, seen.policy_state) == (first, {"price": 0.5})
    async with database.begin() as tx:
        await tx.rounds.choose_policy(second, NOW)
        await tx.rounds.carry_over(first, {"price": 0.7}, NOW)
        assert await tx.rounds.policy() == second
    seen = await snapshot(database)
    assert (seen.policy, seen.policy_state) == (second, {})


async def test_the_default_policy_carries_over_too(database: Database) -> None:
    async with database.begin() as tx:
        await tx.rounds.carry_over(PolicySetting(), {"a": [1]}, NOW)
    assert (await snapshot(database)).policy_state == {"a": [1]}


def round_of(round_id: str, at_s: float = 0.0, **fields: Any) -> RoundView:
    change = RoundChange.model_validate(
        {
            "job_id": "j1",
            "job_name": "j",
            "reason": "ALLOCATED",
            "action": "start",
            "from": 0,
            "to": 2,
            "message": "",
        }
    )
    return RoundView(
        **{
            "id": round_id,
            "at": NOW + timedelta(seconds=at_s),
            "took_s": 0.1,
            "policy": "goodput",
            "parameters": {"p": -1.0},
            "inputs_digest": "abc",
            "status": "optimal",
            "objective": 1.0,
            "bound": 1.5,
            "gap": 1 / 3,
            "unit": "speedup",
            "prices": [RowPrice(name="slots/cpu", capacity=4, used=4, price=0.25)],
            "times": {"solve_s": 0.01},
            "jobs": 3,
            "changes": [change],
            **fields,
        }
    )


async def record(database: Database, *rounds: RoundView) -> None:
    for one in rounds:
        async with database.begin() as tx:
            await tx.rounds.store_round(one)


async def page(
    database: Database, limit: int = 10, cursor: str | None = None
) -> tuple[list[str], str | None]:
    async with database.begin() as tx:
        found = await tx.round_queries.rounds(limit=limit, cursor=cursor, seen=None)
    return [one.id for one in found.items], found.next_cursor


async def test_a_round_is_read_as_it_was_recorded(database: Database) -> None:
    await record(database, round_of("r1"))
    async with database.begin() as tx:
        assert await tx.round_queries.round("r1", seen=None) == round_of("r1")
        assert await tx.round_queries.round("latest", seen=None) == round_of("r1")


async def test_of_rounds_that_changed_nothing_only_the_latest_is_kept(database: Database) -> None:
    idle = [round_of(f"idle-{number}", number, changes=[]) for number in range(1, 4)]
    await record(database, round_of("r1"), *idle[:2])
    assert await page(database) == (["idle-2", "r1"], None)
    await record(database, round_of("r2", 2.5))
    assert await page(database) == (["r2", "r1"], None)
    await record(database, idle[2])
    async with database.begin() as tx:
        assert (await tx.round_queries.round("latest", seen=None)).id == "idle-3"
        with pytest.raises(NotFound, match="idle-1"):
            await tx.round_queries.round("idle-1", seen=None)


async def test_rounds_come_in_pages(database: Database) -> None:
    await record(database, *(round_of(f"r{number}", number // 2) for number in range(5)))
    first, cursor = await page(database, limit=2)
    second, cursor = await page(database, limit=2, cursor=cursor)
    third, cursor = await page(database, limit=2, cursor=cursor)
    assert [*first, *second, *third] == ["r4", "r3", "r2", "r1", "r0"]
    assert cursor is None
    with pytest.raises(InvalidField, match="not a cursor"):
        await page(database, cursor="nonsense")


async def test_before_the_first_round_there_is_none(database: Database) -> None:
    async with database.begin() as tx:
        with pytest.raises(NotFound, match="no round has been decided yet"):
            await tx.round_queries.round("latest", seen=None)


async def test_numbers_that_json_cannot_carry_do_not_stop_a_round(database: Database) -> None:
    price = RowPrice(name="usd_per_h", capacity=math.inf, used=1.0, price=math.nan)
    await record(database, round_of("r1", bound=math.inf, prices=[price], times={"solve_s": math.nan}))
    async with database.begin() as tx:
        found = await tx.round_queries.round("r1", seen=None)
    assert (found.bound, found.times) == (0.0, {"solve_s": 0.0})
    assert (found.prices[0].capacity, found.prices[0].price) == (0.0, 0.0)


async def test_jobs_are_counted_by_state(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, job_of("j1"), job_of("j2"), job_of("j3"))
        job = await tx.jobs.lock("j3")
        await tx.jobs.save(replace(job, state=JobState.SUCCEEDED, finished_at=NOW))
        assert await tx.round_queries.live_jobs(seen=None) == {JobState.PENDING: 2}


async def test_a_snapshot_knows_how_many_commands_nodes_have_not_taken_up(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"), node_of("gone", state=NodeState.LOST), job_of("j1"))
        for node, number in (("n1", 1), ("n1", 2), ("n1", 3), ("gone", 4)):
            command = StopCommand(
                command_id=f"c{number}", job_id="j1", generation=number, mode="checkpoint", grace_s=1.5
            )
            await tx.commands.add([(node, command)], NOW)
    assert (await snapshot(database)).orders == Orders(untaken=3)
    async with database.begin() as tx:
        await tx.commands.acknowledge({"n1": ["c2"]}, NOW)
    assert (await snapshot(database)).orders == Orders(untaken=2)


async def test_a_snapshot_knows_whether_reports_were_just_late(database: Database) -> None:
    async with database.begin() as tx:
        await tx.nodes.beat("api-1", NOW, 6.0, late=True)
        await tx.nodes.beat("api-2", NOW, 6.0)
    assert (await snapshot(database, now_s=LATE_S)).orders == Orders(late=True)
    assert (await snapshot(database, now_s=LATE_S + 0.1)).orders == Orders()
    assert (await snapshot(database, now_s=-LATE_S - 0.1)).orders == Orders(), "by a clock that was set back"
