"""Changing the global batch of a job that runs, over the real API, Postgres and Redis, with scripted agents."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from headway.contract.agents import BatchOrder
from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness

ADAPTIVE = {"policy": "adaptive", "global": 64, "max_global": 512, "max_local": 32, "lr_rule": "adascale"}


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    return Cast(harness)


async def begun(cast: Cast, *, slots: int = 1, **batch: Any) -> None:
    await cast.join(alpha=slots)
    await cast.begin(slots, batch={**ADAPTIVE, **batch}, elastic={"min": slots, "max": slots})


async def changed(cast: Cast, generation: int, batch: int) -> None:
    """The ranks follow the order."""
    await cast.switch(generation)
    said = {"samples": 64_000, "global_batch": batch, "lr_factor": 1.5, "cause": "ordered by the service"}
    await cast.say((1, 0), "batch_changed", generation, **said)


async def test_a_larger_batch_is_tried_in_place(cast: Cast) -> None:
    await begun(cast, slots=2)
    await cast.trained((1, 0), 1, 64, 1000.0)
    assert (await cast.job()).progress.global_batch == 64
    await cast.turn()
    job = await cast.job()
    assert (job.state, job.reason, job.generation) == (JobState.RESIZING, Reason.BETTER_BATCH, 1)
    assert cast.members(2) == {(1, 0): 0, (1, 1): 1}, "the same members"
    assert cast.orders(2)["alpha"].batch == BatchOrder(global_batch=128)
    assert cast.started(2) == {}
    await changed(cast, 2, 128)
    job = await cast.job()
    assert (job.state, job.generation, job.size) == (JobState.RUNNING, 2, 2)
    assert job.progress.global_batch == 128
    (event,) = await cast.events("batch_changed")
    data = event["data"]
    assert (data["from"], data["to"], data["lr_factor"]) == (64, 128, 1.5)
    assert data["reason"].startswith(
        "takes 128 samples a step instead of 64: tried, since the noise scale is"
    )
    assert event["message"].endswith("the learning rate is 1.5 times the script's")
    assert (await cast.events("switch"))[0]["message"].startswith("changed the batch in place: paused")
    await cast.turn()
    assert cast.orders(3) == {}, "the new batch was not measured yet"


async def test_a_trial_in_vain_goes_back_and_is_not_repeated(cast: Cast) -> None:
    await begun(cast)
    await cast.trained((1, 0), 1, 64, 1000.0)
    await cast.turn()
    await changed(cast, 2, 128)
    await cast.trained((1, 0), 2, 128, 1020.0)
    await cast.turn()
    assert cast.orders(3)["alpha"].batch == BatchOrder(global_batch=64)
    await changed(cast, 3, 64)
    await cast.trained((1, 0), 3, 64, 1000.0)
    await cast.turn()
    assert (await cast.job()).state is JobState.RUNNING
    assert cast.orders(4) == {}


@pytest.mark.parametrize(
    "missing",
    [{"steps": 99}, {"gradient_sqr": None}, {"max_global_batch": None}, {"max_global_batch": 64}],
    ids=str,
)
async def test_nothing_is_changed_without_evidence(cast: Cast, missing: dict[str, Any]) -> None:
    await begun(cast)
    await cast.trained((1, 0), 1, 64, 1000.0, **missing)
    await cast.turn()
    assert (await cast.job()).state is JobState.RUNNING
    assert cast.orders(2) == {}


async def test_off_by_default(cast: Cast) -> None:
    await cast.join(alpha=1)
    first = await cast.begin(
        1,
        batch={"global": 64, "max_local": 32, "lr_rule": "sqrt"},
        elastic={"max": 1},
        trackers=["tensorboard", "mlflow"],
        env={"THREADS": "2"},
    )
    assert first.env == {
        "THREADS": "2",
        "HEADWAY_PROJECT": "default",
        "HEADWAY_TRACKERS": "tensorboard,mlflow",
    }
    sent = (first.global_batch, first.max_global_batch, first.max_local_batch, first.lr_rule)
    assert sent == (64, None, 32, "none")
    await cast.trained((1, 0), 1, 64, 1000.0)
    await cast.turn()
    assert cast.orders(2) == {}


async def test_a_loss_during_the_change_takes_the_batch_along(cast: Cast) -> None:
    """Some ranks may have changed already: the next order decides for all."""
    await begun(cast, slots=2)
    await cast.trained((1, 0), 1, 64, 1000.0)
    await cast.turn()
    await cast.die((1, 1))
    order = cast.orders(3)["alpha"]
    assert (order.lost, order.batch) == (True, BatchOrder(global_batch=128))
    await changed(cast, 3, 128)
    (event,) = await cast.events("batch_changed")
    assert event["data"]["reason"] == "ordered by the service"
    assert (await cast.job()).progress.global_batch == 128


async def test_newcomers_and_starts_keep_the_batch(cast: Cast) -> None:
    await cast.join(alpha=2)
    first = await cast.begin(1, batch=ADAPTIVE)
    assert (first.global_batch, first.start_global_batch, first.max_global_batch) == (64, None, 512)
    assert (first.max_local_batch, first.lr_rule) == (32, "adascale")
    await cast.harness.post("jobs/job/resize", {"slots": 1})
    await cast.trained((1, 0), 1, 64, 1000.0)
    await cast.turn()
    await changed(cast, 2, 128)
    await cast.resize(2)
    run = cast.started(3)["alpha"]
    assert (run.global_batch, run.start_global_batch) == (64, 128)
    await cast.ready((3, 1))
    assert cast.orders(3)["alpha"].batch == BatchOrder(global_batch=128)
    await cast.switch(3)
    await cast.harness.post("jobs/job/pause")
    await cast.deliver()
    await cast.stopped(1, 3)
    assert (await cast.job()).state is JobState.PAUSED
    await cast.harness.post("jobs/job/resume")
    await cast.turn()
    run = cast.started(4)["alpha"]
    assert (run.joins, run.global_batch, run.start_global_batch) == (False, 64, 128)


async def test_a_job_that_restarts_says_that_its_batch_stays(cast: Cast) -> None:
    await cast.join(alpha=1)
    job = await cast.harness.submit(batch=ADAPTIVE, elastic={"resize": "restart"})
    assert "does not act on batch.policy adaptive without elastic.resize live" in job.message
    live = await cast.harness.submit("live", batch=ADAPTIVE)
    assert "does not act on" not in live.message
