"""The release before this one and this one work together: agents of either with a service of the other, and agents that
are updated under a running job.

The other version is the last tag, or the revision in HEADWAY_PREVIOUS.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.client.client import Client
from headway.local.stack import LocalStack
from tests.e2e.conftest import Cluster, PatientJob
from tests.e2e.hosts import ROOT, SLOTS, Host, ready

LONGEST_PAUSE_S = 30.0

pytestmark = pytest.mark.timeout(600)


def previous_revision() -> str | None:
    """The last tag, unless HEADWAY_PREVIOUS names something else; None where there is neither."""
    named = os.environ.get("HEADWAY_PREVIOUS")
    if named or shutil.which("git") is None:
        return named
    command = ["git", "describe", "--tags", "--abbrev=0"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the release before this one."""
    revision = previous_revision()
    if revision is None:
        pytest.skip("there was no release yet; HEADWAY_PREVIOUS=REVISION names one to test against")
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def old_agents(previous: Path, tmp_path: Path) -> Iterator[tuple[Cluster, list[Host]]]:
    """This service, with two agents of the release before."""
    with (
        LocalStack(tmp_path / "data", agents=0) as stack,
        Client(stack.url, stack.token, patience_s=60) as client,
    ):
        cluster = Cluster(stack, client)
        hosts = [Host(stack, f"old-{number}") for number in (1, 2)]
        try:
            for host in hosts:
                host.start(previous)
            cluster.until(lambda: ready(client) == {host.name for host in hosts}, "the agents to join")
            yield cluster, hosts
        finally:
            for host in hosts:
                host.clean_up()


def changes_size_live(job: PatientJob, size: int) -> None:
    switched = job.next_event("switch", lambda: job.resize(size))
    assert (switched.data["to"], switched.data["how"]) == (size, "live"), switched.message
    assert switched.data["lost_steps"] == 0
    assert switched.data["pause_s"] < LONGEST_PAUSE_S
    job.cluster.until(lambda: job.runs_at(size), f"{size} ranks")


def test_agents_of_the_release_before_are_updated_under_a_running_job(
    old_agents: tuple[Cluster, list[Host]], tmp_path: Path
) -> None:
    cluster, hosts = old_agents
    job = PatientJob(cluster, "updated", tmp_path)
    job.start(1, most=2 * SLOTS)
    changes_size_live(job, 3)  # old agents, new service, on two hosts
    ranks = job.ranks()
    assert len(ranks) == 3
    for host in hosts:
        host.update(ROOT)
        adopted = host.log
        cluster.until(lambda log=adopted: "adopted" in log.read_text(), "the new agent to take over")  # type: ignore[misc]
    assert job.ranks() == ranks, "every rank is still the process that it was"
    before = job.view().progress.samples
    cluster.until(lambda: job.view().progress.samples > before, "news through the new agents")
    changes_size_live(job, 4)  # a newcomer, by the launcher that holds the older code
    changes_size_live(job, 1)
    done = job.finish()
    assert (done.attempt, done.infrastructure_failures, done.preemptions) == (1, 0, 0)
    assert done.progress.lost_samples == 0


def test_agents_of_this_release_serve_the_one_before(previous: Path, tmp_path: Path) -> None:
    older = {"PYTHONPATH": str(previous)}
    with (
        LocalStack(tmp_path / "data", agents=2, slots=SLOTS, settings=older) as stack,
        Client(stack.url, stack.token, patience_s=60) as client,
    ):
        job = PatientJob(Cluster(stack, client), "ahead", tmp_path)
        job.start(1, most=2 * SLOTS)
        changes_size_live(job, 3)
        changes_size_live(job, 1)
        done = job.finish()
        assert (done.attempt, done.infrastructure_failures) == (1, 0)
