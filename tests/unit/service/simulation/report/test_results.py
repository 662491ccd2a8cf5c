from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from service.simulation.model.world import BadInput
from service.simulation.report.results import Results, summary, write
from tests.unit.service.simulation.made_up import result

RESULTS = Results(
    name="philly",
    runs=(result("fifo", seed=1, unfinished=1), result("fifo"), result("goodput", rejected=(("a", "b"),))),
)


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_every_file_has_the_rows_of_all_replays(tmp_path: Path):
    folder = tmp_path / "deep" / "out"
    write(folder, RESULTS, "<html>")
    jobs, rounds, slots = (rows(folder / name) for name in ("jobs.csv", "rounds.csv", "slots.csv"))
    assert len(jobs) == 60
    assert [(one["policy"], one["seed"]) for one in jobs[::20]] == [
        ("fifo", "1"),
        ("fifo", "0"),
        ("goodput", "0"),
    ]
    assert (jobs[19]["end_s"], jobs[19]["completion_s"], jobs[19]["fairness"]) == ("", "", "")
    assert len(slots) == 120
    assert len(rounds) == sum(len(one.replay.rounds.time_s) for one in RESULTS.runs)
    assert (folder / "report.html").read_text() == "<html>"
    assert len(list(folder.iterdir())) == 5


def test_slots_add_up_to_what_jobs_held(tmp_path: Path):
    write(tmp_path / "out", RESULTS, "")
    held = sum(
        (float(one["to_s"]) - float(one["from_s"])) * int(one["slots"])
        for one in rows(tmp_path / "out" / "slots.csv")
        if one["policy"] == "goodput"
    )
    assert held == pytest.approx(float(RESULTS.runs[2].replay.jobs.served_slot_s.sum()), abs=1.0)


def test_the_summary_has_means_and_every_seed():
    said = summary(RESULTS)
    fifo, goodput = said["policies"]
    assert (fifo["policy"], [one["seed"] for one in fifo["seeds"]]) == ("fifo", [0, 1])
    assert fifo["mean"]["avg_jct_h"] == pytest.approx(np.mean([one["avg_jct_h"] for one in fifo["seeds"]]))
    assert goodput["seeds"][0]["usd"] == pytest.approx(goodput["mean"]["usd"])
    assert (said["jobs"], said["slots"]) == (20, {"t4": 16})


def test_what_json_has_not_is_null(tmp_path: Path):
    one = result()
    figures = {**one.figures, "worst_fairness": float("inf"), "gap_max": float("nan")}
    write(tmp_path / "out", Results(name="x", runs=(type(one)(replay=one.replay, figures=figures),)), "")
    mean = json.loads((tmp_path / "out" / "summary.json").read_text())["policies"][0]["mean"]
    assert (mean["worst_fairness"], mean["gap_max"]) == (None, None)


def test_results_of_before_are_replaced_and_other_files_stay(tmp_path: Path):
    folder = tmp_path / "out"
    write(folder, RESULTS, "old")
    (folder / "notes.txt").write_text("mine")
    write(folder, Results(name="x", runs=(result(jobs=2),)), "new")
    assert (folder / "report.html").read_text() == "new"
    assert len(rows(folder / "jobs.csv")) == 2
    assert (folder / "notes.txt").read_text() == "mine"
    assert len(list(folder.iterdir())) == 6


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_no_result_is_left_alone(tmp_path: Path, kind: str):
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "thesis.tex").write_text("mine")
    with pytest.raises(BadInput, match="holds no results"):
        write(out, RESULTS, "")
    assert (out if kind == "file" else out / "thesis.tex").read_text() == "mine"


def test_an_empty_folder_is_taken(tmp_path: Path):
    write(tmp_path, RESULTS, "here")
    assert (tmp_path / "report.html").read_text() == "here"
