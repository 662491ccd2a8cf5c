"""Real jobs through the whole of Headway, as its users see it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState, JobView, Reason
from tests.e2e.conftest import PATIENCE_S, Cluster, living_ranks

EXAMPLES = Path(__file__).parents[2] / "examples"


def submit_example(client: Client, example: str, name: str, run: str) -> JobView:
    body = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
    return client.submit(JobSpec.model_validate({**body, "name": name, "run": run, "workdir": str(EXAMPLES)}))


def job_file(folder: Path, name: str, script: str, **spec: object) -> str:
    (folder / "train.py").write_text(script)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({"name": name, "workdir": ".", "run": "python train.py", **spec}))
    return str(path)


@pytest.mark.slow
def test_wait_returns_0_for_success(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.headway("submit", job_file(tmp_path, "good", "print('hello from the job')"), "--wait")
    assert done.returncode == 0, done.stderr
    assert "hello from the job" in cluster.headway("logs", "good").stdout
    assert json.loads(cluster.headway("describe", "good", "-o", "json").stdout)["state"] == "SUCCEEDED"


@pytest.mark.slow
def test_wait_returns_100_for_failure_with_the_last_lines(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.headway("submit", job_file(tmp_path, "bad", "print('before')\n1 / 0"), "--wait")
    assert done.returncode == 100
    assert "ZeroDivisionError" in done.stdout + done.stderr
    job = cluster.client.job("bad")
    assert (job.state, job.reason) == (JobState.FAILED, Reason.USER_ERROR)
    assert "ZeroDivisionError" in job.message


@pytest.mark.slow
def test_wait_returns_103_for_a_cancelled_job(cluster: Cluster, tmp_path: Path) -> None:
    file = job_file(tmp_path, "stopped", "import threading\nthreading.Event().wait()")
    env = {**os.environ, "HEADWAY_URL": cluster.stack.url, "HEADWAY_TOKEN": cluster.stack.token}
    command = [sys.executable, "-m", "headway.cli", "submit", file, "--wait"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        cluster.until(
            lambda: any(
                job.name == "stopped" and job.state is JobState.RUNNING for job in cluster.client.jobs()
            ),
            "the job to run",
        )
        assert cluster.headway("cancel", "stopped").returncode == 0
        waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 103


# In the gate: the promise that every sample is trained once.
def test_digits_is_exact_over_a_grow_a_killed_rank_and_a_move(cluster: Cluster) -> None:
    client, epochs = cluster.client, 30
    job = submit_example(client, "digits", "digits-e2e", f"python digits.py --epochs {epochs}")
    client.resize(job.id, 1)
    cluster.until(lambda: client.job(job.id).progress.samples > 0, "training to begin")
    client.resize(job.id, 2)
    cluster.until(lambda: running_at(client, job.id, size=2), "two ranks")
    generation = client.job(job.id).generation
    ranks = living_ranks(cluster.stack.data, job.id)
    os.kill(ranks[max(ranks)], signal.SIGKILL)
    cluster.until(lambda: running_at(client, job.id, size=2, after=generation), "the recovery")
    node = max(client.job(job.id).allocation)
    client.drain(node)
    cluster.until(
        lambda: any(one.name == node and one.state is NodeState.DRAINED for one in client.nodes()),
        "the drain",
    )
    client.uncordon(node)
    *_, last = client.watch(job.id, every_s=0.1)
    assert last.state is JobState.SUCCEEDED, last.message
    assert last.progress.epochs_exact == last.progress.epochs_audited == epochs
    assert last.progress.samples == last.progress.total_samples == epochs * 1347
    assert last.progress.metrics["accuracy"] >= 0.97
    assert last.progress.lost_steps <= 1
    assert (last.attempt, last.infrastructure_failures, last.progress.lost_samples) == (1, 0, 0)
    assert last.generation >= 4, "grown, killed, grown back and moved"


def running_at(client: Client, job: str, *, size: int, after: int = 0) -> bool:
    now = client.job(job)
    assert now.state not in {JobState.FAILED, JobState.CANCELLED}, now.message
    return now.state is JobState.RUNNING and now.size == size and now.generation > after


@pytest.mark.slow
def test_pause_keeps_the_position_and_resume_goes_on(cluster: Cluster) -> None:
    client = cluster.client
    job = submit_example(client, "digits", "digits-pause", "python digits.py --epochs 12")
    cluster.until(lambda: client.job(job.id).progress.samples > 0, "training to begin")
    client.pause(job.id)
    cluster.until(lambda: client.job(job.id).state is JobState.PAUSED, "the pause")
    paused = client.job(job.id)
    assert paused.allocation == {}
    assert paused.progress.checkpoint_samples == paused.progress.samples
    client.resume(job.id)
    *_, last = client.watch(job.id, every_s=0.1)
    assert last.state is JobState.SUCCEEDED, last.message
    assert last.progress.lost_samples == 0
    assert last.progress.epochs_exact == 12


@pytest.mark.slow
@pytest.mark.parametrize("resize", ["restart", "never"])
def test_a_plain_script_runs(cluster: Cluster, resize: str) -> None:
    client = cluster.client
    body = yaml.safe_load((EXAMPLES / "plain_ddp.yaml").read_text())
    spec = {
        **body,
        "name": f"plain-{resize}",
        "workdir": str(EXAMPLES),
        "run": "python plain_ddp.py --steps 1500",
        "elastic": {"min": 2, "resize": "never"}
        if resize == "never"
        else {"min": 1, "max": 2, "resize": "restart"},
    }
    job = client.submit(JobSpec.model_validate(spec))
    cluster.until(lambda: client.job(job.id).state is JobState.RUNNING, "the ranks")
    if resize == "restart":
        client.resize(job.id, 2)
        cluster.until(lambda: running_at(client, job.id, size=2, after=1), "two ranks")
    *_, last = client.watch(job.id, every_s=0.1)
    assert last.state is JobState.SUCCEEDED, last.message
    assert last.generation == (2 if resize == "restart" else 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--name", "local-1", "--token", "{join}"], "local-1"),
        (["--name", "stranger", "--token", "wrong"], "token"),
    ],
)
def test_agents_that_are_refused(cluster: Cluster, tmp_path: Path, flags: list[str], says: str) -> None:
    join_token = cluster.stack.join_token_file.read_text().strip()
    filled = [flag.replace("{join}", join_token) for flag in flags]
    command = [sys.executable, "-m", "worker_agent", "--url", cluster.stack.url, "--state-dir", str(tmp_path)]
    refused = subprocess.run(
        [*command, *filled], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert refused.returncode != 0
    assert says in refused.stdout + refused.stderr
