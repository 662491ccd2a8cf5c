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

WHOLE = {**ADAPTIVE, "max_local": 512}
"""Steps of one pass, so that a larger batch takes little longer."""


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
        "HEADWAY_EXIT_WITHIN_S": "600",
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


async def test_a_start_keeps_the_batch(cast: Cast) -> None:
    await cast.join(alpha=2)
    first = await cast.begin(1, batch=ADAPTIVE)
    assert (first.global_batch, first.start_global_batch, first.max_global_batch) == (64, None, 512)
    assert (first.max_local_batch, first.lr_rule) == (32, "adascale")
    await cast.harness.post("jobs/job/resize", {"slots": 1})
    await cast.trained((1, 0), 1, 64, 1000.0)
    await cast.turn()
    await changed(cast, 2, 128)
    await cast.harness.post("jobs/job/pause")
    await cast.deliver()
    await cast.stopped(1, 2)
    assert (await cast.job()).state is JobState.PAUSED
    await cast.harness.post("jobs/job/resume")
    await cast.turn()
    run = cast.started(3)["alpha"]
    assert (run.joins, run.global_batch, run.start_global_batch) == (False, 64, 128)


async def grown(cast: Cast) -> None:
    """A job of one slot tries 128 samples, and grows to two slots with a batch of its own."""
    await cast.join(alpha=2)
    await cast.begin(1, batch=WHOLE)
    await cast.harness.post("jobs/job/resize", {"slots": 1})
    await cast.trained((1, 0), 1, 64, 640.0, local_batch=64, accumulation=1)
    await cast.turn()
    await changed(cast, 2, 128)
    await cast.trained((1, 0), 2, 128, 1200.0, local_batch=128, accumulation=1)
    await cast.resize(2)


async def test_a_size_and_its_batch_change_at_one_boundary(cast: Cast) -> None:
    await grown(cast)
    run = cast.started(3)["alpha"]
    assert (run.joins, run.global_batch, run.start_global_batch) == (True, 64, 256)
    await cast.ready((3, 1))
    assert cast.orders(3)["alpha"].batch == BatchOrder(global_batch=256)
    await changed(cast, 3, 256)
    job = await cast.job()
    assert (job.size, job.generation, job.progress.global_batch) == (2, 3, 256)
    event = (await cast.events("batch_changed"))[-1]
    assert (event["data"]["from"], event["data"]["to"]) == (128, 256)
    assert event["data"]["reason"].endswith("; batch 256 at 2 slots")
    assert (await cast.events("switch"))[-1]["message"].startswith(
        "grew from 1 to 2 slots in place: batch 256"
    )
    await cast.turn()
    assert cast.orders(4) == {}, "it goes on from there"
    explained = (await cast.harness.client.get("/api/v1/jobs/job/explain")).json()
    assert explained["message"].endswith("; batch 256 at 2 slots")


async def test_a_restart_keeps_the_batch_of_its_new_size(cast: Cast) -> None:
    await grown(cast)
    await cast.ready((3, 1))
    await changed(cast, 3, 256)
    await cast.trained((1, 0), 3, 256, 2000.0, local_batch=128, accumulation=1)
    await cast.harness.post("jobs/job/pause")
    await cast.deliver()
    await cast.stopped(1, 3)
    await cast.harness.post("jobs/job/resume")
    await cast.turn()
    (run,) = cast.started(4).values()
    assert not run.joins
    assert run.start_global_batch in {256, 512}, "the same, or at most twice the largest that was tried"
    (started,) = [one for one in await cast.events("allocate") if one["generation"] == 4]
    assert started["data"]["global_batch"] == run.start_global_batch
    assert (await cast.job()).progress.global_batch == run.start_global_batch


