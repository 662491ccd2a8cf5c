"""One MLflow run per job, in a store of MLflow's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from headway.train.host.environment import Environment
from headway.train.trackers import TrackerUnavailable, senders

needs_mlflow = pytest.mark.skipif(
    find_spec("mlflow") is None, reason="MLFLOW IS NOT TESTED: pip install 'headway[mlflow]'"
)
TRAIN_AND_SHOW = """
import json
from pathlib import Path

from mlflow.tracking import MlflowClient

from headway.train.host.environment import Job
from tests.unit.headway.train.trackers.test_trackers import train

folder = Path.cwd()
kept = {"checkpoint_uri": str(folder / "j-1"), "job": Job("j-1", "digits", "vision"), "tracker": "mlflow"}
train(1, generation=1, global_batch=4, **kept)
train(3, generation=2, stop_at=5, **kept)
client = MlflowClient()
runs = lambda: client.search_runs([client.get_experiment_by_name("vision").experiment_id])
between = runs()[0].info.status
train(3, generation=3, **kept)
train(1, generation=1, **{**kept, "checkpoint_uri": None, "job": Job("j-2", "digits", "vision")})
shown = [
    {
        "name": run.info.run_name,
        "status": run.info.status,
        "params": run.data.params,
        "tags": run.data.tags,
        **{key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)] for key in run.data.metrics},
    }
    for run in runs()
]
print(json.dumps({"between": between, "runs": shown}))
"""


@needs_mlflow
def test_a_job_has_one_run_over_generations(tmp_path: Path) -> None:
    """The second generation is lost in step 5 with its last checkpoint after step 3: the third does two steps again."""
    done = subprocess.run(  # MLflow changes a lot in the process that imports it
        [sys.executable, "-c", TRAIN_AND_SHOW],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[5]),
            "MLFLOW_TRACKING_URI": (tmp_path / "runs").as_uri(),
            "MLFLOW_ALLOW_FILE_STORE": "true",  # quicker than its database, and all it has without a server
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["between"] == "RUNNING"
    runs: dict[str, Any] = {run["tags"]["headway.job_id"]: run for run in found["runs"]}
    assert sorted(runs) == ["j-1", "j-2"]
    run = runs["j-1"]
    assert (run["name"], run["status"], run["params"]) == ("digits", "FINISHED", {"batch.global": "4"})
    tags = ("job", "project", "generation", "size")
    assert [run["tags"][f"headway.{tag}"] for tag in tags] == ["digits", "vision", "3", "1"]
    assert run["loss"] == [[step, step] for step in range(1, 10)]
    assert run["epoch"] == [[3, 0], [6, 1], [9, 2]]


@needs_mlflow
def test_without_an_address_it_is_refused() -> None:
    assert "MLFLOW_TRACKING_URI" not in os.environ
    with pytest.raises(TrackerUnavailable, match=r"TRACKER_UNAVAILABLE.*Set MLFLOW_TRACKING_URI"):
        senders(("mlflow",), Environment())


def test_without_the_package_it_is_refused() -> None:
    with pytest.raises(TrackerUnavailable, match=r"TRACKER_UNAVAILABLE.*pip install 'headway\[mlflow\]'"):
        senders(("mlflow",), Environment(), installed=lambda _name: False)


def test_what_the_environment_asks_for() -> None:
    assert Environment.read({}).trackers == ()
    assert Environment.read({"HEADWAY_TRACKERS": "mlflow, tensorboard,mlflow"}).trackers == (
        "mlflow",
        "tensorboard",
    )
    with pytest.raises(
        ValueError, match="HEADWAY_TRACKERS names 'wandb'; it must name some of tensorboard, mlflow"
    ):
        Environment.read({"HEADWAY_TRACKERS": "wandb"})
