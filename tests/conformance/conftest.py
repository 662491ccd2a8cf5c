"""The real things that the ports' implementations are checked against."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from benchmarks.engines import kubernetes_cluster as kube
from benchmarks.engines.slurm_cluster import INSTALLED, MISSING, Slurm, slurm_cluster
from headway.contract.agents import NodeState, SlotInfo
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState, Reason
from headway.local.ports import HOST, free_port
from service.adapters.postgres.database import Database
from service.adapters.storage import ObjectStorage
from service.domain.jobs.job import Job
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.identity import ProjectRecord
from service.usecases.ports.nodes import NodeRecord
from service.usecases.ports.transactions import Transaction
from tests.conformance.ec2_rig import ec2, ec2_clients

__all__ = ["ec2", "ec2_clients"]

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
BUCKET = "headway"
AGENT = "headway-agent:test"
AGENT_ENTRY = ("sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait")
"""Image of pods and its entry point, which ends on SIGTERM as an idle agent does. The agent itself is tried in `tests/chaos`."""
_PREFIXES = count()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A real Slurm cluster of two nodes, which Slurm's commands find by `SLURM_CONF`."""
    if not INSTALLED:
        pytest.skip(MISSING)
    with (
        slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=2) as cluster,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kube.Kubernetes]:
    """A real control plane with two nodes."""
    if not kube.INSTALLED:
        pytest.skip(kube.MISSING)
    with kube.kubernetes_cluster(tmp_path_factory.mktemp("kubernetes"), nodes=2) as cluster:
        cluster.images[AGENT] = AGENT_ENTRY
        yield cluster


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of an S3 server on loopback, with one bucket."""
    port = free_port()
    log = (tmp_path_factory.mktemp("s3") / "server.log").open("wb")
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)], stdout=log, stderr=log
    )
    url = f"http://{HOST}:{port}"
    try:
        transport = httpx.HTTPTransport(retries=10)  # connection attempts, ever further apart
        with httpx.Client(transport=transport, timeout=30.0) as client:
            client.put(f"{url}/{BUCKET}").raise_for_status()
        yield url
    finally:
        server.kill()  # it has nothing to keep, and its own end may wait for connections
        server.wait()
        log.close()


@pytest.fixture
def s3_environment(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that points this process's S3 clients to the server."""
    for name, value in {
        "AWS_ENDPOINT": s3_server,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)


class Rung:
    """The wake-ups that were sent after commits."""

    def __init__(self) -> None:
        self.wake_ups: list[tuple[WakeUp, str]] = []

    async def wake(self, wake_up: WakeUp, about: str) -> None:
        self.wake_ups.append((wake_up, about))


@pytest.fixture(params=["memory", "folder", "s3"])
def storage(request: pytest.FixtureRequest, folder: Path) -> ObjectStorage:
    """An empty place of each kind."""
    if request.param == "memory":
        return ObjectStorage("memory:///")
    if request.param == "folder":
        return ObjectStorage(f"file://{folder}/a%20b")
    request.getfixturevalue("s3_environment")
    return ObjectStorage(f"s3://{BUCKET}/run{next(_PREFIXES)}")


@pytest.fixture
def rung() -> Rung:
    return Rung()


@pytest_asyncio.fixture
async def database(database_url: str, rung: Rung) -> AsyncIterator[Database]:
    """A fresh database with the schema."""
    made = Database(database_url, rung.wake)
    yield made
    await made.close()


def job_of(job_id: str, **fields: Any) -> Job:
    spec = fields.pop("spec", None) or JobSpec(name=fields.pop("name", job_id), run="python train.py")
    return Job(
        **{
            "id": job_id,
            "spec": spec,
            "state": JobState.PENDING,
            "reason": Reason.SUBMITTED,
            "message": "waits",
            "submitted_at": NOW,
            "state_since": NOW,
            **fields,
        }
    )


def node_of(node_id: str, slots: int = 4, **fields: Any) -> NodeRecord:
    return NodeRecord(
        **{
            "id": node_id,
            "name": f"name-of-{node_id}",
            "instance": f"instance-{node_id}",
            "token_sha256": node_id,
            "state": NodeState.READY,
            "wanted_state": NodeState.READY,
            "message": "",
            "address": HOST,
            "first_port": 20000,
            "last_port": 20063,
            "slots": tuple(SlotInfo(index=index, device_kind="cpu") for index in range(slots)),
            "agent_version": "0",
            "joined_at": NOW,
            "seen_at": NOW,
            **fields,
        }
    )


async def make_projects(database: Database, *names: str) -> None:
    """Projects beside `default`, which the schema brings along."""
    async with database.begin() as tx:
        for name in names:
            await tx.projects.save(ProjectRecord(name=name, created_at=NOW))


async def store(tx: Transaction, *things: Job | NodeRecord) -> None:
    """Jobs and nodes, as rows."""
    for thing in things:
        if isinstance(thing, NodeRecord):
            await tx.nodes.save(thing)
        else:
            await tx.jobs.insert(thing, idempotency_key=None, request_digest="digest")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "storage"
