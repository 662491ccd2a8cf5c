"""Hosts that cannot reach each other are named soon, and no job spans them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.networking.cluster import Network
from headway.client.client import Client
from headway.contract.views.jobs import JobState, Reason
from tests.e2e.conftest import Cluster
from tests.e2e.hosts import ready
from tests.network.test_interfaces import pair

NAMED_S = 10.0


@pytest.mark.slow
def test_a_pair_that_cannot_talk_is_named_within_ten_seconds_and_no_job_spans_it(
    net: Network, client: Client, cluster: Cluster, tmp_path: Path
) -> None:
    for name in ("host-a", "host-b"):
        net.add_host(name).isolate()
    cluster.until(lambda: ready(client) == set(net.hosts), "both nodes")
    began_s = time.monotonic()
    cluster.until(lambda: bool(client.hosts().links), "the connections")
    took_s = time.monotonic() - began_s
    net.add_host("host-c")
    cluster.until(lambda: client.hosts().links_probed == 6, "all pairs")
    assert took_s <= NAMED_S
    failing = {(link.source, link.target) for link in client.hosts().links if link.failure}
    assert failing == {("host-a", "host-b"), ("host-b", "host-a")}
    shown = cluster.headway("doctor", "--cluster")
    assert shown.returncode == 1
    assert f"host-a cannot reach {net.hosts['host-b'].address}:" in " ".join(shown.stdout.split())
    # Two of the three hosts can talk in two ways; the third way is never taken.
    job = client.submit(pair(tmp_path))
    *_, last = client.watch(job.id, every_s=0.1)
    assert (last.state, last.attempt) == (JobState.SUCCEEDED, 1), last.message
    waiting = client.submit(pair(tmp_path, name="three", elastic={"min": 3, "max": 3}))
    cluster.until(lambda: client.job(waiting.id).reason is Reason.UNREACHABLE, "the reason")
    assert client.job(waiting.id).attempt == 0
    for host in net.hosts.values():
        host.isolate(on=False)
    cluster.until(lambda: not any(link.failure for link in client.hosts().links), "the healed connections")
    cluster.until(lambda: client.job(waiting.id).attempt == 1, "its start")
