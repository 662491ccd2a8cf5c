from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.simulation.__main__ import main

CLUSTER = "kinds:\n  - {kind: a100, nodes: 2, slots_per_node: 2, usd_per_slot_h: 2}\n"
JOBS = "job_id,submission_time,duration,num_gpu\n" + "".join(
    f"job-{row},{200 * row},{300 + 150 * row},{1 + row % 2}\n" for row in range(6)
)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return ["--jobs", str(tmp_path / "jobs.csv"), "--cluster", str(tmp_path / "cluster.yaml")]


def shown(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_policies_and_seeds_are_replayed_and_progress_is_told(files: list[str], tmp_path: Path, capsys):
    out = tmp_path / "out"
    assert main([*files, "--policy", "srtf,fifo", "--seeds", "2", "--progress", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out / 'report.html'}\n"
    done = [json.loads(line)["done"] for line in said.err.splitlines()]
    assert done == sorted(done)
    assert done[-1] == 1.0
    found = shown(out)
    assert (found["name"], found["jobs"], found["slots"]) == ("jobs on cluster", 6, {"a100": 4})
    assert [[one["seed"] for one in policy["seeds"]] for policy in found["policies"]] == [[0, 1], [0, 1]]


def test_the_same_seed_gives_the_same_rows(files: list[str], tmp_path: Path):
    for folder in ("a", "b"):
        assert main([*files, "--policy", "goodput", "--live-resize", "--out", str(tmp_path / folder)]) == 0
    for file in ("jobs.csv", "slots.csv"):
        assert (tmp_path / "a" / file).read_text() == (tmp_path / "b" / file).read_text()


def test_one_policy_can_be_asked_for_with_several_parameters(files: list[str], tmp_path: Path):
    asked = ["budget:usd_per_h=2", "budget:usd_per_h=8"]
    assert main([*files, "--oracle", "--policy", ",".join(asked), "--out", str(tmp_path / "out")]) == 0
    less, more = (one["mean"] for one in shown(tmp_path / "out")["policies"])
    assert less["avg_jct_h"] > more["avg_jct_h"]


def test_progress_is_told_only_when_asked(files: list[str], tmp_path: Path, capsys):
    assert main([*files, "--policy", "fifo", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "best"], "no policy is called 'best'"),
        (["--policy", "budget:usd_per_h=much"], "'usd_per_h=much' is not of the form key=number"),
        (["--policy", "fifo:speed=2"], "has no parameter 'speed'"),
        (["--policy", " , "], "names no policy"),
        (["--law", "moore:2"], "is not a speedup law"),
        (["--jobs", "missing.csv"], "missing.csv"),
        (["--profiles", "missing"], "missing"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    files: list[str], tmp_path: Path, capsys, arguments: list[str], said: str
):
    assert main([*files, "--out", str(tmp_path / "out"), *arguments]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wrong", ["--seeds=0", "--engine=steam", "--interval=nan", "--failures=-1", "--parallel=x"]
)
def test_numbers_are_checked(files: list[str], wrong: str, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*files, wrong])
    assert ended.value.code == 2
    assert wrong.partition("=")[0] in capsys.readouterr().err


def test_results_are_not_written_over_other_things(files: list[str], tmp_path: Path, capsys):
    assert main([*files, "--out", str(tmp_path)]) == 2  # the folder of the input files
    assert "holds no results of a simulation" in capsys.readouterr().err


def test_jobs_that_can_never_run_are_refused_when_there_are_no_others(
    files: list[str], tmp_path: Path, capsys
):
    (tmp_path / "jobs.csv").write_text("job_id,submission_time,duration,num_gpu\na,0,0,1\n")
    assert main([*files, "--out", str(tmp_path / "out")]) == 2
    assert "none of its jobs can ever run" in capsys.readouterr().err
