"""Work with a complete checkpoint is never lost: the failed job continues, and a new one starts from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from headway.contract.views.jobs import JobState
from tests.e2e.conftest import SCRIPTS, Cluster

EPOCHS, SAMPLES, BATCH = 3, 96, 4


@pytest.mark.slow
def test_failed_job_is_resumed_and_starts_another_from_its_checkpoint(
    cluster: Cluster, tmp_path: Path
) -> None:
    client, mended, file = cluster.client, tmp_path / "mended", tmp_path / "job.yaml"
    spec = {
        "name": "broken",
        "workdir": str(SCRIPTS),
        "run": "python mended.py",
        "env": {"MENDED": str(mended)},
        "elastic": {"min": 1, "max": 1},
        "checkpoint": {"every": 0.1},
    }
    file.write_text(yaml.safe_dump(spec))
    failed = cluster.headway("submit", str(file), "--wait")
    assert failed.returncode == 100, failed.stderr
    broken = client.job("broken")
    saved = next(one.samples for one in client.checkpoints("broken").items if one.complete)
    assert saved
    mended.touch()

    refused = cluster.headway("submit", str(file), "--from", "brokne", "--set", "name=other")
    assert refused.returncode != 0
    assert "broken" in refused.stderr
    other = cluster.headway("submit", str(file), "--from", "broken", "--set", "name=other", "--wait")
    assert other.returncode == 0, other.stderr
    started = client.job("other")
    assert started.progress.started_from is not None
    assert (started.progress.started_from.job_id, started.progress.started_from.samples) == (broken.id, saved)
    (first,) = [one for one in client.events("other") if one.kind == "first_step"]
    assert (first.data["samples"], started.progress.lost_samples) == (saved + BATCH, 0)

    assert cluster.headway("resume", "broken").returncode == 0
    resumed = cluster.ended(broken.id)
    assert resumed.generation > broken.generation
    for job in (started, resumed):
        assert job.state is JobState.SUCCEEDED
        assert (job.progress.epochs_exact, job.progress.samples) == (EPOCHS, EPOCHS * SAMPLES)
