"""A script of which one rank leaves its loops alone, behind the service: the job ends for good, and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, JobState, Reason
from tests.e2e.conftest import Cluster

SCRIPT = """
import os

import torch

import headway

run = headway.init()
net = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
data = run.loader(torch.randn(240, 4), global_batch=12, seed=7, num_workers=0)
for epoch in run.epochs(9):
    for number, batch in enumerate(data):
        if os.environ["LOOP"] == "inner" and run.rank == 1 and (epoch, number) == (1, 2):
            break
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if os.environ["LOOP"] == "outer" and run.rank == 1 and epoch == 1:
        break
"""


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["inner", "outer"])
def test_job_of_which_one_rank_leaves_a_loop_fails_once_with_the_sentence(
    cluster: Cluster, name: str, tmp_path: Path, loop: str
) -> None:
    client = cluster.client
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    spec = {
        "name": name,
        "workdir": str(tmp_path),
        "run": "python train.py",
        "env": {"LOOP": loop},
        "elastic": {"min": 2, "max": 2},
        "retry": {"infrastructure": 5},
    }
    job = client.submit(JobSpec.model_validate(spec)).id
    cluster.until(lambda: client.job(job).state in TERMINAL_STATES, "its end")
    failed = client.job(job)
    assert (failed.state, failed.reason) == (JobState.FAILED, Reason.USER_ERROR), failed.message
    assert (failed.attempt, failed.infrastructure_failures) == (1, 0)
    assert "LOOP_LEFT: rank 1 left the" in failed.message
    assert "Have every rank leave" in failed.message
