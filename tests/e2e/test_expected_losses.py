"""Machines of a kind are taken away elsewhere: a job that goes on undisturbed saves more often, and shows why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from headway.client.client import Client
from headway.contract.orders import order_from_json
from headway.contract.spec import JobSpec
from headway.contract.values.checkpoint_interval import SHORTEST_S
from headway.local.postgres import EmbeddedPostgres
from headway.local.stack import LocalStack, Stores
from service.domain.cluster.spot_rate import FAILURES_PER_H
from service.domain.rental.machines import MachineReason, MachineState
from tests.e2e.conftest import SCRIPTS, Cluster, PatientJob

LOST_LEASES = f"""
INSERT INTO machines (id, provider, region, zone, instance_type, device_kind, slots, market, usd_per_h, state,
    reason, message, requested_at, state_since, billed_from, billed_to, min_billed_s)
SELECT 'm' || number, 'ec2', 'us-east-1', '', 'c7.large', 'cpu', 2, 'spot', 0.03, '{MachineState.GONE}', '{MachineReason.SPOT_RECLAIMED}', '',
    now(), now(), now(), now(), 0
FROM generate_series(1, 500) AS number
"""
"""So many interruptions that any checkpoint has the shortest interval."""


@pytest.fixture
def alone(tmp_path: Path, postgres: EmbeddedPostgres, redis_url: str) -> Iterator[tuple[Cluster, str]]:
    """A stack of one node whose database the test may write to."""
    url = postgres.create_database("risky")
    with (
        LocalStack(tmp_path / "data", agents=1, slots=2, stores=Stores(url, redis_url)) as stack,
        Client(stack.url, stack.token, patience_s=60) as client,
    ):
        yield Cluster(stack, client), url


async def write(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.slow
def test_a_job_saves_more_often_when_machines_like_its_own_are_taken_away(
    alone: tuple[Cluster, str], tmp_path: Path
) -> None:
    cluster, url = alone
    job = PatientJob(cluster, "risky", tmp_path)
    spec = {
        "name": job.name,
        "workdir": str(SCRIPTS),
        "run": "python patient.py",
        "env": {"HURRY": str(tmp_path / "hurry"), "EPOCHS": str(job.epochs)},
        "elastic": {"min": 2, "max": 2, "resize": "live"},
        "market": "mixed",
    }
    job.id = cluster.client.submit(JobSpec.model_validate(spec)).id
    cluster.until(lambda: job.runs_at(2) and job.view().progress.begun_generation == 1, "the first step")
    first = job.view().progress.losses
    assert first is not None
    assert first.per_h == FAILURES_PER_H

    asyncio.run(write(url, LOST_LEASES, "UPDATE nodes SET market = 'spot'"))
    cluster.until(lambda: bool(job.events("losses_expected")), "the round that expects more losses")
    (event,) = job.events("losses_expected")
    told = job.view().progress.losses
    assert told is not None
    assert (event.data["before_per_h"], event.data["losses_per_h"]) == (first.per_h, told.per_h)
    assert told.per_h > 10
    (order,) = orders_of(cluster, job, 1)
    cluster.until(order.exists, "the agent to pass it on")
    assert order_from_json(order.read_text()).losses_per_h == told.per_h
    trained = job.view().progress.samples
    cluster.until(lambda: job.view().progress.samples > trained, "another step")

    done = job.finish()
    assert (done.attempt, done.generation) == (1, 1), "nothing else changed"
    every_s = done.progress.checkpoint_every_s
    assert every_s is not None
    assert SHORTEST_S <= every_s < 2 * SHORTEST_S, "a save of a millisecond had an interval of 160 s before"
    assert f" for {told.per_h:.2g} expected losses" in cluster.headway("describe", job.name).stdout


def orders_of(cluster: Cluster, job: PatientJob, generation: int) -> list[Path]:
    """The order files of the ranks of a generation, on every node, whether they exist or not."""
    runs = cluster.stack.data.glob(f"agents/*/runs/{job.id}/{generation}")
    return [run / "control" / "order.json" for run in runs]
