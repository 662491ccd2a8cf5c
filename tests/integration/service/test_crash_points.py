"""Wherever the service dies: what its callers begin anew comes to the same end, nothing is lost, nothing done twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.service.conftest import Harness, harness_of, make_settings
from tests.integration.service.crashing import Drawn, EveryStep, Lives, check, outcome, world_of
from tests.integration.service.lives import JOBS, Script
from tests.integration.service.lives_of_things import PRICE, THINGS, Instant, what_if

SCRIPTS = (*JOBS, *THINGS)


@pytest_asyncio.fixture
async def harness(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    given_settings = make_settings(
        database_url, redis_url, f"file://{tmp_path}/storage", usd_per_slot_h={"cpu": PRICE}
    )
    async with harness_of(given_settings) as made:
        made.scheduler = replace(made.scheduler, simulator=Instant())
        yield made


async def told(harness: Harness, script: Script, lives: Lives) -> tuple[str, int, int]:
    """Return the outcome of the script, and the numbers of steps and deaths."""
    async with world_of(harness, lives) as world:
        await script(world)
        await check(world)
        return await outcome(world), world.mortal.steps, world.mortal.crashes


_calm: dict[Script, tuple[str, int]] = {}


async def undisturbed(harness: Harness, script: Script) -> tuple[str, int]:
    """Return the outcome of the script without deaths, and its number of steps."""
    if script not in _calm:
        outcome_, steps, _ = await told(harness, script, Drawn())
        _calm[script] = outcome_, steps
    return _calm[script]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda one: one.__name__)
async def test_a_death_at_every_step_of_every_action(harness: Harness, script: Script) -> None:
    calm, steps = await undisturbed(harness, script)
    stormy, _, crashes = await told(harness, script, EveryStep())
    assert crashes > steps / 2, "what is begun anew has less to do, but not nothing"
    assert stormy == calm


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.sampled_from(SCRIPTS), lives=st.lists(st.integers(0, 80), min_size=1, max_size=6))
async def test_deaths_anywhere(harness: Harness, script: Script, lives: list[int]) -> None:
    calm, _ = await undisturbed(harness, script)
    stormy, _, _ = await told(harness, script, Drawn(lives))
    assert stormy == calm


@pytest.mark.slow
async def test_one_death_at_each_step_of_a_question_and_its_answer(harness: Harness) -> None:
    """More than a few in a row, and the question is not taken up again: it may be what kills whoever does."""
    calm, steps = await undisturbed(harness, what_if)
    for step in range(steps):
        stormy, _, crashes = await told(harness, what_if, Drawn([step]))
        assert (stormy, crashes) == (calm, 1), f"died at step {step}"


async def test_a_resize_that_is_asked_for_again_is_told_of_once(harness: Harness) -> None:
    await harness.submit(elastic={"min": 1, "max": 4})
    for slots in (2, 2, None, None):
        assert (await harness.post("jobs/job/resize", {"slots": slots})).status_code == 202
    page = (await harness.client.get("/api/v1/jobs/job/events")).json()
    assert [one["data"] for one in page["items"] if one["kind"] == "resize_requested"] == [
        {"slots": 2},
        {"slots": None},
    ]


async def test_a_resume_that_is_asked_for_again_is_no_mistake(harness: Harness) -> None:
    await harness.submit()
    await harness.post("jobs/job/pause")
    for _ in range(2):
        response = await harness.post("jobs/job/resume")
        assert (response.status_code, response.json()["state"]) == (202, "PENDING")
    await harness.post("jobs/job/cancel")
    assert (await harness.post("jobs/job/resume")).status_code == 409


async def test_a_budget_that_is_set_again_is_no_conflict_with_itself(harness: Harness) -> None:
    for usd, version, status in ((10, None, 201), (20, "1", 200), (20, "1", 200), (30, "1", 412)):
        response = await harness.client.put(
            "/api/v1/budgets/b",
            json={"usd": usd, "period": "day"},
            headers={} if version is None else {"If-Match": f'"{version}"'},
        )
        assert response.status_code == status, response.text
    assert (await harness.client.get("/api/v1/budgets/b")).json()["version"] == 2
