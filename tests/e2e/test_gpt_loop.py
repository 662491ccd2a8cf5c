"""The loop by steps of the second guide, before and after its conversion, through the whole of Headway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.contract.spec import JobSpec
from tests.e2e.conftest import Cluster

FOLDER = Path(__file__).parents[2] / "examples" / "gpt_loop"
STEPS = 301


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path) -> Any:
    """Submits a job file of the guide with a short training on one slot; a function that reads the job."""

    def submitted(name: str) -> Any:
        spec = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
        settings = {"data_dir": tmp_path / "data", "out_dir": tmp_path / "out", "max_iters": STEPS - 1}
        options = "".join(f" --{key}={value}" for key, value in settings.items())
        spec |= {
            "workdir": str(FOLDER),
            "run": f"{spec['run']}{options} --eval_interval=10",
            "env": {"OMP_NUM_THREADS": "1"},
        }
        job_id = cluster.client.submit(JobSpec.model_validate(spec)).id
        cluster.client.resize(job_id, 1)
        return lambda: cluster.client.job(job_id)

    return submitted


@pytest.mark.slow
def test_the_script_before_resumes_at_another_size(cluster: Cluster, submit: Any) -> None:
    job = submit("before")
    cluster.until(lambda: job().progress.samples >= 25, "steps after its first checkpoint")
    cluster.client.resize(job().id, 2)
    cluster.until(lambda: job().progress.resumption is not None, "evidence")
    assert job().progress.resumption.resumes
    assert cluster.ended(job().id).progress.samples == STEPS - 1


@pytest.mark.slow
def test_the_script_after_grows_in_place_and_is_counted_in_steps(cluster: Cluster, submit: Any) -> None:
    job = submit("after")
    cluster.until(lambda: (job().progress.train_step or 0) >= 5, "steps")
    cluster.client.resize(job().id, 2)
    cluster.until(lambda: job().progress.pause_s is not None, "the change in place")
    assert f"of {STEPS}" in cluster.headway("describe", job().name).stdout
    assert f"of {STEPS}" in cluster.headway("ps").stdout
    assert f"of {STEPS}" in cluster.client.forecast(job().id).work.reason
    done = cluster.ended(job().id)
    assert (done.progress.train_step, done.progress.position_text) == (STEPS, f"step {STEPS} of {STEPS}")
    assert (done.progress.lost_steps, done.progress.lost_samples) == (0, 0)
    assert done.progress.samples == STEPS * 32
    assert (done.progress.draws, done.progress.epochs_audited, done.progress.epochs_exact) == (True, 1, 1)
