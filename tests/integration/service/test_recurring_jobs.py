"""Jobs of unknown length in a running service: ended jobs of a class, and loss curves, tell how long one takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headway.contract.agents import RunCommand
from headway.contract.views.jobs import JobState, Reason
from service.domain.policies.framework.work_left import LEAST_OWN_JOBS
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, make_settings, run_of
from tests.integration.service.test_life_of_a_job import message, stop
from tests.integration.service.test_long_run_budget import skip

ONE_SLOT: dict[str, Any] = {"elastic": {"min": 1, "max": 1}}
SPEED = 320.0
"""Samples per second of all jobs."""
LONG, SHORT = 960_000, 32_000
"""Samples of the jobs of two classes: 3,000 s and 100 s."""


@pytest_asyncio.fixture
async def harness(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    async with harness_of(
        make_settings(database_url, redis_url, f"file://{tmp_path}/storage"), api_skips=True
    ) as made:
        yield made


async def train_to_its_end(harness: Harness, agent: Agent, name: str, samples: int) -> None:
    """Run a job whose script never says how long it is, for as long as its samples take."""
    await harness.submit(name, **ONE_SLOT)
    await harness.turn()
    run, step_s = run_of(await agent.commands()), 32 / SPEED
    told = {"epoch": 0, "samples": samples, "total_samples": None, "steps": 200, "step_s_sum": 200 * step_s}
    plan = {"step_s_squares": 200 * step_s**2, "global_batch": 32, "local_batch": 32}
    await agent.report(
        entry("ranks_started", run, how="spawn"),
        entry("rank_message", run, **message("first_step", run.generation, samples=32)),
        entry("rank_message", run, **message("progress", run.generation, **told, **plan, accumulation=1)),
    )
    await skip(harness, agent, samples / SPEED)
    await agent.report(entry("rank_message", run, **message("completed", run.generation, samples=samples)))
    await stop(agent, run, exit_code=0, completed=True)
    assert (await harness.job(name)).state is JobState.SUCCEEDED


async def explained(harness: Harness, job: str) -> dict[str, Any]:
    answer = await harness.client.get(f"/api/v1/jobs/{job}/explain")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize(
    ("ended", "recurs"),
    [(LEAST_OWN_JOBS, True), (LEAST_OWN_JOBS - 1, True), (1, False)],
    ids=["known classes", "classes with few ended jobs", "new classes"],
)
async def test_of_two_equal_waiting_jobs_the_one_of_the_shorter_class_goes_first(
    harness: Harness, ended: int, recurs: bool
) -> None:
    agent = await harness.join("alpha", slots=1)
    counts = recurs and ended >= LEAST_OWN_JOBS
    for number in range(ended):
        for name, samples in ((f"long-{number}", LONG), (f"short-{number}", SHORT)):
            await train_to_its_end(harness, agent, name, samples)
    await harness.submit("busy", **ONE_SLOT)
    await harness.turn()
    busy = run_of(await agent.commands())
    long, short = ("long-9", "short-9") if recurs else ("slow-9", "quick-9")
    for name in (long, short):
        await harness.submit(name, **ONE_SLOT)
    await harness.turn()
    waits = await explained(harness, long)
    assert (waits["reason"], waits["policy"]) == (Reason.WAITING_FOR_CAPACITY, "goodput")
    assert (f"and {ended} ended jobs of its class took" in waits["message"]) == counts
    assert ("shorter jobs go first" in waits["message"]) == counts
    await skip(harness, agent, 30.0)
    await stop(agent, busy, exit_code=0, completed=True)
    await harness.turn()
    first, later = (short, long) if counts else (long, short)
    assert (await harness.job(first)).state is JobState.STARTING
    assert (await harness.job(later)).state is JobState.PENDING


async def test_ended_jobs_with_another_command_do_not_make_a_job_a_short_one(harness: Harness) -> None:
    agent = await harness.join("alpha", slots=1)
    for number in range(LEAST_OWN_JOBS):
        for name, samples in ((f"long-{number}", LONG), (f"short-{number}", SHORT)):
            await train_to_its_end(harness, agent, name, samples)
    await harness.submit("busy", **ONE_SLOT)
    await harness.turn()
    await harness.submit("long-9", **ONE_SLOT)
    await harness.submit("short-9", **ONE_SLOT, run="python train.py --epochs 1000")
    await harness.turn()
    same, other = await explained(harness, "long-9"), await explained(harness, "short-9")
    assert "ended jobs of its class took" in same["message"]
    assert "ended jobs of its class took" not in other["message"]


EPOCH = 1_000
EPOCHS = 20
"""Number of epochs for which `train_with_losses` reports."""


async def train_with_losses(agent: Agent, run: RunCommand, fall: float) -> None:
    """Report `EPOCHS` epochs at the usual speed, with a loss of 1 / (fall * epochs + 0.5)."""
    step_s = 32 / SPEED
    steps = {"steps": 200, "step_s_sum": 200 * step_s, "step_s_squares": 200 * step_s**2}
    plan = {"total_samples": None, "global_batch": 32, "local_batch": 32, "accumulation": 1}
    await agent.report(
        entry("ranks_started", run, how="spawn"),
        entry("rank_message", run, **message("first_step", run.generation, samples=32)),
    )
    for epoch in range(1, EPOCHS + 1):
        at = {"epoch": epoch, "samples": epoch * EPOCH}
        loss = {"loss": 1.0 / (fall * epoch + 0.5)}
        await agent.report(
            entry("rank_message", run, **message("progress", run.generation, **at, **steps, **plan)),
            entry("rank_message", run, **message("metrics", run.generation, **at, values=loss)),
        )


async def converged(harness: Harness, name: str) -> float:
    curve = (await harness.job(name)).progress.loss_curve
    assert curve is not None
    assert curve.converged_work is not None
    return curve.converged_work


@pytest.mark.parametrize(("fast", "slow"), [("first", "second"), ("second", "first")])
async def test_of_two_new_classes_the_one_whose_loss_converges_sooner_goes_first(
    harness: Harness, fast: str, slow: str
) -> None:
    """An ended job trained three and a half times as far as to convergence. Both others have done equal work."""
    agent = await harness.join("alpha", slots=2)
    await harness.submit("ended", **ONE_SLOT)
    await harness.turn()
    run = run_of(await agent.commands())
    await train_with_losses(agent, run, 0.25)
    await skip(harness, agent, 200.0)
    await agent.report(entry("rank_message", run, **message("completed", run.generation, samples=64_000)))
    await stop(agent, run, exit_code=0, completed=True)
    runs = {}
    for name in ("first", "second"):
        await harness.submit(name, **ONE_SLOT)
        await harness.turn()
        runs[name] = run_of(await agent.commands())
        await train_with_losses(agent, runs[name], 0.25 if name == fast else 0.025)
    assert await converged(harness, fast) == await converged(harness, "ended")
    assert await converged(harness, slow) > 1.3 * await converged(harness, fast)
    await skip(harness, agent, 200.0)
    await harness.post("nodes/alpha/drain")
    await harness.turn()
    await agent.commands()
    for run in runs.values():
        await stop(agent, run)
    await harness.join("beta", slots=1)
    await harness.turn()
    assert (await harness.job(fast)).state is JobState.STARTING
    assert (await harness.job(slow)).state is JobState.PENDING
