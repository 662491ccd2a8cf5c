"""Renting by the price of delay, over a real database: the widths, the reasons, and the return of machines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.contract.agents import RunCommand
from headway.contract.views.jobs import JobState
from service.domain.rental.rental_targets import RentalRules
from tests.integration.service.cloud import Cloud, small_offer
from tests.integration.service.conftest import Agent, Harness, entry, run_of
from tests.integration.service.test_life_of_a_job import message, stop
from tests.integration.service.test_rent import Stage

BATCH = 720_720
"""A batch that all sizes up to 16 divide evenly."""
SIZES = (1, 2, 3, 5, 8, 12, 16)
WIDTHS = {1.0: 2, 0.43: 5, 0.2: 12, 1e-6: 16}
"""Best of these sizes by mu at the speedup k^0.7 and $1 a slot: near 0.7 / (0.3 mu), at most 16."""


@pytest.fixture
def stage(harness: Harness) -> Stage:
    cloud = Cloud(harness.clock.now)
    cloud.sells.append(
        small_offer(
            harness.clock.now(),
            instance_type="single",
            devices=1,
            on_demand_usd_per_h=1.0,
            min_billed_s=60.0,
            spot_usd_per_h=None,
        )
    )
    return Stage(harness, cloud, rules=RentalRules(idle_s=0.0, max_machines=20))


async def measure(harness: Harness, agents: list[Agent], size: int) -> None:
    """Train a job of the class `gpt` on this number of single-slot hosts to its end, at the speedup k^0.7."""
    name = f"gpt-{size}"
    await harness.submit(name, elastic={"min": size, "max": size})
    await harness.turn()
    found = [
        (agent, one) for agent in agents for one in await agent.commands() if isinstance(one, RunCommand)
    ]
    assert len(found) == size
    for agent, run in found:
        await agent.report(entry("ranks_started", run, how="spawn"))
    agent, run = next((agent, run) for agent, run in found if run.ranks[0].rank == 0)
    step_s = 7000.0 / size**0.7
    plan = {"global_batch": BATCH, "local_batch": BATCH // size, "accumulation": 1}
    told = {"epoch": 0, "samples": 50 * BATCH, "total_samples": 50 * BATCH, "steps": 50}
    spent = {"step_s_sum": 50 * step_s, "step_s_squares": 50 * step_s**2}
    await agent.report(
        entry("rank_message", run, **message("first_step", run.generation, samples=BATCH)),
        entry("rank_message", run, **message("progress", run.generation, **told, **plan, **spent)),
    )
    await harness.turn()
    await agent.report(entry("rank_message", run, **message("completed", run.generation, samples=50 * BATCH)))
    for agent, run in found:
        await stop(agent, run, exit_code=0, completed=True)
    assert (await harness.job(name)).state is JobState.SUCCEEDED


async def measured_class(harness: Harness, sizes: Sequence[int] = SIZES) -> None:
    """Measure the class at these sizes on hosts that then take no more jobs."""
    agents = [await harness.join(f"host-{number:02}", slots=1) for number in range(max(sizes))]
    for size in sizes:
        await measure(harness, agents, size)
    for agent in agents:
        assert (await harness.post(f"nodes/{agent.name}/cordon")).status_code == 202


async def follow(stage: Stage, mu_h_per_usd: float) -> None:
    body = {"policy": "budget", "parameters": {"mu_h_per_usd": mu_h_per_usd}}
    response = await stage.harness.client.put("/api/v1/cluster", json=body)
    assert response.status_code == 200, response.text


@pytest.mark.slow
async def test_a_job_gets_the_machines_whose_delay_is_worth_their_dollars(stage: Stage) -> None:
    await measured_class(stage.harness)
    await stage.harness.submit("gpt-17", elastic={"max": 16, "sizes": SIZES})
    for mu, width in WIDTHS.items():
        await follow(stage, mu)
        await stage.turn()
        assert len(stage.cloud.running()) == pytest.approx(width, abs=1), mu
        assert (await stage.turn()).wanted == 0, "the machines on their way count"
    last = (await stage.machines())[0]
    assert "h of delay per hour, worth $" in last.message
    assert "/h at a price of $" in last.message
    assert last.message.endswith("for gpt-17 (+21%)")


async def test_without_a_budget_the_objective_decides(stage: Stage) -> None:
    await measured_class(stage.harness)
    await stage.harness.submit("gpt-17", elastic={"max": 16, "sizes": SIZES}, goal={"objective": "cost"})
    await follow(stage, -1.0)
    await stage.turn()
    machine = await stage.machine()
    assert "delay" not in machine.message


async def test_a_long_run_budget_bounds_the_machines_of_present_jobs(stage: Stage) -> None:
    """At $6 an hour, mu is the one at which the present job spends that much."""
    await measured_class(stage.harness)
    response = await stage.harness.client.put("/api/v1/budgets/boa", json={"usd": 6.0, "kind": "long_run"})
    assert response.status_code == 201, response.text
    await stage.harness.submit("gpt-17", elastic={"max": 16, "sizes": SIZES})
    await stage.turn()
    assert len(stage.cloud.running()) == pytest.approx(6, abs=1)
    assert all("h of delay per hour" in one.message for one in await stage.machines())


@pytest.mark.slow
async def test_a_long_run_budget_that_cannot_pay_all_jobs_is_not_overspent(stage: Stage) -> None:
    """Six jobs need $6 an hour at their cheapest, and the budget is $2: two run, and the others hear why they wait."""
    await measured_class(stage.harness, (1,))
    response = await stage.harness.client.put("/api/v1/budgets/boa", json={"usd": 2.0, "kind": "long_run"})
    assert response.status_code == 201, response.text
    for number in range(6):
        await stage.harness.submit(f"gpt-{20 + number}", elastic={"max": 1})
    await stage.turn()
    await stage.turn()
    assert len(stage.cloud.running()) == 2
    slot = {"slots": [{"index": 0, "device_kind": "cpu"}]}
    agents = [await stage.joins(one, **slot) for one in stage.cloud.running()]
    await stage.harness.turn()
    for agent in agents:
        await agent.report(entry("ranks_started", run_of(await agent.commands()), how="spawn"))
    await stage.turn()
    assert len(stage.cloud.running()) == 2
    await stage.harness.turn()
    jobs = [await stage.harness.job(f"gpt-{20 + number}") for number in range(6)]
    waiting = [one for one in jobs if one.state is JobState.PENDING]
    assert len(waiting) == 4
    assert all("cannot pay all jobs at their cheapest" in one.present for one in waiting)


async def test_machines_go_back_once_mu_has_grown_by_more_than_the_hysteresis(stage: Stage) -> None:
    sizes = (1, 2, 3, 5)
    await measured_class(stage.harness, sizes)
    await stage.harness.submit("gpt-17", elastic={"max": 5, "sizes": sizes})
    await follow(stage, 0.3)
    await stage.turn()
    slot = {"slots": [{"index": 0, "device_kind": "cpu"}]}
    agents = [await stage.joins(one, **slot) for one in stage.cloud.running()]
    assert len(agents) == 5
    await stage.harness.turn()
    runs = [run_of(await agent.commands()) for agent in agents]
    assert {run.world_size for run in runs} == {5}
    for agent, run in zip(agents, runs, strict=True):
        await agent.report(entry("ranks_started", run, how="spawn"))
    stage.skip(61)
    for mu in (0.36, 0.3, 0.4):
        await follow(stage, mu)
        await stage.turn()
        assert {one.state for one in await stage.machines()} == {"running"}, mu
    await follow(stage, 6.0)
    await stage.turn()
    machines = await stage.machines()
    assert sorted(one.state for one in machines) == ["ending"] * 4 + ["running"]
    assert {one.reason for one in machines if one.state == "ending"} == {"NOT_WORTH_IT"}
