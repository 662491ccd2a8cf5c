"""Any one process may be killed while a job trains: training goes on, and every sample counts once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, JobState, JobView
from headway.local.processes import read_pid_file
from tests.chaos.conftest import SLOTS
from tests.e2e.conftest import Cluster, job_name, living_ranks, submit_at
from tests.integration.agent.looking import launchers

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def digits(cluster: Cluster, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Submits the digits for so many epochs and returns the job's id once it trains on two slots."""

    def train(*, epochs: int, smallest: int) -> str:
        spec = JobSpec.model_validate(
            {
                "name": job_name(request),
                "workdir": str(EXAMPLES),
                "run": f"python digits.py --epochs {epochs} --width 16",
                "elastic": {"min": smallest, "max": SLOTS},
                "batch": {"policy": "fixed", "global": 64},
                "checkpoint": {"every": "1s", "grace_s": 30},
            }
        )
        job = submit_at(cluster.client, spec, SLOTS)
        cluster.until(lambda: trains_wide(cluster.client.job(job)), f"{spec.name} to train")
        return job

    return train


def trains_wide(job: JobView) -> bool:
    assert job.state not in TERMINAL_STATES, f"{job.name} was too short to be disturbed: {job.message}"
    return job.state is JobState.RUNNING and job.size == SLOTS and job.progress.samples > 0


def assert_finished_exactly(cluster: Cluster, job: str, epochs: int) -> JobView:
    cluster.until(lambda: cluster.client.job(job).state in TERMINAL_STATES, "the job to end")
    done = cluster.client.job(job)
    assert done.state is JobState.SUCCEEDED, done.message
    assert (done.progress.epochs_exact, done.progress.epochs_audited) == (epochs, epochs)
    return done


def agent_of(cluster: Cluster, job: JobView) -> str:
    nodes = cluster.client.nodes()
    return next(node.name for node in nodes if any(slot.job_id == job.id for slot in node.slots))


def pids(cluster: Cluster, victim: str, job: JobView) -> list[int]:
    """The processes to kill. Of several agents, the one that the job is on."""
    data, agent = cluster.stack.data, agent_of(cluster, job)
    match victim:
        case "api" | "scheduler":
            found = cluster.stack.programs[victim].pid
        case "agent":
            found = cluster.stack.programs[f"agent {agent}"].pid
        case "redis":
            found = read_pid_file(data / "redis" / "redis.pid")
        case "postgres":
            found = int((data / "postgres" / "cluster" / "postmaster.pid").read_text().split()[0])
        case "rank":
            ranks = living_ranks(data, job.id)
            found = ranks[max(ranks)]
        case _:
            return launchers(data / "agents" / agent)
    assert found is not None
    return [found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "losses", "restarts"),
    [
        ("api", 0, 0),
        ("scheduler", 0, 0),
        ("agent", 0, 0),
        ("redis", 0, 0),
        ("postgres", 0, 0),
        ("rank", 1, 0),  # the other one goes on in place
        ("launcher", 0, 1),  # its ranks die with it, so that none is ever left behind
    ],
)
def test_kill_9(
    cluster: Cluster, digits: Callable[..., str], victim: str, losses: int, restarts: int
) -> None:
    epochs = 20
    job = digits(epochs=epochs, smallest=SLOTS)
    for pid in pids(cluster, victim, cluster.client.job(job)):
        os.kill(pid, signal.SIGKILL)
    done = assert_finished_exactly(cluster, job, epochs)
    assert (done.attempt, done.infrastructure_failures) == (1 + restarts, restarts)
    events = list(cluster.client.events(job))
    assert [event.kind for event in events].count("lose") >= losses
    assert all(event.data["lost_steps"] <= 1 for event in events if event.kind == "switch")
    cluster.until(
        lambda: (
            cluster.client.ready() and all(node.state is NodeState.READY for node in cluster.client.nodes())
        ),
        f"everything to work again without the {victim}",
    )
