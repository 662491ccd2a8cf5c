"""A host whose link loses bandwidth while a job trains is marked soon, no other is, and the job leaves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import stamps
from benchmarks.arguments import shared_folder
from benchmarks.networking.cluster import Network
from benchmarks.networking.trials import SCRIPTS, SLOW_SIZE
from headway.client.client import Client
from headway.contract.spec import JobSpec
from tests.e2e.conftest import Cluster
from tests.e2e.hosts import ready

MBIT_PER_S = 200.0
WITHIN_STEPS = 50
BEFORE = 40
HOSTS = ("host-a", "host-b", "host-c", "host-d")


@pytest.mark.slow
def test_a_link_at_a_tenth_marks_its_host_within_50_steps_and_no_other_and_the_job_leaves_it(
    net: Network, client: Client, cluster: Cluster, tmp_path: Path
) -> None:
    file = shared_folder(tmp_path) / "steps"
    for name in HOSTS:
        net.add_host(name).limit(MBIT_PER_S)
    cluster.until(lambda: ready(client) == set(net.hosts), "all nodes")
    cluster.until(lambda: client.hosts().bytes_per_s is not None, "the first rates")

    def marked() -> set[str]:
        return {host.name for host in client.hosts().hosts if host.slow_link}

    spec = {
        "name": "slow-link",
        "workdir": str(SCRIPTS),
        "run": f"python resizing.py {SLOW_SIZE} {file}",
        "elastic": {"min": 3, "max": 3},
        "checkpoint": {"every": "2h"},
    }
    job = client.submit(JobSpec.model_validate(spec)).id
    cluster.until(lambda: len(stamps.read(file)) >= BEFORE, "the first steps")
    assert marked() == set()
    slow = max(client.job(job).allocation)
    net.hosts[slow].limit(MBIT_PER_S / 10)
    before = len(stamps.read(file))
    cluster.until(lambda: bool(marked()), "the slow host")
    steps = len(stamps.read(file)) - before
    assert marked() == {slow}
    assert steps <= WITHIN_STEPS
    cluster.until(lambda: slow not in client.job(job).allocation, "the move")
    assert client.job(job).size == 3
    assert client.job(job).attempt == 1
    client.cancel(job, force=True)
