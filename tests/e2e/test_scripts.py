"""Scripts without the library through a whole Headway: what is known of them, and what follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.contract.run_facts import ProgressSource
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState, JobView, Reason
from headway.errors import LeftOutWarning
from tests.e2e.conftest import SCRIPTS, Cluster

REGEX = r"iter (?P<step>\d+).*loss (?P<loss>[\d.]+)"


def submit(cluster: Cluster, name: str, run: str, **fields: Any) -> str:
    spec = {"name": name, "run": run, "workdir": str(SCRIPTS), **fields}
    return cluster.client.submit(JobSpec.model_validate(spec)).id


def ended(cluster: Cluster, job_id: str) -> JobView:
    cluster.until(lambda: cluster.client.job(job_id).finished_at is not None, "its end")
    return cluster.client.job(job_id)


@pytest.mark.slow
@pytest.mark.parametrize("resumes", [True, False])
def test_a_restarted_script_shows_whether_it_resumes(
    cluster: Cluster, tmp_path: Path, *, resumes: bool
) -> None:
    hurry = tmp_path / "hurry"
    env = {"HURRY": str(hurry), **({"CHECKPOINT": str(tmp_path / "step")} if resumes else {})}
    job_id = submit(
        cluster,
        f"counts-{str(resumes).lower()}",
        "python counter.py",
        env=env,
        elastic={"min": 1, "max": 2, "resize": "restart"},
        progress={"regex": REGEX},
    )

    def job() -> JobView:
        return cluster.client.job(job_id)

    cluster.until(lambda: job().progress.samples >= 40 and (job().progress.samples_per_s or 0) > 0, "steps")
    assert (job().generation, job().progress.source) == (1, ProgressSource.SCRIPT)
    assert "loss" in job().progress.metrics
    cluster.client.resize(job_id, 2)
    cluster.until(lambda: job().progress.resumption is not None, "evidence")
    seen = job().progress.resumption
    assert seen is not None
    assert (seen.resumes, seen.generation) == (resumes, job().generation)
    assert (seen.began_at > 0) is resumes
    assert seen.stopped_at >= 40
    hurry.touch()
    done = ended(cluster, job_id)
    assert (done.state, done.reason) == (JobState.SUCCEEDED, Reason.COMPLETED)
    said = "resumed" if resumes else "started again"
    assert said in cluster.headway("describe", done.name).stdout.replace("\n", " ")


def test_how_scripts_end_behind_a_shell(cluster: Cluster) -> None:
    killed = submit(
        cluster,
        "killed",
        "python -c 'import os; os.kill(os.getpid(), 9)'; exit $?",
        retry={"infrastructure": 0},
    )
    idle = submit(cluster, "no-gpus", "echo Unable to locate sufficient 2 gpus", elastic={"resize": "never"})
    lost, flagged = ended(cluster, killed), ended(cluster, idle)
    assert (lost.state, lost.reason) == (JobState.FAILED, Reason.RANK_LOST)
    assert (flagged.state, flagged.reason) == (JobState.SUCCEEDED, Reason.NO_PROGRESS)
    assert "Unable to locate sufficient 2 gpus" in flagged.message


@pytest.mark.slow
def test_a_library_script_that_is_one_process_trains_without_a_launcher(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "hurry").touch()
    job_id = submit(
        cluster,
        "alone",
        "python patient.py",
        env={"HURRY": str(tmp_path / "hurry"), "EPOCHS": "2"},
        elastic={"max": 1, "resize": "never"},
    )
    done = ended(cluster, job_id)
    assert (done.state, done.reason) == (JobState.SUCCEEDED, Reason.COMPLETED)
    assert done.progress.source is ProgressSource.LIBRARY
    assert done.progress.epochs_exact == 2


def test_a_data_file_that_gitignore_keeps_from_the_upload_is_explained_and_its_rule_sends_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    files = {
        "train.py": "print(len(open('data/x.csv').read()))\n",
        "data/x.csv": "12345",
        ".gitignore": "*.csv\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    spec = JobSpec.model_validate({"name": "ignored", "run": "python train.py", "workdir": str(tmp_path)})
    with pytest.warns(
        LeftOutWarning, match=r"1 file .* data/x\.csv\. .* add `!data/\*\.csv` to \.headwayignore"
    ):
        job_id = cluster.client.submit(spec).id
    failed = ended(cluster, job_id)
    assert (failed.state, failed.reason) == (JobState.FAILED, Reason.USER_ERROR)
    first = failed.message.splitlines()[0]
    assert "if data/x.csv is in the submitted folder" in first
    assert "write !data/x.csv into .headwayignore" in first
    (tmp_path / ".headwayignore").write_text("!data/*.csv\n")
    done = ended(cluster, cluster.client.submit(spec).id)
    assert done.state is JobState.SUCCEEDED
    assert list(cluster.client.log_lines(done)) == ["[0] 5"]
