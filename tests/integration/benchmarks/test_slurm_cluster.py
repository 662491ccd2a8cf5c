"""The Slurm cluster of the tests leaves no process behind, also when its controller no longer answers."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from benchmarks.engines.slurm_cluster import INSTALLED, MISSING, slurm_cluster
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not INSTALLED, reason=MISSING)
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "hanging"])
async def test_cluster_whose_controller_does_not_answer_ends_with_nodes_and_jobs(
    tmp_path: Path, fate: signal.Signals
) -> None:
    with slurm_cluster(tmp_path / "slurm", nodes=1) as slurm:
        slurm.take_nodes(1)
        await until(lambda: "sleep" in names(slurm.job_processes()))
        running = [*slurm.job_processes(), *(psutil.Process(one.pid) for one in slurm.processes.values())]
        slurm.processes["slurmctld"].send_signal(fate)
    await until(lambda: not [one for one in running if is_alive(one)])


def names(processes: list[psutil.Process]) -> set[str]:
    return {one.name() for one in processes}


def is_alive(one: psutil.Process) -> bool:
    return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
