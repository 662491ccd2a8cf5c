"""One whole Headway for the end-to-end tests: stores, service, two agents with two slots each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, EventView, JobState, JobView
from headway.local.stack import LocalStack

PATIENCE_S = 120.0
POLL_S = 0.2
"""Time between two requests to the service. Each takes 10 ms or more of CPU time from what is waited for."""
SCRIPTS = Path(__file__).parent / "scripts"


@dataclass
class Cluster:
    """The running stack, and what tests do with it."""

    stack: LocalStack
    client: Client

    def headway(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line as a user does."""
        env = {**os.environ, "HEADWAY_URL": self.stack.url, "HEADWAY_TOKEN": self.stack.token}
        command = [sys.executable, "-m", "headway.cli", *arguments]
        return subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S
        )

    def until(self, condition: Callable[[], bool], what: str, *, every_s: float = POLL_S) -> None:
        """Wait, with an end, for what other processes do."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                states = {job.name: (job.state, job.message) for job in self.client.jobs()}
                pytest.fail(f"waited {PATIENCE_S:.0f} s for {what}; jobs: {states}")
            time.sleep(every_s)

    def ended(self, job_id: str) -> JobView:
        """Wait for the end of a job that succeeds."""
        self.until(lambda: self.client.job(job_id).state in TERMINAL_STATES, "its end")
        done = self.client.job(job_id)
        assert done.state is JobState.SUCCEEDED, done.message
        return done


@dataclass
class PatientJob:
    """A job that trains on until it is told to finish, so that there is time to change its members."""

    cluster: Cluster
    name: str
    folder: Path
    epochs: int = 40
    id: str = field(init=False)

    def start(
        self,
        size: int,
        *,
        most: int,
        redundancy: str = "none",
        parallel: dict[str, Any] | None = None,
        **env: str,
    ) -> None:
        """Submit it, and return when it trains at this size and its members can change in place."""
        spec = {
            "name": self.name,
            "workdir": str(SCRIPTS),
            "run": "python patient.py",
            "env": {"HURRY": str(self.folder / "hurry"), "EPOCHS": str(self.epochs), **env},
            "elastic": {"min": 1, "max": most, "resize": "live", "redundancy": redundancy},
            "checkpoint": {"every": "1s", "grace_s": 30},
            "retry": {"infrastructure": 100},
            "parallel": parallel or {},
        }
        self.id = submit_at(self.cluster.client, JobSpec.model_validate(spec), size)
        self.cluster.until(lambda: self.runs_at(size) and self.view().progress.samples > 0, f"{size} ranks")

    def view(self) -> JobView:
        """The job now. It has not ended: if it has, the test took longer than the job's patience."""
        job = self.cluster.client.job(self.id)
        assert job.state not in TERMINAL_STATES, f"{job.name} is over: {job.message}"
        return job

    def runs_at(self, size: int) -> bool:
        job = self.view()
        return job.state is JobState.RUNNING and job.size == size

    def resize(self, size: int) -> None:
        self.cluster.client.resize(self.id, size)

    def events(self, *kinds: str) -> list[EventView]:
        return [event for event in self.cluster.client.events(self.id) if event.kind in kinds]

    def next_event(self, kind: str, act: Callable[[], object]) -> EventView:
        """Do something, and wait for the first event of this kind that follows."""
        before = len(self.events(kind))
        act()
        self.cluster.until(lambda: len(self.events(kind)) > before, f"{self.name}: {kind}")
        return self.events(kind)[before]

    def ranks(self) -> dict[tuple[int, int], int]:
        """Process ids of the ranks that live, by the generation and the rank that they were started with."""
        return living_ranks(self.cluster.stack.data, self.id)

    def kill(self, who: tuple[int, int]) -> None:
        """SIGKILL, which no process can do anything about."""
        os.kill(self.ranks()[who], signal.SIGKILL)

    def finish(self) -> JobView:
        """Let it come to its end, and check that every sample of every epoch was trained exactly once."""
        (self.folder / "hurry").touch()
        done = self.cluster.ended(self.id)
        assert (done.progress.epochs_exact, done.progress.epochs_audited) == (self.epochs, self.epochs)
        assert done.progress.samples == done.progress.total_samples
        return done


def submit_at(client: Client, spec: JobSpec, size: int) -> str:
    """Submit a job that has its size before there are slots for it, and return its id.

    A round between the two requests would start it at another size, and it would be started again at this one.
    """
    ready = [node.name for node in client.nodes() if node.state is NodeState.READY]
    for name in ready:
        client.cordon(name)
    job = client.submit(spec).id
    client.resize(job, size)
    for name in ready:
        client.uncordon(name)
    return job


def living_ranks(data: Path, job_id: str) -> dict[tuple[int, int], int]:
    """Process ids of a job's ranks that live, by the generation and the rank that they were started with."""
    found = {}
    for file in data.glob(f"agents/*/runs/{job_id}/*/rank-*.pid"):
        if not file.with_suffix(".exit").exists():
            who = int(file.parent.name), int(file.stem.removeprefix("rank-"))
            found[who] = int(json.loads(file.read_text())["pid"])
    return found


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared by all end-to-end tests: each uses job names of its own and leaves no job behind."""
    data = tmp_path_factory.mktemp("cluster")
    with LocalStack(data, agents=2, slots=2) as stack, stack.client() as client:
        yield Cluster(stack, client)


@pytest.fixture
def patient(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PatientJob]:
    """A job with the test's name, that is gone when the test is over."""
    job = PatientJob(cluster, job_name(request), tmp_path)
    yield job
    end_job(cluster.client, job.name)


@pytest.fixture
def name(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """The test's name for its job, which ends with the test."""
    yield job_name(request)
    end_job(cluster.client, job_name(request))


def job_name(request: pytest.FixtureRequest) -> str:
    """The test's name as that of a job."""
    name: str = request.node.name
    return name.replace("[", "-").replace("]", "").replace("_", "-")[:60].strip("-")


def end_job(client: Client, name: str) -> None:
    """Cancel what a failed test left behind, so that the next one has all slots."""
    for job in client.jobs(live=True):
        if job.name == name:
            client.cancel(job.id, force=True)
