"""An adaptive batch through the whole of Headway: measured by the ranks, chosen by the service, kept by a restart."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from tests.e2e.conftest import Cluster

SAMPLES, EPOCHS, BATCH, MOST = 4096, 30, 16, 128
SCRIPT = f"""
import time

import torch
from torch.utils.data import TensorDataset

import headway

torch.manual_seed(0)
run = headway.init()
x = torch.randn({SAMPLES}, 16)
y = x[:, :1] + 5 * torch.randn({SAMPLES}, 1)  # mostly noise: larger batches pay
model = torch.nn.Linear(16, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
loader = run.loader(TensorDataset(x, y), global_batch={BATCH}, seed=3)
for epoch in run.epochs({EPOCHS}):
    for inputs, targets in loader:
        time.sleep(0.002)  # a step costs something, whatever its batch
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_the_batch_grows_while_the_job_trains_and_survives_a_pause(cluster: Cluster, tmp_path: Path) -> None:
    client = cluster.client
    (tmp_path / "train.py").write_text(SCRIPT)
    spec = {
        "name": "adaptive",
        "workdir": str(tmp_path),
        "run": "python train.py",
        "elastic": {"min": 2, "max": 2},
        "batch": {"policy": "adaptive", "global": BATCH, "max_global": MOST, "lr_rule": "sqrt"},
    }
    job = client.submit(JobSpec.model_validate(spec))
    cluster.until(lambda: (client.job(job.id).progress.global_batch or 0) > BATCH, "a larger batch")
    client.pause(job.id)
    cluster.until(lambda: client.job(job.id).state is JobState.PAUSED, "the pause")
    paused = client.job(job.id)
    client.resume(job.id)
    *_, last = client.watch(job.id, every_s=0.1)
    assert last.state is JobState.SUCCEEDED, last.message
    assert (last.progress.epochs_audited, last.progress.epochs_exact) == (EPOCHS, EPOCHS)
    assert last.progress.samples == SAMPLES * EPOCHS
    changes = [event.data for event in client.events(job.id) if event.kind == "batch_changed"]
    assert changes[0]["from"] == BATCH
    assert all(before["to"] == after["from"] for before, after in pairwise(changes)), (
        "the batch that a start begins with is the one before it"
    )
    assert all(one["lr_factor"] == pytest.approx((one["to"] / BATCH) ** 0.5) for one in changes)
    assert BATCH < (paused.progress.global_batch or 0) <= MOST
