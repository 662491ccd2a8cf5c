"""A snapshot carries the losses that jobs reported as means of parts of bounded size, with their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.runtime import Metrics
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobProgress
from service.adapters.postgres.database import Database
from service.adapters.postgres.rounds.loss_histories import CURVE_JOBS, CURVE_POINTS, CURVE_ROWS
from service.domain.cluster.snapshot import LossHistory
from service.usecases.ports.jobs import Measured, Reported
from service.usecases.ports.transactions import Transaction
from tests.conformance.conftest import NOW, job_of, node_of, store
from tests.conformance.test_decisions import allocation_of, progress_of, snapshot, start

ADAPTIVE = {"policy": "adaptive", "global": 64, "max_global": 512}


def spec(name: str, batch: dict[str, Any] = ADAPTIVE) -> JobSpec:
    return JobSpec.model_validate({"name": name, "run": "python train.py", "batch": batch})


async def trained(
    tx: Transaction,
    job_id: str,
    losses: Sequence[float],
    *,
    generation: int = 1,
    batch: int = 64,
    first: int = 0,
    crossed: str = "",
    **others: float,
) -> None:
    """Store steps of a batch, and a loss after each, at successive samples."""
    allocation = replace(allocation_of(job_id, {"n1": (0,)}, generation=generation), crossed=crossed)
    await tx.jobs.add_measured(
        [Measured(job_id, allocation, progress_of(generation=generation, global_batch=batch))], NOW
    )
    said = [
        Metrics(
            rank=0,
            generation=generation,
            at_s=1.0,
            epoch=0,
            samples=first + number + 1,
            values={"loss": loss, **others},
        )
        for number, loss in enumerate(losses)
    ]
    await tx.jobs.add_reported([Reported(job_id, one, NOW) for one in said])


async def begun(tx: Transaction, name: str, number: int = 0, **fields: Any) -> None:
    """Store a job of this name that has started and reports a loss."""
    at = NOW + timedelta(seconds=number)
    await store(tx, job_of(name, spec=fields.pop("spec", spec(name)), submitted_at=at))
    await start(tx, name, {"n1": (0,)})
    await tx.grants.release(name, 1, None, {}, NOW)
    job = await tx.jobs.lock(name)
    await tx.jobs.save(replace(job, progress=JobProgress(metrics={"loss": 1.0}, **fields)))


async def found(database: Database) -> dict[str, LossHistory]:
    histories = (await snapshot(database)).loss_histories
    return {one.job_id: one for of_class in histories.values() for one in of_class}


async def test_losses_come_with_the_batch_of_their_generation(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"))
        await begun(tx, "gpt-1", lr_rule="sqrt")
        await trained(tx, "gpt-1", [4.0, 3.0])
        await trained(tx, "gpt-1", [2.0, 1.0], generation=2, batch=128, first=1000, crossed="link")
    one = (await found(database))["gpt-1"]
    assert (one.reference_batch, one.lr_rule) == (64, "sqrt")
    points = [(point.samples, point.loss, point.global_batch) for point in one.points]
    assert points == [(1.0, 4.0, 64), (2.0, 3.0, 64), (1001.0, 2.0, 128), (1002.0, 1.0, 128)]


async def test_many_losses_are_means_of_parts(database: Database) -> None:
    number = 2 * CURVE_POINTS * CURVE_ROWS
    async with database.begin() as tx:
        await store(tx, node_of("n1"))
        await begun(tx, "gpt-1")
        await trained(tx, "gpt-1", [float(number - at) for at in range(number)])
    points = (await found(database))["gpt-1"].points
    assert len(points) == CURVE_POINTS
    size = number // CURVE_POINTS
    firsts = [size * part + (CURVE_ROWS + 1) / 2 for part in range(CURVE_POINTS)]
    assert [point.samples for point in points] == pytest.approx(firsts)
    assert [point.loss for point in points] == pytest.approx([number + 1 - at for at in firsts])


async def test_only_the_latest_jobs_of_a_class_are_read(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"))
        for number in range(CURVE_JOBS + 3):
            await begun(tx, f"gpt-{number}", number)
            await trained(tx, f"gpt-{number}", [2.0, 1.0])
    assert set(await found(database)) == {f"gpt-{number}" for number in range(3, CURVE_JOBS + 3)}


async def test_classes_without_an_adaptive_job_are_not_read(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"))
        await begun(tx, "bert-1", spec=spec("bert-1", {"global": 64}))
        await trained(tx, "bert-1", [2.0, 1.0])
    assert await found(database) == {}


async def test_reports_without_a_loss_or_a_batch_are_left_out(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n1"))
        for name in ("gpt-1", "gpt-2", "gpt-3"):
            await begun(tx, name)
        await trained(tx, "gpt-1", [2.0, 1.0], accuracy=0.5)
        await tx.jobs.add_reported(
            [
                Reported(
                    "gpt-2",
                    Metrics(rank=0, generation=7, at_s=1.0, epoch=0, samples=5, values={"loss": 1.0}),
                    NOW,
                )
            ]
        )
    seen = await found(database)
    assert list(seen) == ["gpt-1"]
    assert [point.loss for point in seen["gpt-1"].points] == [2.0, 1.0]