@pytest.mark.parametrize(("file", "expected"), [(64, 256), (32, 64)], ids=["alike", "another reference"])
async def test_a_job_starts_with_what_its_class_has_tried(cast: Cast, file: int, expected: int) -> None:
    await grown(cast)
    await cast.join(beta=1)
    batch = {**WHOLE, "global": file}
    await cast.harness.submit("job-2", batch=batch, elastic={"max": 1}, resources={"devices": ["cpu"]})
    await cast.turn()
    (run,) = cast.started(1, "job-2").values()
    assert (run.global_batch, run.start_global_batch) == (file, expected)


async def test_without_a_rule_for_the_learning_rate_the_batch_stays_and_explain_says_so(cast: Cast) -> None:
    await begun(cast, lr_rule="auto")
    await cast.trained((1, 0), 1, 64, 1000.0, lr_rule="none")
    await cast.turn()
    job = await cast.job()
    assert (job.state, job.progress.lr_rule) == (JobState.RUNNING, "none")
    assert cast.orders(2) == {}
    explained = (await cast.harness.client.get("/api/v1/jobs/job/explain")).json()
    assert "lr_rule: none" in explained["message"]


async def earlier(cast: Cast, name: str, batch: int, samples: int) -> None:
    """An earlier job of the class: its loss fell to 1 / k after k times so many samples, in steps of one batch."""
    await cast.harness.submit(name, batch={**ADAPTIVE, "max_local": None})
    await cast.turn()
    (run,) = cast.started(1, name).values()
    await cast.news("alpha", cast.entry(1, "ranks_started", how="zygote"))
    born = (1, run.ranks[0].rank)
    await cast.say(born, "first_step", 1, samples=32, live=True)
    await cast.trained(born, 1, batch, 1000.0, samples=12 * samples, lr_rule="adascale")
    for k in range(1, 12):
        await cast.say(born, "metrics", 1, epoch=0, samples=k * samples, values={"loss": 1 / k})
    await cast.harness.post(f"jobs/{name}/cancel", {"force": True})
    await cast.deliver()
    await cast.stopped(1, 1)


@pytest.mark.parametrize(("wide", "adapts"), [(20_000, False), (3_700, True)], ids=["worse", "as predicted"])
async def test_the_losses_of_earlier_jobs_decide_whether_a_larger_batch_is_tried(
    cast: Cast, wide: int, adapts: bool
) -> None:
    """At a noise scale of 100 samples, 512 samples of a step should need 3.7 times as many as 64 do."""
    await cast.join(alpha=1)
    await earlier(cast, "job-1", 64, 1_000)
    await earlier(cast, "job-2", 512, wide)
    await cast.begin(1, batch=ADAPTIVE, elastic={"min": 1, "max": 1})
    await cast.trained((1, 0), 1, 64, 1000.0, gradient_var=100.0)
    await cast.turn()
    assert bool(cast.orders(2)) is adapts
    explained = (await cast.harness.client.get("/api/v1/jobs/job/explain")).json()["message"]
    assert ("by the losses of its class" in explained) is not adapts


@pytest.mark.parametrize("elastic", [{"max": 1}, {"max": 2, "resize": "restart"}])
async def test_a_job_without_changes_in_place_says_that_it_has_no_copies(
    cast: Cast, elastic: dict[str, Any]
) -> None:
    await cast.join(alpha=2)
    job = await cast.harness.submit(elastic={**elastic, "redundancy": "neighbour"})
    assert "does not act on elastic.redundancy" in job.message
    live = await cast.harness.submit("live", elastic={"max": 2, "redundancy": "neighbour"})
    assert "does not act on" not in live.message


async def test_a_job_that_restarts_says_that_its_batch_stays(cast: Cast) -> None:
    await cast.join(alpha=1)
    job = await cast.harness.submit(batch=ADAPTIVE, elastic={"resize": "restart"})
    assert "does not act on batch.policy adaptive without elastic.resize live" in job.message
    live = await cast.harness.submit("live", batch=ADAPTIVE)
    assert "does not act on" not in live.message
