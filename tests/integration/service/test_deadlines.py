"""Deadlines over the real service: the verdict at submit, refused jobs, and slots that are guaranteed."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from headway.contract.views.forecasts import DeadlineVerdict, PlanView
from headway.contract.views.jobs import JobState, JobView
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, make_settings
from tests.integration.service.test_life_of_a_job import progress, start, stop

TOTAL = 320_000
"""Samples of every job: 1,000 seconds on one slot."""


def goal(harness: Harness, left_s: float, **fields: Any) -> dict[str, Any]:
    return {"deadline": (harness.clock.now() + timedelta(seconds=left_s)).isoformat(), **fields}


async def measured(harness: Harness, agent: Agent, name: str, slots: int, step_s: float) -> None:
    """A job of the class that ran on `slots` slots to its end."""
    await harness.submit(name, elastic={"min": slots, "max": slots}, batch={"global": 32})
    run = await start(harness, agent, name)
    told = progress(run.generation, TOTAL, 200, step_s)
    told["message"]["total_samples"] = TOTAL
    await agent.report(entry("rank_message", run, **told))
    await stop(agent, run, 0, completed=True)
    assert (await harness.job(name)).state is JobState.SUCCEEDED


async def known_class(harness: Harness) -> Agent:
    """A node of four slots, and a class of jobs that was measured on one, two and four."""
    agent = await harness.join(slots=4)
    for slots, step_s in ((1, 0.1), (2, 0.055), (4, 0.03)):
        await measured(harness, agent, f"gpt-{slots}", slots, step_s)
    return agent


async def submitted(harness: Harness, name: str, key: str | None = None, **spec: Any) -> httpx.Response:
    body = {
        "name": name,
        "run": "python -V",
        "elastic": {"min": 1, "max": 4},
        "batch": {"global": 32},
        **spec,
    }
    headers = {} if key is None else {"Idempotency-Key": key}
    return await harness.client.post("/api/v1/jobs", json=body, headers=headers)


async def accepted(harness: Harness, name: str, key: str | None = None, **spec: Any) -> JobView:
    response = await submitted(harness, name, key, **spec)
    assert response.status_code in {200, 201}, response.text
    return JobView.model_validate_json(response.content)


async def plan(harness: Harness, name: str, **spec: Any) -> PlanView:
    body = {
        "name": name,
        "run": "python -V",
        "elastic": {"min": 1, "max": 4},
        "batch": {"global": 32},
        **spec,
    }
    response = await harness.post("plans", body)
    assert response.status_code == 200, response.text
    return PlanView.model_validate_json(response.content)


async def tight(harness: Harness, **fields: Any) -> dict[str, Any]:
    """A goal whose deadline three slots meet with 90 %, and two do not."""
    sizes = {one.slots: one.time_p90_s or 0.0 for one in (await plan(harness, "gpt-8")).configurations}
    assert sizes[2] > sizes[3]
    return goal(harness, (sizes[2] + sizes[3]) / 2, **fields)


async def test_the_size_that_meets_a_deadline_is_guaranteed(harness: Harness) -> None:
    await known_class(harness)
    wanted = await tight(harness)
    found = (await plan(harness, "gpt-8", goal=wanted)).deadline
    assert found is not None
    assert (found.verdict, found.slots, found.device_kind) == (DeadlineVerdict.FEASIBLE, 3, "cpu")
    await accepted(harness, "gpt-7")
    job = await accepted(harness, "gpt-8", goal=wanted)
    assert "is met on 3 cpu slots" in job.message
    await harness.turn()
    sizes = [(await harness.job(name)).size for name in ("gpt-7", "gpt-8")]
    assert sizes == [1, 3]


async def test_without_its_deadline_the_job_would_share_evenly(harness: Harness) -> None:
    await known_class(harness)
    for name in ("gpt-7", "gpt-8"):
        await accepted(harness, name)
    await harness.turn()
    assert [(await harness.job(name)).size for name in ("gpt-7", "gpt-8")] == [2, 2]


async def test_an_infeasible_deadline_is_refused_on_request_and_tried_otherwise(harness: Harness) -> None:
    await known_class(harness)
    late = goal(harness, 200)
    found = (await plan(harness, "gpt-8", goal=late)).deadline
    assert found is not None
    assert found.verdict is DeadlineVerdict.INFEASIBLE
    assert found.nearest_deadline is not None
    assert found.nearest_deadline > datetime.fromisoformat(late["deadline"])
    refused = await submitted(harness, "gpt-8", "key", goal={**late, "admit": "reject"})
    assert (refused.status_code, refused.json()["code"]) == (409, "deadline_refused")
    assert (await harness.client.get("/api/v1/jobs/gpt-8")).status_code == 404
    job = await accepted(harness, "gpt-8", goal=late)
    assert "nearest feasible deadline" in job.message
    await harness.turn()
    assert (await harness.job("gpt-8")).size >= 1


async def test_the_nearest_size_is_told_beyond_what_the_job_file_allows(harness: Harness) -> None:
    await known_class(harness)
    wanted = await tight(harness)
    found = (await plan(harness, "gpt-8", goal=wanted, elastic={"min": 1, "max": 1})).deadline
    assert found is not None
    assert (found.verdict, found.nearest_slots) == (DeadlineVerdict.INFEASIBLE, 3)


async def test_an_accepted_job_is_returned_again_when_its_deadline_is_no_longer_feasible(
    harness: Harness,
) -> None:
    await known_class(harness)
    wanted = await tight(harness, admit="reject")
    first = await accepted(harness, "gpt-8", "key", goal=wanted)
    # The same slots cannot be promised twice.
    other = await submitted(harness, "gpt-9", goal=wanted)
    assert (other.status_code, other.json()["code"]) == (409, "deadline_refused")
    assert "gpt-8" in other.json()["detail"]
    assert (await accepted(harness, "gpt-8", "key", goal=wanted)).id == first.id


async def test_two_simultaneous_submits_are_not_promised_the_same_slots(
    harness: Harness, database_url: str, redis_url: str, tmp_path: Path
) -> None:
    await known_class(harness)
    wanted = await tight(harness, admit="reject")
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}/storage")
    async with harness_of(settings) as other:
        answers = await asyncio.gather(
            *(submitted(api, f"gpt-{8 + at}", goal=wanted) for at, api in enumerate([harness, other] * 4))
        )
    assert sorted(one.status_code for one in answers) == [201, *[409] * 7]
    assert {one.json()["code"] for one in answers if one.status_code == 409} == {"deadline_refused"}


async def test_two_simultaneous_submits_that_are_tried_are_told_that_nothing_is_promised(
    harness: Harness,
) -> None:
    """Both see the same free slots, and only one of them meets its deadline."""
    await known_class(harness)
    wanted = await tight(harness)
    promised = (await plan(harness, "gpt-8", goal={**wanted, "admit": "reject"})).deadline
    assert promised is not None
    assert promised.verdict is DeadlineVerdict.FEASIBLE
    assert "no promise" not in promised.message
    jobs = await asyncio.gather(*(accepted(harness, name, goal=wanted) for name in ("gpt-8", "gpt-9")))
    assert all("no promise" in one.message for one in jobs if "is met" in one.message)
    assert any("is met" in one.message for one in jobs)
    await harness.turn()
    assert sorted([(await harness.job(one.id)).size for one in jobs]) == [1, 3]


async def test_a_later_submit_is_not_promised_the_slots_of_an_earlier_one(harness: Harness) -> None:
    """Its deadline is earlier, and there is time for only one of them."""
    await known_class(harness)
    whole = {"elastic": {"min": 4, "max": 4}}
    alone = (await plan(harness, "gpt-8", **whole, goal=goal(harness, 90_000))).deadline
    assert alone is not None
    assert alone.finish_p90_at is not None
    takes_s = (alone.finish_p90_at - harness.clock.now()).total_seconds()
    await accepted(harness, "gpt-8", **whole, goal=goal(harness, 1.9 * takes_s, admit="reject"))
    other = await submitted(harness, "gpt-9", **whole, goal=goal(harness, 1.2 * takes_s, admit="reject"))
    assert (other.status_code, other.json()["code"]) == (409, "deadline_refused"), other.text
    assert "gpt-8" in other.json()["detail"]
    await harness.turn()
    assert (await harness.job("gpt-8")).size == 4


async def test_a_promise_from_a_later_time_on_precedes_jobs_that_start_meanwhile(harness: Harness) -> None:
    agent = await known_class(harness)
    half, whole = ({"elastic": {"min": size, "max": size}} for size in (2, 4))
    await accepted(harness, "gpt-7", **half)
    run = await start(harness, agent, "gpt-7")
    told = progress(run.generation, TOTAL // 2, 200, 0.055)
    told["message"]["total_samples"] = TOTAL
    await agent.report(entry("rank_message", run, **told))
    found = (await plan(harness, "gpt-8", **whole, goal=goal(harness, 90_000))).deadline
    assert found is not None
    assert found.finish_p90_at is not None
    assert found.verdict is DeadlineVerdict.FEASIBLE_FROM
    ends_s = (found.finish_p90_at - harness.clock.now()).total_seconds()
    await accepted(harness, "gpt-8", **whole, goal=goal(harness, ends_s + 5, admit="reject"))
    await accepted(harness, "gpt-9", **half, priority=90)
    meanwhile = await start(harness, agent, "gpt-9")
    await stop(agent, run, 0, completed=True)
    await harness.turn()
    assert (await harness.job("gpt-9")).state is JobState.RESIZING
    await stop(agent, meanwhile)
    await harness.turn()
    assert [(await harness.job(name)).size for name in ("gpt-8", "gpt-9")] == [4, 0]


async def test_slots_that_become_free_in_time_are_feasible_from_then_on(harness: Harness) -> None:
    agent = await harness.join(slots=1)
    await measured(harness, agent, "gpt-1", 1, 0.1)
    await accepted(harness, "gpt-7", elastic={"min": 1, "max": 1})
    await start(harness, agent, "gpt-7")
    found = (await plan(harness, "gpt-8", elastic={"min": 1, "max": 1}, goal=goal(harness, 9_000))).deadline
    assert found is not None
    assert found.starts_at is not None
    assert (found.verdict, found.slots) == (DeadlineVerdict.FEASIBLE_FROM, 1)
    assert 1_000 < (found.starts_at - harness.clock.now()).total_seconds() < 5_000


async def test_slots_of_a_job_that_starts_or_ends_are_promised(harness: Harness) -> None:
    await known_class(harness)
    wanted = await tight(harness, admit="reject")
    await accepted(harness, "gpt-7")
    await harness.turn()
    first = await harness.job("gpt-7")
    assert (first.state, first.size) == (JobState.STARTING, 4)
    await accepted(harness, "gpt-8", goal=wanted)
    for name in ("gpt-7", "gpt-8"):
        await harness.post(f"jobs/{name}/cancel", {})
    await harness.turn()
    assert (await harness.job("gpt-7")).state is JobState.CANCELLING
    found = (await plan(harness, "gpt-9", elastic={"min": 4, "max": 4}, goal=wanted)).deadline
    assert found is not None
    assert (found.verdict, found.slots) == (DeadlineVerdict.FEASIBLE, 4)


@pytest.mark.parametrize(("admit", "status"), [("try", 201), ("reject", 409)])
async def test_without_a_forecast_nothing_is_promised(harness: Harness, admit: str, status: int) -> None:
    await harness.join()
    response = await submitted(harness, "new", goal=goal(harness, 9_000, admit=admit))
    assert response.status_code == status, response.text
    found = (await plan(harness, "new-2", goal=goal(harness, 9_000))).deadline
    assert found is not None
    assert (found.verdict, found.slots) == (DeadlineVerdict.UNKNOWN, None)


async def test_a_deadline_that_is_over_is_refused(harness: Harness) -> None:
    await known_class(harness)
    late = goal(harness, -60)
    for answer in (
        await submitted(harness, "gpt-8", goal=late),
        await submitted(harness, "gpt-8", goal={**late, "admit": "reject"}),
        await harness.post("plans", {"name": "gpt-8", "run": "python -V", "goal": late}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_field"), answer.text
        assert answer.json()["errors"][0]["field"] == "goal.deadline"
    assert (await harness.client.get("/api/v1/jobs/gpt-8")).status_code == 404


async def test_a_job_without_a_deadline_has_no_outlook(harness: Harness) -> None:
    await harness.join()
    assert (await plan(harness, "job")).deadline is None
