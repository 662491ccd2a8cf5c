"""A sweep of real jobs on real agents, from the job file to the table."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from headway.contract.views.jobs import TERMINAL_STATES, JobState, Reason
from tests.e2e.conftest import SCRIPTS, Cluster, job_name

FILE = """
name: {name}
workdir: .
run: python parabola.py
elastic: {{resize: never}}
progress: {{regex: 'step (?P<step>\\d+) loss (?P<loss>[\\d.]+)'}}
sweep: {{parameters: {{x: [1, 2.5, 5]}}, metric: loss}}
"""


@pytest.mark.slow
def test_trials_run_with_their_own_parameters_and_the_best_is_marked(
    cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name = job_name(request)[:40].strip("-")
    (tmp_path / "parabola.py").write_bytes((SCRIPTS / "parabola.py").read_bytes())
    file = tmp_path / "sweep.yaml"
    file.write_text(FILE.format(name=name), encoding="utf-8")
    submitted = cluster.headway("submit", str(file))
    assert f"{name} is submitted with 3 trials" in submitted.stdout, submitted
    cluster.until(
        lambda: TERMINAL_STATES.issuperset(cluster.client.sweep(name).states), "the end of its trials"
    )
    view = cluster.client.sweep(name)
    assert view.states == {JobState.SUCCEEDED: 3}, [one.message for one in view.trials]
    assert view.best == 2
    assert [one.value for one in view.trials] == [4.0, 0.25, 4.0]
    assert [one.parameters for one in view.trials] == [{"x": 1}, {"x": 2.5}, {"x": 5}]
    table = cluster.headway("sweep", name).stdout.splitlines()
    assert table[0] == f"{name}: 3 trials, 3 SUCCEEDED. Best: {name}-2, loss 0.25."
    assert [line.split()[:2] for line in table[2:]] == [["1", "SUCCEEDED"], ["*", "2"], ["3", "SUCCEEDED"]]
    rows = list(csv.DictReader(io.StringIO(cluster.headway("sweep", name, "--csv").stdout)))
    assert [one["best.loss"] for one in rows] == ["4.0", "0.25", "4.0"]


CONTEST = """
name: {name}
workdir: .
run: python contest.py
env: {{HURRY: {hurry}}}
elastic: {{min: 1, max: 4}}
sweep:
  parameters: {{x: [1, 3, 5]}}
  metric: loss
  stop: {{asha: {{min_progress: 2}}}}
"""


@pytest.mark.slow
def test_survivor_takes_the_slots_of_trials_that_end_early_and_one_of_those_resumes(
    cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name = job_name(request)[:40].strip("-")
    (tmp_path / "contest.py").write_bytes((SCRIPTS / "contest.py").read_bytes())
    file, hurry = tmp_path / "contest.yaml", tmp_path / "hurry"
    file.write_text(CONTEST.format(name=name, hurry=hurry), encoding="utf-8")
    submitted = cluster.headway("submit", str(file))
    assert submitted.returncode == 0, submitted
    cluster.until(
        lambda: cluster.client.sweep(name).states == {JobState.RUNNING: 1, JobState.CANCELLED: 2},
        "the early ends of two trials",
    )
    early = cluster.client.sweep(name).trials
    assert [one.state for one in early] == ["CANCELLED", "RUNNING", "CANCELLED"]
    assert early[0].reason is early[2].reason is Reason.STOPPED_EARLY
    assert "trial 1 ends at 2 epochs: its loss" in early[0].message
    cluster.until(lambda: cluster.client.job(f"{name}-2").size == 4, "growth of the survivor to all slots")
    assert "switch" in {one.kind for one in cluster.client.events(f"{name}-2")}
    resumed = cluster.headway("resume", f"{name}-1")
    assert resumed.returncode == 0, resumed
    hurry.touch()
    cluster.until(
        lambda: cluster.client.sweep(name).states == {JobState.SUCCEEDED: 2, JobState.CANCELLED: 1},
        "the ends of the survivor and of the resumed trial",
    )
    view = cluster.client.sweep(name)
    assert [one.state for one in view.trials] == ["SUCCEEDED", "SUCCEEDED", "CANCELLED"]
    assert view.best == 2
    again = cluster.client.job(f"{name}-1")
    assert (again.generation >= 2, again.progress.epochs_exact) == (True, 200)
