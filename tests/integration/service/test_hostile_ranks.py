"""Whatever a script prints or reports, its node's reports are taken in and every other job goes on."""

from __future__ import annotations

from typing import Any

import pytest

from headway.contract.views.jobs import JobState, Reason
from tests.integration.service.conftest import Agent, Harness, entry, run_of


async def started(harness: Harness) -> tuple[Agent, Any]:
    agent = await harness.join()
    await harness.submit()
    await harness.turn()
    run = run_of(await agent.commands())
    await agent.report(entry("ranks_started", run, how="spawn"))
    return agent, run


def said(kind: str, **fields: Any) -> dict[str, Any]:
    return {"message": {"type": kind, "rank": 0, "generation": 1, "at_s": 1e9, **fields}}


async def still_works(harness: Harness, agent: Agent) -> None:
    """Reports, reads and rounds all pass by the job."""
    await agent.report()
    assert (await harness.job()).state is JobState.RUNNING
    await harness.submit("other")
    await harness.turn()
    assert run_of(await agent.commands()).job_name == "other"


@pytest.mark.parametrize(
    "hostile",
    [
        said("metrics", epoch=0, samples=1, values={"loss": None}),
        said("metrics", epoch=0, samples=1, values={"lo\0ss": 1.0}),
        said("metrics", epoch=0, samples=1, values=[1, 2]),
        said("metrics", epoch=2**40, samples=1, values={"loss": 1.0}),
        said("restored", samples="many", from_generation=0),
        said("completed", samples=10**30),
        said("first_step", samples=1) | {"at_s": 1e300},
        said("a_kind_of_next_year"),
        {"message": {}},
    ],
)
async def test_a_message_that_makes_no_sense_is_noted(harness: Harness, hostile: dict[str, Any]) -> None:
    agent, run = await started(harness)
    await agent.report(entry("rank_message", run, **hostile))
    await still_works(harness, agent)


async def test_measurements_beyond_reason_do_not_disturb_a_round(harness: Harness) -> None:
    agent, run = await started(harness)
    for step_s_sum in (5e-324, 1e-300, 1e10):
        progress = said(
            "progress",
            epoch=0,
            samples=1,
            total_samples=None,
            steps=20,
            step_s_sum=step_s_sum,
            step_s_squares=0.0,
            global_batch=2**31 - 1,
            local_batch=1,
            accumulation=1,
        )
        await agent.report(entry("rank_message", run, **progress))
    await still_works(harness, agent)


async def test_a_loss_of_nan_is_left_out_and_the_rest_is_kept(harness: Harness) -> None:
    agent, run = await started(harness)
    values = {"loss": None, "accuracy": 0.5}  # what becomes of NaN in JSON
    await agent.report(entry("rank_message", run, **said("metrics", epoch=0, samples=1, values=values)))
    assert (await harness.job()).progress.metrics == {"accuracy": 0.5}
    await still_works(harness, agent)


@pytest.mark.parametrize("number", [-1, 0, 35, 64, 4000])
async def test_a_rank_killed_by_a_signal_without_a_name(harness: Harness, number: int) -> None:
    agent, run = await started(harness)
    await agent.report(entry("rank_exited", run, rank=0, signal=number), entry("released", run))
    job = await harness.job()
    assert (job.state, job.reason) == (JobState.RECOVERING, Reason.RANK_LOST)


async def test_last_lines_that_are_no_text(harness: Harness) -> None:
    agent, run = await started(harness)
    tail = ["\x00\x01binary", "\x1b[31mred", "�"]
    await agent.report(entry("rank_exited", run, rank=0, exit_code=1, log_tail=tail), entry("released", run))
    job = await harness.job()
    assert job.state is JobState.FAILED
    assert "binary" in job.message


async def test_a_reason_of_a_failed_start_that_is_no_text(harness: Harness) -> None:
    agent, run = await started(harness)
    await agent.report(
        entry("start_failed", run, message="cannot run \0", retryable=False), entry("released", run)
    )
    job = await harness.job()
    assert (job.state, job.reason) == (JobState.FAILED, Reason.START_FAILED)


@pytest.mark.parametrize(
    "body",
    [
        {"name": "job", "run": "python \0"},
        {"name": "job", "run": "x", "env": {"A": "\0"}},
        {"name": "job", "run": "x", "workdir": "\0"},
        {"name": "job\n", "run": "x"},
    ],
)
async def test_a_spec_that_cannot_be_stored_is_refused(harness: Harness, body: dict[str, Any]) -> None:
    response = await harness.post("jobs", body)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_field"), response.text
