"""A job file with partial back-propagation through the whole of Headway: ranks skip layers in turn, and stay equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.contract.views.jobs import JobState
from tests.e2e.conftest import Cluster

SAMPLES, EPOCHS, BATCH = 256, 6, 16
STEPS = SAMPLES * EPOCHS // BATCH
SCRIPT = f"""
import json
import os
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import headway

torch.manual_seed(0)
run = headway.init()
x = torch.randn({SAMPLES}, 16)
y = torch.sin(x[:, :1])
first = torch.nn.Linear(16, 16)
reached = 0


def count(gradient):
    global reached
    reached += 1


def watch(module, inputs, output):
    if output.requires_grad:
        output.register_hook(count)


first.register_forward_hook(watch)
model = torch.nn.Sequential(first, torch.nn.Tanh(), torch.nn.Linear(16, 1))
wrapped, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-2))
loader = run.loader(TensorDataset(x, y), global_batch={BATCH}, seed=3)
for epoch in run.epochs({EPOCHS}):
    for inputs, targets in loader:
        loss = (wrapped(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
sums = [float(one.double().sum()) for one in model.state_dict().values()]
told = os.environ.get("HEADWAY_MIN_DEPTH")
Path(os.environ["RESULT"], f"{{run.rank}}.json").write_text(json.dumps([told, reached, sums]))
"""
JOB_FILE = """
name: partial
workdir: {folder}
run: python train.py
env: {{RESULT: {folder}}}
elastic: {{min: 2, max: 2, partial_backprop: {{min_depth: 0.5}}}}
"""


@pytest.mark.slow
def test_a_job_file_with_partial_backprop_trains(cluster: Cluster, tmp_path: Path) -> None:
    client = cluster.client
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text(JOB_FILE.format(folder=tmp_path))
    done = cluster.headway("submit", str(tmp_path / "job.yaml"), "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = [one for one in client.jobs() if one.name == "partial"]
    assert job.state is JobState.SUCCEEDED
    assert (job.progress.epochs_audited, job.progress.epochs_exact) == (EPOCHS, EPOCHS)
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [told for told, _, _ in results] == ["0.5", "0.5"]
    # The first step goes through everything on both ranks, and of each later one rank does.
    reached = [count for _, count, _ in results]
    assert sum(reached) == STEPS + 1
    assert abs(reached[0] - reached[1]) <= EPOCHS
    assert results[0][2] == results[1][2]
    shown = cluster.headway("describe", "partial")
    assert "50%" in shown.stdout
