"""A database is brought back from a backup while agents train on: everything converges, and nothing of the time in between is
taken for something of now.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from headway.local.ports import free_port
from headway.local.postgres import EmbeddedPostgres
from headway.local.stack import LocalStack, Stores
from service.usecases.upkeep.restore import GENERATIONS_LEFT_OUT
from tests.e2e.conftest import SCRIPTS, Cluster, PatientJob, living_ranks
from tests.e2e.hosts import SLOTS, Host, ready

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@contextmanager
def serving(data: Path, port: int, stores: Stores) -> Iterator[Cluster]:
    """The service alone, over a database: agents are somebody else's."""
    with (
        LocalStack(data, agents=0, port=port, stores=stores) as stack,
        Client(stack.url, stack.token, patience_s=60) as client,
    ):
        yield Cluster(stack, client)


def on_the_database(stores: Stores, data: Path, *arguments: str) -> str:
    env = {
        **os.environ,
        "HEADWAY_DATABASE_URL": str(stores.database_url),
        "HEADWAY_REDIS_URL": str(stores.redis_url),
        "HEADWAY_STORAGE_URL": (data / "storage").as_uri(),
        "HEADWAY_API_TOKEN": "unused",
        "HEADWAY_JOIN_TOKEN": "unused",
    }
    command = [sys.executable, "-m", "service", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_agents_train_on_and_a_database_from_before_comes_back(
    tmp_path: Path, postgres: EmbeddedPostgres, redis_url: str
) -> None:
    data, port = tmp_path / "data", free_port()
    before = Stores(postgres.create_database("backed_up"), redis_url)
    after = Stores(postgres.create_database("brought_back"), redis_url)
    hosts: list[Host] = []
    try:
        with serving(data, port, before) as cluster:
            hosts += [Host(cluster.stack, name) for name in ("host-1", "host-2")]
            for host in hosts:
                host.start()
            cluster.until(
                lambda: ready(cluster.client) == {host.name for host in hosts}, "the agents to join"
            )
            kept = PatientJob(cluster, "kept", tmp_path, epochs=5000)  # it trains on however long this takes
            kept.start(1, most=2 * SLOTS - 1)
            kept.next_event("switch", lambda: kept.resize(2))
            said = on_the_database(before, data, "backup", str(tmp_path / "backup"))
            assert "as of" in said
            known = kept.view()

            kept.next_event("switch", lambda: kept.resize(3))
            later = submit_later(cluster, tmp_path)
            cluster.until(
                lambda: (kept.view().progress.checkpoint_samples or 0) > known.progress.samples,
                "a checkpoint since",
            )
            assert kept.view().generation > known.generation
            assert living_ranks(data, later)
        on_the_database(after, data, "restore", str(tmp_path / "backup"))
        with serving(data, port, after) as cluster:
            kept.cluster = cluster
            cluster.until(
                lambda: ready(cluster.client) == {host.name for host in hosts}, "the agents to be back"
            )
            cluster.until(lambda: not living_ranks(data, later), "an unknown job's ranks to be ended")
            assert [job.name for job in cluster.client.jobs()] == ["kept"]
            cluster.until(lambda: kept.view().state is JobState.RUNNING, "the job to run again")
            restored = (
                kept.next_event("restore", lambda: None)
                if not kept.events("restore")
                else kept.events("restore")[0]
            )
            assert restored.data["samples"] > known.progress.samples, "checkpoints are newer than the backup"
            audited = kept.view().progress.epochs_audited
            cluster.until(lambda: kept.view().progress.epochs_audited > audited, "an epoch since")
            now = kept.view()
            assert now.progress.samples > restored.data["samples"]
            assert now.progress.epochs_exact == now.progress.epochs_audited
            assert (now.infrastructure_failures, now.user_errors) == (0, 0)
            generations = {event.generation for event in cluster.client.events(kept.id)}
            stale = {one for one in generations if known.generation < one <= GENERATIONS_LEFT_OUT}
            assert stale == set(), "nobody of the time since the backup was listened to"
            assert max(generations) > GENERATIONS_LEFT_OUT
            cluster.client.cancel(kept.id, force=True)
            cluster.until(lambda: not living_ranks(data, kept.id), "its ranks to end")
    finally:
        for host in hosts:
            host.clean_up()


def submit_later(cluster: Cluster, folder: Path) -> str:
    """A job of which the backup knows nothing; returns its id once it has a rank."""
    spec = {
        "name": "later",
        "workdir": str(SCRIPTS),
        "run": "python patient.py",
        "env": {"HURRY": str(folder / "never"), "EPOCHS": "1000"},
        "elastic": {"min": 1, "max": 1},
    }
    job_id = cluster.client.submit(JobSpec.model_validate(spec)).id
    cluster.until(lambda: cluster.client.job(job_id).state is JobState.RUNNING, "the later job to run")
    return job_id
