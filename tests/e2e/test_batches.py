"""An adaptive batch through the whole of Headway: measured by the ranks, chosen by the service, kept by a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import EventView, JobState
from tests.e2e.conftest import Cluster, submit_at

SAMPLES, EPOCHS, BATCH, MOST = 4096, 20, 16, 128
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
        time.sleep(0.01)  # most of a step, whatever its batch, also on a busy machine
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
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
    made, read = last.progress.progress, last.progress.samples
    assert (made, last.progress.total_progress) == (
        pytest.approx(SAMPLES * EPOCHS, abs=MOST),
        SAMPLES * EPOCHS,
    )
    assert SAMPLES * EPOCHS <= (made or 0.0) <= read, (
        "what is read beyond the epochs makes up for larger batches"
    )
    assert last.progress.epochs_audited == last.progress.epochs_exact == read // SAMPLES
    assert (f"of {EPOCHS} (progress)" in last.progress.position_text) == (read != made)
    events = list(client.events(job.id))
    changes = [event.data for event in events if event.kind == "batch_changed"]
    assert changes[0]["from"] == BATCH
    (again,) = [event for event in events if event.kind == "allocate" and event.generation > 1]
    begun = [
        event.data["from"]
        for event in events
        if event.kind == "batch_changed" and event.sequence > again.sequence
    ]
    assert all(batch == again.data["global_batch"] for batch in begun[:1]), (
        "the batch that its start begins with"
    )
    assert (paused.progress.global_batch or 0) <= again.data["global_batch"] <= MOST
    assert all(one["lr_factor"] == pytest.approx((one["to"] / BATCH) ** 0.5) for one in changes)
    assert BATCH < (paused.progress.global_batch or 0) <= MOST


NOISE_SCALE, STEP_S, SAMPLE_S = 4096, 0.02, 0.0002
"""Noise scale of the gradient in samples, and seconds of a step: `STEP_S` + `SAMPLE_S` * M / k for M samples on k slots."""
KNOWN_NOISE = f"""
import time

import torch
from torch.utils.data import TensorDataset

import headway

torch.manual_seed(0)
run = headway.init()
x = 1 + {NOISE_SCALE} ** 0.5 * torch.randn(1 << 16, 16)  # the gradient of a sample: its noise scale is known
model = torch.nn.Linear(16, 1, bias=False)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-9))
loader = run.loader(TensorDataset(x), global_batch={BATCH}, seed=3, balance=False)
for epoch in run.epochs(100):
    for (inputs,) in loader:
        time.sleep({STEP_S} + {SAMPLE_S} * len(inputs))
        loss = model(inputs).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_batch_comes_with_the_size_in_the_same_order_and_with_the_next_start(
    cluster: Cluster, tmp_path: Path
) -> None:
    """One slot is best at 640 samples (the root of 100 * 4,096), four are best at 1,280: both are far away."""
    client = cluster.client
    (tmp_path / "train.py").write_text(KNOWN_NOISE)
    spec = {
        "name": "grows-1",
        "workdir": str(tmp_path),
        "run": "python train.py",
        "elastic": {"min": 1, "max": 4},
        "batch": {"policy": "adaptive", "global": BATCH, "max_global": 1024},
    }
    job = submit_at(client, JobSpec.model_validate(spec), 1)
    cluster.until(lambda: (client.job(job).progress.global_batch or 0) >= 4 * BATCH, "the climb on one slot")
    measured = client.job(job).progress.samples + 40 * 4 * BATCH
    cluster.until(lambda: client.job(job).progress.samples >= measured, "measured steps with this batch")
    assert client.job(job).progress.lr_rule == "adascale", "by its optimizer"
    client.resize(job, 4)
    cluster.until(lambda: any(_grew(event) for event in client.events(job)), "four slots")
    cluster.until(lambda: any(_changed_with_size(event) for event in client.events(job)), "their batch")
    (grown,) = [event for event in client.events(job) if _grew(event)]
    (changed,) = [event for event in client.events(job) if _changed_with_size(event)]
    assert changed.generation == grown.generation, "in the same order"
    assert changed.data["from"] < changed.data["to"] <= 2 * changed.data["from"]
    cluster.until(lambda: (client.job(job).progress.global_batch or 0) >= changed.data["to"], "steps with it")
    client.cancel(job)
    cluster.until(lambda: client.job(job).state is JobState.CANCELLED, "the end of the first job")
    following = client.submit(JobSpec.model_validate({**spec, "name": "grows-2"})).id
    cluster.until(lambda: client.job(following).progress.samples > 0, "steps of the second job")
    (started,) = [event for event in client.events(following) if event.kind == "allocate"]
    assert started.data["global_batch"] > 4 * BATCH, "with what its class has tried, without a climb"
    assert not [event for event in client.events(following) if event.kind == "batch_changed"]
    client.cancel(following)


def _grew(event: EventView) -> bool:
    return event.kind == "switch" and event.data["to"] == 4


def _changed_with_size(event: EventView) -> bool:
    return event.kind == "batch_changed" and str(event.data["reason"]).endswith("at 4 slots")
