"""A script in the manner of nanoGPT runs unmodified, restarted at another size or at one size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.contract.spec import JobSpec
from tests.e2e.conftest import SCRIPTS, Cluster

ITERATIONS = 160
RESUME = "$(test -f $HEADWAY_OUTPUT_DIR/ckpt.pt && echo resume || echo scratch)"


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path) -> Any:
    """Submits the script with fields of a job file; a function that reads the job."""
    for split in ("train", "val"):
        np.frombuffer(Path(__file__).read_bytes(), dtype=np.uint8).astype(np.uint16).tofile(
            tmp_path / f"{split}.bin"
        )

    def submitted(name: str, elastic: dict[str, Any], options: str = "") -> Any:
        spec = {
            "name": name,
            "workdir": str(SCRIPTS / "gpt"),
            "run": f"python train.py small.py --data_dir={tmp_path} --out_dir=$HEADWAY_OUTPUT_DIR {options}",
            "env": {"OMP_NUM_THREADS": "1"},
            "elastic": elastic,
            "progress": {"regex": r"iter (?P<step>\d+): loss (?P<loss>[\d.]+)"},
        }
        job_id = cluster.client.submit(JobSpec.model_validate(spec)).id
        return lambda: cluster.client.job(job_id)

    return submitted


@pytest.mark.slow
def test_it_resumes_from_its_own_checkpoint_at_another_size(cluster: Cluster, submit: Any) -> None:
    job = submit(
        "gpt-restart",
        {"min": 1, "max": 2, "resize": "restart"},
        f"--init_from={RESUME} --pause_s=0.05",
    )
    cluster.client.resize(job().id, 1)
    cluster.until(lambda: job().progress.samples >= 25, "steps after its first checkpoint")
    cluster.client.resize(job().id, 2)
    cluster.until(lambda: job().progress.resumption is not None, "evidence")
    resumption = job().progress.resumption
    assert resumption.resumes
    assert resumption.began_at >= 10
    assert job().size == 2
    done = cluster.ended(job().id)
    assert done.progress.samples == ITERATIONS
    assert done.progress.lost_samples <= 10 + 2, "at most the steps between two of its checkpoints"
    assert done.progress.metrics["loss"] < 4.0


@pytest.mark.slow
def test_it_runs_at_the_one_size_of_its_job_file(cluster: Cluster, submit: Any) -> None:
    job = submit("gpt-never", {"min": 2, "max": 2, "resize": "never"})
    done = cluster.ended(job().id)
    assert (done.progress.samples, done.generation) == (ITERATIONS, 1)
    assert done.progress.metrics["loss"] < 4.0
