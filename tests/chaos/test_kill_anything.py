"""Any one process may be killed while a job trains: training goes on, and every sample counts once."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.client import Client
from headway.contract.agents import NodeState
from headway.contract.jobs import TERMINAL_STATES, JobState, JobView
from headway.contract.spec import JobSpec
from headway.local.processes import read_pid_file
from headway.local.stack import LocalStack
from tests.e2e.conftest import Cluster
from tests.integration.agent.stub import launchers

EXAMPLES = Path(__file__).parents[2] / "examples"
SLOTS = 2
STORM_S = 6.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Headway of its own: what is killed here is missed by nobody else."""
    data = tmp_path_factory.mktemp("chaos")
    with (
        LocalStack(data, agents=2, slots=SLOTS) as stack,
        Client(stack.url, stack.token, patience_s=60) as client,
    ):
        yield Cluster(stack, client)


@pytest.fixture
def digits(cluster: Cluster, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Submits the digits for so many epochs and returns the job's id once it trains on two slots."""

    def train(*, epochs: int, smallest: int) -> str:
        spec = JobSpec.model_validate(
            {
                "name": request.node.name.replace("[", "-").replace("]", "").replace("_", "-"),
                "workdir": str(EXAMPLES),
                "run": f"python digits.py --epochs {epochs} --width 16",
                "elastic": {"min": smallest, "max": SLOTS},
                "batch": {"policy": "fixed", "global": 64},
                "checkpoint": {"every": "1s", "grace_s": 30},
            }
        )
        job = cluster.client.submit(spec).id
        cluster.client.resize(job, SLOTS)
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
            run = data / "agents" / agent / "runs" / job.id / str(job.generation)
            found = json.loads((run / "rank-1.pid").read_text())["pid"]
        case _:
            return launchers(data / "agents" / agent)
    assert found is not None
    return [found]


@pytest.mark.parametrize(
    ("victim", "restarts"),
    [
        ("api", 0),
        ("scheduler", 0),
        ("agent", 0),
        ("redis", 0),
        ("postgres", 0),
        ("rank", 1),
        ("launcher", 1),  # its ranks die with it, so that none is ever left behind
    ],
)
def test_kill_9(cluster: Cluster, digits: Callable[..., str], victim: str, restarts: int) -> None:
    epochs = 20
    job = digits(epochs=epochs, smallest=SLOTS)
    for pid in pids(cluster, victim, cluster.client.job(job)):
        os.kill(pid, signal.SIGKILL)
    done = assert_finished_exactly(cluster, job, epochs)
    assert (done.generation, done.infrastructure_failures) == (1 + restarts, restarts)
    cluster.until(
        lambda: (
            cluster.client.ready() and all(node.state is NodeState.READY for node in cluster.client.nodes())
        ),
        f"everything to work again without the {victim}",
    )


def test_a_storm_of_resizes(cluster: Cluster, digits: Callable[..., str]) -> None:
    epochs = 32
    job = digits(epochs=epochs, smallest=1)
    storm_ends_s = time.monotonic() + STORM_S
    asked = itertools.cycle([1, SLOTS])

    def asked_again() -> bool:
        if time.monotonic() > storm_ends_s or cluster.client.job(job).state in TERMINAL_STATES:
            return True
        cluster.client.resize(job, next(asked))
        return False

    cluster.until(asked_again, "the storm to be over")
    done = assert_finished_exactly(cluster, job, epochs)
    assert done.generation > 3, "it was resized again and again"
    assert (done.infrastructure_failures, done.progress.lost_samples) == (0, 0)
