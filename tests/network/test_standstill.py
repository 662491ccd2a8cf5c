"""Ranks whose hosts are cut from each other: the job says so, goes on at once when they are not, and can be stopped meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.networking.cluster import Network
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import EventView, JobState
from tests.e2e.conftest import SCRIPTS, Cluster
from tests.e2e.hosts import ready

EPOCHS = 30


def trains_on_two_hosts(net: Network, client: Client, cluster: Cluster, folder: Path, *, grace_s: int) -> str:
    """Start two hosts and a job on them, and return its id once it trains."""
    for name in ("host-a", "host-b"):
        net.add_host(name)
    cluster.until(lambda: ready(client) == set(net.hosts), "both nodes")
    spec = {
        "name": "pair",
        "workdir": str(SCRIPTS),
        "run": "python patient.py",
        "env": {"HURRY": str(folder / "hurry"), "EPOCHS": str(EPOCHS)},
        "elastic": {"min": 2, "max": 2},
        "checkpoint": {"every": "1h", "grace_s": grace_s},
    }
    job = client.submit(JobSpec.model_validate(spec)).id
    cluster.until(lambda: client.job(job).progress.samples > 500, "its training")
    return job


def cut(net: Network, *, on: bool) -> None:
    for host in net.hosts.values():
        host.isolate(on=on)


def event(client: Client, cluster: Cluster, job: str, kind: str) -> EventView:
    cluster.until(lambda: any(one.kind == kind for one in client.events(job)), kind)
    return next(one for one in client.events(job) if one.kind == kind)


def unanswered(client: Client, job: str) -> list[tuple[str, str]]:
    standstill = client.job(job).progress.standstill
    return [] if standstill is None else standstill.unanswered


def finished(client: Client, cluster: Cluster, job: str, folder: Path) -> int:
    """Let the job come to its end with every epoch exact, and return the number of its starts."""
    (folder / "hurry").touch()
    done = cluster.ended(job)
    assert (done.progress.epochs_exact, done.progress.epochs_audited) == (EPOCHS, EPOCHS)
    assert (done.progress.lost_samples, done.infrastructure_failures) == (0, 0)
    return done.attempt


@pytest.mark.slow
def test_a_standstill_is_named_and_ends_within_seconds_of_the_healing(
    net: Network, client: Client, cluster: Cluster, tmp_path: Path
) -> None:
    job = trains_on_two_hosts(net, client, cluster, tmp_path, grace_s=30)
    assert not any(one.kind == "standstill" for one in client.events(job))
    cut(net, on=True)
    said = event(client, cluster, job, "standstill")
    assert 15 <= said.data["silent_s"] < 20
    assert 0.04 < said.data["usual_s"] < 0.75
    # A rank that has sent everything does not know which host is missing; its peer does.
    cluster.until(lambda: bool(unanswered(client, job)), "the hosts")
    assert all(set(pair) == {"host-a", "host-b"} for pair in unanswered(client, job))
    stands = client.job(job)
    assert (stands.state, stands.progress.samples_per_s) == (JobState.RUNNING, 0.0)
    assert "host-a" in stands.present
    cut(net, on=False)
    healed_s = time.monotonic()
    event(client, cluster, job, "standstill_ended")
    assert time.monotonic() - healed_s < 5
    cluster.until(lambda: client.job(job).progress.samples_per_s != 0.0, "its speed")
    assert client.job(job).progress.standstill is None
    assert finished(client, cluster, job, tmp_path) == 1


@pytest.mark.slow
def test_ranks_that_do_not_reach_each_other_save_what_they_trained_when_they_are_stopped(
    net: Network, client: Client, cluster: Cluster, tmp_path: Path
) -> None:
    job = trains_on_two_hosts(net, client, cluster, tmp_path, grace_s=9)
    cut(net, on=True)
    client.pause(job)
    cluster.until(lambda: client.job(job).state is JobState.PAUSED, "its pause")
    paused = client.job(job).progress
    assert paused.checkpoint_samples == paused.samples > 500
    cut(net, on=False)
    client.resume(job)
    assert finished(client, cluster, job, tmp_path) == 2
