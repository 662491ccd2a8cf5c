"""Ranks on several hosts meet on the interfaces of their nodes' addresses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.networking.cluster import Network
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState, Reason
from tests.e2e.conftest import SCRIPTS, Cluster
from tests.e2e.hosts import ready


def pair(tmp_path: Path, **fields: Any) -> JobSpec:
    """A short job of two ranks."""
    (tmp_path / "hurry").touch()
    spec = {
        "name": "pair",
        "workdir": str(SCRIPTS),
        "run": "python patient.py",
        "env": {"HURRY": str(tmp_path / "hurry"), "EPOCHS": "2"},
        "elastic": {"min": 2, "max": 2},
    }
    return JobSpec.model_validate({**spec, **fields})


@pytest.mark.slow
def test_hosts_whose_names_mean_a_loopback_address_train_together(
    net: Network, client: Client, cluster: Cluster, tmp_path: Path
) -> None:
    for name in ("host-a", "host-b"):
        net.add_host(name)
    cluster.until(lambda: ready(client) == set(net.hosts), "both nodes")
    assert {node.address for node in client.nodes()} == {host.address for host in net.hosts.values()}
    job = client.submit(pair(tmp_path))
    *_, last = client.watch(job.id, every_s=0.1)
    assert last.state is JobState.SUCCEEDED, last.message
    assert (last.attempt, last.progress.epochs_exact) == (1, 2)


def said_by(client: Client, job: str) -> str:
    """Return what the job's first failure to meet says; "" before it."""
    kinds = {"fail_rank", "requeue"}
    met = [
        one.message for one in client.events(job) if one.kind in kinds and one.reason is Reason.UNREACHABLE
    ]
    return met[0] if met else ""


@pytest.mark.slow
def test_hosts_that_cannot_reach_each_other_are_named_by_the_job_that_met_it(
    net: Network, client: Client, cluster: Cluster, tmp_path: Path
) -> None:
    for name in ("host-a", "host-b"):
        net.add_host(name)
    # Once both have been probed, only the job itself finds that they are cut off from each other.
    cluster.until(lambda: client.hosts().links_probed == 2, "the probes")
    for host in net.hosts.values():
        host.isolate()
    job = client.submit(pair(tmp_path))
    cluster.until(lambda: said_by(client, job.id) != "", "the reason")
    said = said_by(client, job.id)
    found = re.search(r"(host-[ab]) cannot reach (host-[ab]):\d+ \((10\.[\d.]+)\): no answer", said)
    assert found is not None, said
    assert {found[1], found[2]} == set(net.hosts)
    assert found[3] == net.hosts[found[2]].address
    assert (found[1], found[2]) in {(one.source, one.target) for one in client.hosts().links}
    client.cancel(job.id)
