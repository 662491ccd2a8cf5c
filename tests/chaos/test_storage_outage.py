"""Object storage is away for a while: jobs that start then wait for it, and jobs that train go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState, Reason
from headway.local.stack import LocalStack, Stores
from tests.e2e.conftest import Cluster, PatientJob
from tests.faulty_store import BUCKET, FaultyStore, faulty_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Stage:
    cluster: Cluster
    store: FaultyStore

    def recoveries(self, job: str) -> list[str]:
        """Return the messages of the job's starts that failed because of storage."""
        return [
            one.message
            for one in self.cluster.client.events(job)
            if one.kind == "recover" and one.reason is Reason.STORAGE_UNAVAILABLE
        ]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with faulty_store() as store:
        for name, value in {**store.environment, "HEADWAY_STORAGE_SIGNED": "on"}.items():
            monkeypatch.setenv(name, value)
        stores = Stores(storage_url=f"s3://{BUCKET}/one")
        with (
            LocalStack(tmp_path / "stack", agents=2, slots=1, stores=stores) as stack,
            Client(stack.url, stack.token, patience_s=120) as client,
        ):
            yield Stage(Cluster(stack, client), store)


def test_job_that_starts_in_an_outage_waits_uncounted_and_succeeds_while_another_trains_on(
    stage: Stage, tmp_path: Path
) -> None:
    client, until = stage.cluster.client, stage.cluster.until
    trains = PatientJob(stage.cluster, "trains", tmp_path)
    trains.start(1, most=1)
    until(lambda: bool(trains.view().progress.checkpoint_samples), "a checkpoint")

    # The other node is closed until the bundle is stored and the storage is away.
    busy = {node for job in client.jobs() for node in job.allocation}
    free = next(node.name for node in client.nodes() if node.id not in busy and node.name not in busy)
    client.cordon(free)
    work = tmp_path / "work"
    work.mkdir()
    (work / "done.py").write_text("print('done')", encoding="utf-8")
    spec = {
        "name": "starts",
        "workdir": str(work),
        "run": "python done.py",
        "retry": {"infrastructure": 0, "user_errors": 0},
    }
    job = client.submit(JobSpec.model_validate(spec)).id
    stage.store.away = True
    client.uncordon(free)

    until(lambda: len(stage.recoveries(job)) >= 2, "two starts without storage")
    waiting = client.job(job)
    assert waiting.state not in {JobState.FAILED, JobState.SUCCEEDED}, waiting.message
    assert (waiting.infrastructure_failures, waiting.user_errors) == (0, 0)
    first = stage.recoveries(job)[0]
    assert "object storage does not answer" in first
    assert "503" in first
    assert "no retry is counted" in first
    before = trains.view().progress.samples
    until(lambda: trains.view().progress.samples > before, "steps of the job that trains")
    assert trains.runs_at(1)
    assert trains.view().generation == 1

    stage.store.away = False
    done = stage.cluster.ended(job)
    assert (done.infrastructure_failures, done.user_errors) == (0, 0)
    assert trains.finish().generation == 1
