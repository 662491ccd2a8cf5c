"""Jobs that hang are found, say where, and come to their end by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import EventView, JobView, Reason
from tests.e2e.conftest import SCRIPTS, Cluster, end_job

pytestmark = pytest.mark.slow

PLAIN = """
import os, pathlib, signal
import torch
import torch.distributed as dist
once = pathlib.Path(os.environ["ONCE"])
dist.init_process_group("gloo")
def add_up(step):
    total = torch.ones(1)
    dist.all_reduce(total)
    print("step", step, "sum", total.item(), flush=True)
for step in range(200):
    add_up(step)
    if step == 100 and dist.get_rank() == 1 and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
"""


def submit(cluster: Cluster, name: str, folder: Path, **spec: object) -> JobView:
    made = {"name": name, "hung_after": "10s", "retry": {"infrastructure": 3}, **spec}
    env = {"ONCE": str(folder / "once"), **(spec.get("env") or {})}  # type: ignore[dict-item]
    return cluster.client.submit(JobSpec.model_validate({**made, "env": env}))


def log_of(cluster: Cluster, job: JobView, rank: int) -> str:
    return "".join(chunk.text for chunk in cluster.client.logs(job.id, rank=rank))


def comes_to_its_end(cluster: Cluster, job: JobView) -> EventView:
    """It hangs once and then succeeds; what was seen of it."""
    client = cluster.client
    try:
        done = cluster.ended(job.id)
    finally:
        end_job(client, job.name)
    assert (done.attempt, done.infrastructure_failures, done.user_errors) == (2, 1, 0)
    (event,) = [one for one in client.events(job.id) if one.kind == "hung"]
    assert event.reason is Reason.HUNG
    return event


@pytest.mark.parametrize("how", ["lock", "gil", "stopped"])
def test_a_library_job_that_hangs_goes_on_from_its_checkpoint(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    """One rank hangs, on whichever of the nodes; the others wait for it in a collective."""
    name = f"hangs-{how}"
    job = submit(
        cluster,
        name,
        tmp_path,
        workdir=str(SCRIPTS),
        run="python hangs.py",
        env={"HOW": how, "WHO": "2", "AT": "60", "ONCE": str(tmp_path / "once")},
        elastic={"min": 3, "max": 3},
        checkpoint={"every": "100ms"},
    )
    event = comes_to_its_end(cluster, job)
    assert event.data["usual_s"] > 0
    done = cluster.client.job(job.id).progress
    assert (done.epochs_exact, done.samples) == (done.epochs_audited, done.total_samples)
    place = "stopped by a signal (T)" if how == "stopped" else "in hang"
    cluster.until(lambda: place in log_of(cluster, job, 2), f"the log to say: {place}")


def test_a_plain_job_that_hangs_starts_again(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    job = submit(
        cluster,
        "hangs-plain",
        tmp_path,
        workdir=str(tmp_path),
        run="python train.py",
        elastic={"min": 3, "max": 3, "resize": "restart"},
    )
    event = comes_to_its_end(cluster, job)
    assert "in add_up" in event.message
    assert "no sign of training for" in event.message
    cluster.until(
        lambda: "stopped by a signal (T)" in log_of(cluster, job, 1), "the log to say who was stopped"
    )
