"""Structured partial back-propagation in the real service: what ranks are told, and the speeds that follow from the depth."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from headway.contract.views.decisions import ExplanationView
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness, entry
from tests.integration.service.test_forecasts import by_slots, plan
from tests.integration.service.test_life_of_a_job import progress, start

HALF = {"partial_backprop": {"min_depth": 0.5}}
LEARNT = {"min": 1, "max": 2}


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    return Cast(harness)


async def taught(harness: Harness, **elastic: Any) -> None:
    """Two jobs of the class `gpt` have trained: one on one slot, one on two. 32 samples took 0.1 s and 0.05 s."""
    agent = await harness.join(slots=3)
    for number, (slots, step_s) in enumerate([(1, 0.1), (2, 0.05)], 1):
        name = f"gpt-{number}"
        own = elastic if slots > 1 else {}
        await harness.submit(name, elastic={"min": slots, "max": slots, **own}, batch={"global": 32})
        run = await start(harness, agent, name)
        said = progress(run.generation, 2_000, 200, step_s)["message"] | {"local_batch": 32 // slots}
        await agent.report(entry("rank_message", run, message=said))


async def speeds(harness: Harness, **elastic: Any) -> dict[int, float]:
    """Predicted samples per second of a job of the class, by slots."""
    found = by_slots(
        (await plan(harness, "gpt-9", elastic={**LEARNT, **elastic}, batch={"global": 32})).configurations
    )
    return {slots: one.goodput or 0.0 for slots, one in found.items()}


async def test_jobs_that_trained_whole_teach_one_that_goes_half_way(harness: Harness) -> None:
    await taught(harness)
    whole, half = await speeds(harness), await speeds(harness, **HALF)
    assert whole[2] == pytest.approx(640, rel=0.1)
    assert half[1] == pytest.approx(whole[1])
    assert half[2] / whole[2] == pytest.approx(1 / 0.8, rel=0.02)


async def test_jobs_that_went_half_way_teach_a_whole_one(harness: Harness) -> None:
    """A job that is 0.8 of the time faster by its depth would not be as fast without it."""
    await taught(harness, **HALF)
    whole, half = await speeds(harness), await speeds(harness, **HALF)
    assert half[2] == pytest.approx(640, rel=0.1)
    assert half[2] / whole[2] == pytest.approx(1 / 0.8, rel=0.02)


async def test_configurations_show_the_mean_depth(harness: Harness) -> None:
    await harness.join(slots=2)
    for elastic, depths in ((HALF, {1: 1.0, 2: 0.75}), ({}, {1: None, 2: None})):
        found = by_slots((await plan(harness, "gpt-9", elastic={**LEARNT, **elastic})).configurations)
        assert {slots: one.depth for slots, one in found.items()} == depths


async def test_ranks_are_told_and_the_explanation_says_it(cast: Cast) -> None:
    await cast.join(alpha=2)
    first = await cast.begin(1, elastic={**LEARNT, **HALF}, batch={"global": 64})
    assert first.env["HEADWAY_MIN_DEPTH"] == "0.5"
    await cast.trained((1, 0), 1, 64, 1000.0, gradient_sqr=None, gradient_var=None)
    await cast.turn()
    response = await cast.harness.client.get("/api/v1/jobs/job/explain")
    options = ExplanationView.model_validate_json(response.content).options
    assert {one.slots: one.depth for one in options} == {1: 1.0, 2: 0.75}
    view = await cast.job()
    assert view.spec.elastic.min_depth == 0.5


async def test_it_is_off_by_default(cast: Cast) -> None:
    await cast.join(alpha=1)
    assert "HEADWAY_MIN_DEPTH" not in (await cast.begin(1)).env


async def test_settings_that_contradict_it_are_refused_or_named(harness: Harness) -> None:
    adaptive = {"policy": "adaptive", "global": 64, "max_global": 512}
    body = {"name": "job", "run": "python -V", "elastic": {**LEARNT, **HALF}, "batch": adaptive}
    refused = await harness.post("jobs", body)
    assert refused.status_code == 422
    assert "partial_backprop" in refused.text
    alone = await harness.submit(elastic={"max": 1, **HALF})
    assert "does not act on elastic.partial_backprop with elastic.max 1" in alone.message
