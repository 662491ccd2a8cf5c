"""A namespace of Kubernetes as one pool: a live job loses a pod to one of a higher priority class, and gets it back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.engines.kubernetes_cluster import INSTALLED, LOW, MISSING, Kubernetes, kubernetes_cluster
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState, JobView
from headway.local.stack import LocalStack
from tests.e2e.conftest import SCRIPTS, Cluster, end_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AGENT = "headway-agent:test"
EPOCHS = 40
SLOTS = 4


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    if not INSTALLED:
        pytest.skip(MISSING)
    with kubernetes_cluster(tmp_path_factory.mktemp("kubernetes"), nodes=2) as cluster:
        cluster.images[AGENT] = (sys.executable, "-P", "-m", "worker_agent", "--state-dir", "{folder}/state")
        yield cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, kubernetes: Kubernetes) -> Iterator[Cluster]:
    """A Headway without nodes of its own, which rents pods of the namespace."""
    settings = {
        "HEADWAY_PROVIDERS": "kubernetes",
        "KUBECONFIG": str(kubernetes.kubeconfig),
        "HEADWAY_KUBERNETES_IMAGE": AGENT,
        "HEADWAY_KUBERNETES_SPOT": "cpu=0.01",
        "HEADWAY_KUBERNETES_SPOT_CLASS": LOW,
        "HEADWAY_KUBERNETES_TOPOLOGY": "zone=topology.kubernetes.io/zone",
        "HEADWAY_KUBERNETES_WAIT_S": "3",
        "HEADWAY_RENT_EVERY_S": "0.5",
        "HEADWAY_IDLE_S": "20",
    }
    with (
        LocalStack(tmp_path_factory.mktemp("pool"), agents=0, settings=settings) as stack,
        stack.client() as client,
    ):
        yield Cluster(stack, client)


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """A live job of one to four slots, which trains until its file `hurry` is there."""
    spec = {
        "name": "pooled",
        "workdir": str(SCRIPTS),
        "run": "python patient.py",
        "env": {"HURRY": str(tmp_path / "hurry"), "EPOCHS": str(EPOCHS)},
        "market": "spot",
        "goal": {"objective": "time"},
        "elastic": {"min": 1, "max": SLOTS, "resize": "live"},
        "checkpoint": {"every": "1s", "grace_s": 10},
        "retry": {"infrastructure": 100},
    }
    id_ = cluster.client.submit(JobSpec.model_validate(spec)).id
    cluster.client.resize(id_, SLOTS)
    yield id_
    end_job(cluster.client, "pooled")


def on_nodes(client: Client, job_id: str, count: int) -> bool:
    job = client.job(job_id)
    return job.state is JobState.RUNNING and len(job.allocation) == count


def lost_steps(client: Client, job_id: str) -> list[object]:
    return [event.data["lost_steps"] for event in client.events(job_id) if event.kind == "switch"]


def test_live_job_loses_a_pod_without_a_step_and_gets_it_back(
    cluster: Cluster, kubernetes: Kubernetes, job: str, tmp_path: Path
) -> None:
    client = cluster.client
    cluster.until(lambda: on_nodes(client, job, 2), "the job on both nodes")
    assert {node.labels["zone"] for node in client.nodes()} == {"a"}
    client.resize(job, None)  # it takes what there is
    higher = kubernetes.occupy()
    cluster.until(lambda: on_nodes(client, job, 1), "the job on the other node")
    cluster.until(lambda: kubernetes.pod(higher)["status"]["phase"] == "Running", "the higher pod")
    kubernetes.delete(higher)
    client.resize(job, SLOTS)
    cluster.until(lambda: on_nodes(client, job, 2), "the job on both nodes again")
    (tmp_path / "hurry").touch()
    done: JobView = cluster.ended(job)
    switches = lost_steps(client, job)
    assert switches == [0] * len(switches)
    assert len(switches) >= 2
    assert (done.attempt, done.progress.lost_samples) == (1, 0)
    assert (done.progress.epochs_exact, done.progress.epochs_audited) == (EPOCHS, EPOCHS)
    assert "SPOT_RECLAIMED" in [one.reason for one in client.machines()]
    cluster.until(lambda: all(one.state == "gone" for one in client.machines()), "all nodes to be given back")
    cluster.until(lambda: kubernetes.pods() == [], "all pods to be gone")
