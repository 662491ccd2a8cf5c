"""Training under the filter of system calls through the whole of Headway, and what users see of it."""

from __future__ import annotations

import json

import pytest

from headway.contract.isolation import PROBE_KINDS
from headway.contract.spec import JobSpec
from tests.e2e.conftest import SCRIPTS, Cluster, submit_at


@pytest.mark.slow
def test_filtered_ranks_train_with_every_kind_of_loader_worker_and_a_profiler(
    cluster: Cluster, name: str
) -> None:
    spec = {
        "name": name,
        "workdir": str(SCRIPTS),
        "run": "python loaders.py",
        "env": {"OMP_NUM_THREADS": "1"},
        "elastic": {"min": 1, "max": 2},
    }
    job_id = submit_at(cluster.client, JobSpec.model_validate(spec), 2)
    done = cluster.ended(job_id)
    assert done.progress.samples == 2 * 256
    log = cluster.headway("logs", name).stdout
    kept = json.loads(next(line for line in log.splitlines() if "KEPT" in line).partition("KEPT ")[2])
    ways = ("fork, file_descriptor", "fork, file_system", "spawn, file_descriptor", "forkserver, file_system")
    assert {way: tuple(kept[way]) for way in ways} == dict.fromkeys(ways, (64, 2))
    assert (kept["rank"], kept["profiled"]) == (2, True)


@pytest.mark.slow
def test_doctor_shows_what_a_confined_program_reached_on_each_host(cluster: Cluster) -> None:
    hosts = cluster.client.hosts().hosts
    assert len(hosts) == 2
    for host in hosts:
        assert host.isolation is not None
        assert set(host.isolation.results) == set(PROBE_KINDS)
        kernel = host.isolation.results["kernel"]
        assert (kernel.probes >= 40, kernel.open) == (True, [])
    shown = cluster.headway("doctor", "--cluster").stdout
    assert f"{kernel.probes}/{kernel.probes}" in shown
    assert "KERNEL" in shown
