"""A preemptible partition of Slurm as one pool: a live job loses a node to a job of higher priority, and gets it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.engines.slurm_cluster import INSTALLED, MISSING, Slurm, slurm_cluster
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState, JobView
from headway.local.stack import LocalStack
from tests.e2e.conftest import SCRIPTS, Cluster, end_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EPOCHS = 40
LIMIT_S = 180
LONG = 150
"""Epochs that last longer than a pilot without `hurry`: 26 steps each, of 50 ms or more."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if not INSTALLED:
        pytest.skip(MISSING)
    with (
        slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=2, kill_wait_s=30) as cluster,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, slurm: Slurm) -> Iterator[Cluster]:
    """A Headway without nodes of its own, which rents those of the partition."""
    with (
        LocalStack(tmp_path_factory.mktemp("pool"), agents=0, settings=settings_of(slurm)) as stack,
        stack.client() as client,
    ):
        yield Cluster(stack, client)


def settings_of(slurm: Slurm) -> dict[str, str]:
    """Settings of a service that rents the partition."""
    setup = slurm.folder / "setup.sh"
    setup.write_text(
        "export HEADWAY_ISOLATION=none\n", encoding="utf-8"
    )  # as root, jobs would not see `hurry`
    return {
        "HEADWAY_PROVIDERS": "slurm",
        "HEADWAY_SLURM_PARTITIONS": "low=0.01",
        "HEADWAY_SLURM_SETUP": str(setup),
        "HEADWAY_SLURM_LOG": str(slurm.folder / "pilot-%j.log"),
        "HEADWAY_SLURM_WAIT_S": "3",
        "HEADWAY_RENT_EVERY_S": "0.5",
        "HEADWAY_IDLE_S": "20",
    }


def spec_of(folder: Path, *, least: int, most: int, epochs: int = EPOCHS) -> JobSpec:
    """A live job, which trains until the file `hurry` is in the folder."""
    spec = {
        "name": "pooled",
        "workdir": str(SCRIPTS),
        "run": "python patient.py",
        "env": {"HURRY": str(folder / "hurry"), "EPOCHS": str(epochs)},
        "market": "spot",
        "goal": {"objective": "time"},
        "elastic": {"min": least, "max": most, "resize": "live"},
        "checkpoint": {"every": "1s", "grace_s": 10},
        "retry": {"infrastructure": 100},
    }
    return JobSpec.model_validate(spec)


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """A live job of one to four slots, which trains until its file `hurry` is there."""
    id_ = cluster.client.submit(spec_of(tmp_path, least=1, most=4)).id
    cluster.client.resize(id_, 4)
    yield id_
    end_job(cluster.client, "pooled")


def on_nodes(client: Client, job_id: str, count: int) -> bool:
    """Return True if the job trains on so many nodes. Before its first step it would start again without a node that it loses."""
    job = client.job(job_id)
    return job.state is JobState.RUNNING and len(job.allocation) == count and job.progress.samples > 0


def switches(client: Client, job_id: str) -> list[dict[str, object]]:
    return [dict(event.data) for event in client.events(job_id) if event.kind == "switch"]


def test_live_job_loses_a_node_of_the_pool_without_a_step_and_gets_it_back(
    cluster: Cluster, slurm: Slurm, job: str, tmp_path: Path
) -> None:
    client = cluster.client
    cluster.until(lambda: on_nodes(client, job, 2), "the job on both nodes")
    client.resize(job, None)  # it takes what there is
    higher = slurm.take_nodes(1)
    cluster.until(lambda: on_nodes(client, job, 1), "the job on the other node")
    cluster.until(
        lambda: slurm.command("squeue", "-h", "-j", higher, "-o", "%T").strip() == "RUNNING", "the higher job"
    )
    slurm.command("scancel", higher)
    client.resize(job, 4)
    cluster.until(lambda: on_nodes(client, job, 2), "the job on both nodes again")
    (tmp_path / "hurry").touch()
    done: JobView = cluster.ended(job)
    assert [one["lost_steps"] for one in switches(client, job)] == [0] * len(switches(client, job))
    assert (done.attempt, done.progress.lost_samples) == (1, 0)
    assert (done.progress.epochs_exact, done.progress.epochs_audited) == (EPOCHS, EPOCHS)
    reasons = [one.reason for one in client.machines()]
    assert "SPOT_RECLAIMED" in reasons
    cluster.until(lambda: all(one.state == "gone" for one in client.machines()), "all nodes to be given back")


def test_live_job_moves_to_a_successor_before_the_time_limit_of_its_pilot(
    tmp_path: Path, slurm: Slurm
) -> None:
    """The only pilot of the job has three minutes: one successor is rented at half of them, and its ranks join in time."""
    slurm.until_idle(slurm.nodes)
    # Another Headway of this user may still run here: by the same name, it would end pilots that it never asked for.
    limits = {"HEADWAY_SLURM_OPTIONS": f"--time={LIMIT_S // 60}", "HEADWAY_CLUSTER": "limited"}
    settings = settings_of(slurm) | limits
    with LocalStack(tmp_path / "limited", agents=0, settings=settings) as stack, stack.client() as client:
        cluster = Cluster(stack, client)
        job = client.submit(spec_of(tmp_path, least=2, most=2, epochs=LONG)).id
        cluster.until(lambda: on_nodes(client, job, 1), "the job on its pilot")
        (first,) = client.job(job).allocation
        cluster.until(lambda: len(list(client.machines())) > 1, "a successor")
        cluster.until(lambda: on_another(client, job, first), "the job on the successor")
        old, *successors = sorted(client.machines(), key=lambda one: one.requested_at)
        (tmp_path / "hurry").touch()
        assert len(successors) == 1, [one.message for one in successors]
        done: JobView = cluster.ended(job)
        moved, *_ = [event for event in client.events(job) if event.kind == "switch"]
        assert (moved.at - old.requested_at).total_seconds() < LIMIT_S, "before the end of the first"
        assert [one["lost_steps"] for one in switches(client, job)] == [0] * len(switches(client, job))
        assert (done.attempt, done.progress.lost_samples) == (1, 0)
        assert (done.progress.epochs_exact, done.progress.epochs_audited) == (LONG, LONG)
        cluster.until(lambda: all(one.state == "gone" for one in client.machines()), "all to be given back")
        assert slurm.command("squeue", "--noheader", "--states=timeout", "--format=%i").strip() == ""


def on_another(client: Client, job_id: str, node: str) -> bool:
    job = client.job(job_id)
    return job.state is JobState.RUNNING and list(job.allocation) not in ([], [node])
