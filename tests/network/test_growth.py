"""Growth onto a host that cannot be reached neither stops a job nor costs it a sample."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.networking.cluster import Network
from headway.client.client import Client
from headway.contract.views.jobs import Reason
from tests.e2e.conftest import Cluster, PatientJob
from tests.e2e.hosts import ready


@pytest.fixture
def job(net: Network, client: Client, cluster: Cluster, tmp_path: Path) -> PatientJob:
    """A job on two hosts, which may grow to three slots."""
    for name in ("host-a", "host-b"):
        net.add_host(name)
    cluster.until(lambda: ready(client) == set(net.hosts), "both nodes")
    job = PatientJob(cluster, "grows", tmp_path, epochs=20)
    job.start(2, most=3)
    return job


@pytest.mark.slow
def test_a_new_host_that_does_not_reach_a_member_is_named_and_the_job_trains_on(
    net: Network, client: Client, cluster: Cluster, job: PatientJob
) -> None:
    net.hosts["host-b"].isolate()
    net.add_host("host-c").isolate()
    cluster.until(lambda: "host-c" in ready(client), "the third node")
    said = job.next_event("abandon", lambda: job.resize(3))
    assert said.reason is Reason.UNREACHABLE
    address = net.hosts["host-b"].address
    # Which of the two the system says depends on whether its search for the neighbour has already ended.
    why = "(no answer|no route to host)"
    assert re.search(rf"host-c cannot reach host-b:\d+ \({address}\): {why}", said.message), said.message
    assert not job.events("switch")
    (link,) = (one for one in client.hosts().links if one.source == "host-c")
    assert "host-c cannot reach host-b" in link.failure
    done = job.finish()
    assert (done.attempt, done.infrastructure_failures, done.progress.lost_samples) == (1, 0, 0)
