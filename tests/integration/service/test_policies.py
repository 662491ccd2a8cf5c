"""The published policies in a running service: an operator chooses each, and the next round follows it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text

from headway.contract.agents import BatchOrder
from headway.contract.views.decisions import ClusterView
from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness

ADAPTIVE = {"policy": "adaptive", "global": 64, "max_global": 512, "max_local": 32, "lr_rule": "adascale"}


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    return Cast(harness)


async def follow(cast: Cast, policy: str, **parameters: float) -> None:
    """An operator chooses the policy."""
    answer = await cast.harness.client.put(
        "/api/v1/cluster", json={"policy": policy, "parameters": parameters}
    )
    assert answer.status_code == 200, answer.text
    seen = ClusterView.model_validate_json((await cast.harness.client.get("/api/v1/cluster")).content)
    assert (seen.policy, seen.parameters) == (policy, parameters)


async def decided(cast: Cast, job: str) -> dict[str, Any]:
    """Return the explanation of the latest decision about a job."""
    answer = await cast.harness.client.get(f"/api/v1/jobs/{job}/explain")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def policy_state(cast: Cast) -> dict[str, Any]:
    async with cast.harness.service.database.engine.connect() as connection:
        rows = await connection.execute(text("SELECT policy_state FROM cluster_settings"))
        return dict(rows.scalar_one())


@pytest.mark.parametrize("policy", ["shockwave", "optimus", "elastic-fixed"])
async def test_each_is_listed_with_its_parameters_and_starts_jobs(cast: Cast, policy: str) -> None:
    await cast.join(alpha=2)
    await follow(cast, policy)
    seen = ClusterView.model_validate_json((await cast.harness.client.get("/api/v1/cluster")).content)
    described = next(one for one in seen.policies if one.name == policy)
    names = {one.name for one in described.parameters}
    assert (
        names
        == {
            "shockwave": {"rounds", "round_s", "makespan_weight", "unfairness_power", "max_rho"},
            "optimus": {"unsure", "convergence"},
            "elastic-fixed": set(),
        }[policy]
    )
    await cast.begin(1)
    assert (await decided(cast, "job"))["policy"] == policy


async def test_elastic_fixed_takes_a_job_back_to_the_batch_of_its_file(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1, batch=ADAPTIVE, elastic={"min": 1, "max": 1})
    await cast.trained((1, 0), 1, 64, 1000.0)
    await cast.turn()
    assert cast.orders(2)["alpha"].batch == BatchOrder(global_batch=128), "the default tries a larger one"
    await cast.switch(2)
    said = {"samples": 64_000, "global_batch": 128, "lr_factor": 1.5, "cause": "ordered by the service"}
    await cast.say((1, 0), "batch_changed", 2, **said)
    await follow(cast, "elastic-fixed")
    await cast.turn()
    job = await cast.job()
    assert (job.state, job.reason) == (JobState.RESIZING, Reason.BETTER_BATCH)
    assert cast.orders(3)["alpha"].batch == BatchOrder(global_batch=64)
    await cast.switch(3)
    await cast.say((1, 0), "batch_changed", 3, **{**said, "global_batch": 64, "lr_factor": 1.0})
    await cast.trained((1, 0), 3, 64, 1000.0)
    await cast.turn()
    assert cast.orders(4) == {}, "and no other batch is tried"


async def test_shockwave_carries_the_plan_of_a_window_from_round_to_round(cast: Cast) -> None:
    await cast.join(alpha=1)
    await follow(cast, "shockwave", rounds=10, round_s=60)
    await cast.begin(1, elastic={"min": 1, "max": 1})
    await cast.harness.submit("other", elastic={"min": 1, "max": 1})
    await cast.turn()
    first = (await policy_state(cast))["state"]
    jobs = {name: first["jobs"][(await cast.job(name)).id] for name in ("job", "other")}
    assert len(first["jobs"]) == 2
    assert first["left_s"] == 600.0
    assert 0 < sum(one["planned_s"] for one in jobs.values()) <= 600.0
    # Two jobs on a slot: each is to end within twice its time alone.
    assert jobs["other"]["target_s"] == pytest.approx(1200.0)
    cast.harness.clock.skipped += timedelta(seconds=30)
    await cast.turn()
    second = (await policy_state(cast))["state"]
    assert 560.0 < second["left_s"] <= 570.0
    ran = {name: second["jobs"][(await cast.job(name)).id] for name in jobs}
    assert ran["other"]["planned_s"] == jobs["other"]["planned_s"], "it waited"
    assert ran["job"]["planned_s"] == pytest.approx(max(0.0, jobs["job"]["planned_s"] - 30.0), abs=10.0)


async def test_optimus_fits_the_losses_that_a_job_reports(cast: Cast) -> None:
    await cast.join(alpha=1)
    await follow(cast, "optimus", convergence=0.02)
    await cast.begin(1, elastic={"min": 1, "max": 1})
    for samples in (1000, 2000, 3000, 4000):
        values = {"loss": 2 / (1 + samples / 1000)}
        await cast.trained((1, 0), 1, 64, 1000.0, samples=samples, total_samples=None)
        await cast.say((1, 0), "metrics", 1, 0, epoch=0, samples=samples, values=values)
        await cast.turn()
    losses = (await policy_state(cast))["state"]["losses"]
    assert losses == {(await cast.job()).id: [[1000, 1.0], [2000, 2 / 3], [3000, 0.5], [4000, 0.4]]}
    await cast.trained((1, 0), 1, 64, 1000.0, samples=5000, total_samples=10_000)
    await cast.turn()
    assert await policy_state(cast) == {}, "a declared length needs no losses"
