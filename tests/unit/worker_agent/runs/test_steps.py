"""Steps of scripts without the library: read from lines, and told as the library would tell of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.agents import RankSlot
from headway.contract.runtime import FirstStep, Message, Metrics, Progress, Stepped
from tests.unit.worker_agent.runs.test_environment import command
from worker_agent.host.folders import StateFolder
from worker_agent.runs import records
from worker_agent.runs.printed_steps import (
    LINE_BYTES,
    LOOK_EVERY_S,
    PrintedSteps,
    compiled,
    divided_number,
    stepped_in,
)
from worker_agent.runs.records import Run
from worker_agent.runs.step_meters import StepMeters

NANO = r"iter (?P<step>\d+).*loss (?P<loss>[\d.]+)"


def read(pattern: str, line: str) -> Stepped | None:
    return stepped_in(compiled(pattern), line.encode(), generation=1, at_s=5.0)


@pytest.mark.parametrize(
    ("pattern", "line", "step", "total", "values"),
    [
        (NANO, "iter 1200: loss 2.5417, time 31.2ms", 1200, None, {"loss": 2.5417}),
        (NANO, "iter 3: loss 3.5.", 3, None, {"loss": 3.5}),
        (r"(?P<step>[\d,]+)/(?P<total>[\d,]+)", " 12%|#  | 1,200/10,000 [00:10]", 1200, 10_000, {}),
        (r"step (?P<step>\S+)( lr (?P<lr>\S+))?", "step 7", 7, None, {}),
        (r"step (?P<step>\S+)( lr (?P<lr>\S+))?", "step 7 lr nan", 7, None, {}),
        (r"step (?P<step>\S+)", "step 1e3", 1000, None, {}),
    ],
)
def test_lines(pattern: str, line: str, step: int, total: int | None, values: dict[str, float]) -> None:
    found = read(pattern, line)
    assert found is not None
    assert (found.step, found.total, found.values) == (step, total, values)


@pytest.mark.parametrize(
    "line", ["", "loss 3", "iter: loss 3", "step many", "step -1", "step inf", "step nan"]
)
def test_lines_that_speak_of_no_step(line: str) -> None:
    assert read(r"step (?P<step>\S+)", line) is None


def test_a_catastrophic_pattern_holds_nobody_up() -> None:
    """`re` would take for ever, and this test's time would run out."""
    assert read(r"(?P<step>(a+)+)$", "a" * (LINE_BYTES - 1) + "b") is None
    assert read(r"(?P<step>(.*a){12})$", "a" * LINE_BYTES + "b") is None


@given(st.binary(max_size=200))
def test_any_line_is_read_or_left(line: bytes) -> None:
    stepped_in(compiled(r"(?P<step>\d+)"), line, generation=1, at_s=0.0)


def run_of(tmp_path: Path, **fields: Any) -> Run:
    state = StateFolder(tmp_path)
    state.make()
    rank = RankSlot(rank=0, local_rank=0, slot=0)
    return records.new_run(state, command(ranks=[rank], **fields))


def said(meters: StepMeters, run: Run, step: int, at_s: float, **fields: Any) -> list[Message]:
    stepped = Stepped(rank=0, generation=run.command.generation, at_s=at_s, step=step, **fields)
    found = meters.take(run, stepped)
    run.stepped = run.stepped or any(isinstance(one, FirstStep) for one in found)
    return found


def test_steps_become_progress_speed_and_values(tmp_path: Path) -> None:
    run, meters = run_of(tmp_path, global_batch=None), StepMeters()
    first, progress, metrics = said(meters, run, 10, 100.0, total=1000, values={"loss": 2.0})
    assert isinstance(first, FirstStep)
    assert (first.samples, first.plain) == (10, True)
    assert isinstance(progress, Progress)
    assert (progress.samples, progress.total_samples, progress.steps, progress.global_batch) == (
        10,
        1000,
        0,
        0,
    )
    assert isinstance(metrics, Metrics)
    assert (metrics.samples, metrics.values) == (10, {"loss": 2.0})
    (later,) = said(meters, run, 30, 104.0, total=1000)
    assert isinstance(later, Progress)
    assert (later.samples, later.steps, later.step_s_sum) == (30, 20, 4.0)
    assert later.step_s_squares == pytest.approx(20 * 0.2**2)
    (anew,) = said(meters, run, 5, 105.0)
    assert isinstance(anew, Progress)
    assert (anew.steps, anew.step_s_sum) == (0, 0.0), "a script that counts anew was measured"


@pytest.mark.parametrize(
    ("fields", "unit", "batch", "local"),
    [
        ({"global_batch": 64}, 64, 64, 32),
        ({"global_batch": None}, 1, 0, 0),
        ({"global_batch": None, "progress_total": 9}, 1, 0, 0),
        ({"global_batch": None, "progress_batch": "per-rank"}, 2, 2, 1),
        ({"global_batch": 1}, 1, 1, 1),
    ],
)
def test_what_a_step_counts_for(
    tmp_path: Path, fields: dict[str, Any], unit: int, batch: int, local: int
) -> None:
    run = run_of(tmp_path, world_size=2, **fields)
    _, progress = said(StepMeters(), run, 3, 1.0, total=9)
    assert isinstance(progress, Progress)
    assert (progress.samples, progress.total_samples) == (3 * unit, 9 * unit)
    assert (progress.global_batch, progress.local_batch) == (batch, local)
    assert progress.unit == {(1, 0): "steps", (2, 2): "batches"}.get((unit, batch))


def test_total_of_the_job_file_applies_to_a_script_that_does_not_say_it(tmp_path: Path) -> None:
    _, progress = said(StepMeters(), run_of(tmp_path, global_batch=64, progress_total=9), 3, 1.0)
    assert isinstance(progress, Progress)
    assert (progress.samples, progress.total_samples, progress.unit) == (192, 576, None)


def printed_steps(tmp_path: Path, pattern: str, *lines: str) -> list[tuple[int, int | None]]:
    """Return step and total after each line."""
    run, printed = run_of(tmp_path, progress_regex=pattern), PrintedSteps()
    found = []
    for at_s, line in enumerate(lines):
        with run.folder.log(0).open("a") as log:
            log.write(line + "\n")
        found += printed.look(run, float(at_s), final=True)[-1:]
    return [(one.step, one.total) for one in found]


def test_steps_of_a_counter_that_begins_anew_in_each_epoch_add_up(tmp_path: Path) -> None:
    lines = ["1/10", "9/10", "0/10", "4/10", "3/10", "10/10", "2/10"]
    found = printed_steps(tmp_path, r"(?P<step>\d+)/(?P<total>\d+)", *lines)
    assert found == [(1, 10), (9, 10), (10, None), (14, None), (13, None), (20, None), (22, None)]


@pytest.mark.parametrize("first", [0, 1])
def test_steps_of_named_epochs_count_from_the_begin_of_training_with_their_end(
    tmp_path: Path, first: int
) -> None:
    pattern = r"Epoch (?P<epoch>\d+) of (?P<epochs>\d+): (?P<step>\d+)/(?P<total>\d+)"
    lines = [f"Epoch {first + epoch} of 3: {step}/10" for epoch in range(3) for step in (2, 10)]
    found = printed_steps(tmp_path, pattern, *lines)
    assert found == [(step, 30) for step in (2, 10, 12, 20, 22, 30)]
    assert printed_steps(tmp_path / "resumed", pattern, "Epoch 3 of 3: 4/10") == [(24, 30)]


def test_of_a_run_of_the_library_only_values_are_told(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.library = True
    (metrics,) = said(StepMeters(), run, 3, 1.0, values={"a": 1.0})
    assert isinstance(metrics, Metrics)
    other = Stepped(rank=1, generation=run.command.generation, at_s=1.0, step=3, values={"a": 1.0})
    assert StepMeters().take(run, other) == []


def test_the_log_is_read_line_by_line_from_where_it_was_read_before(tmp_path: Path) -> None:
    run, printed = run_of(tmp_path, progress_regex=NANO), PrintedSteps()
    log = run.folder.log(0)
    assert printed.look(run, 100.0) == []
    log.write_text("starting\niter 1: loss 3.0\niter 2: loss 2.0\rbar\riter 3: loss 1.0\niter 4: loss 0.5")
    assert printed.look(run, 100.1) == [], "it looks now and then"
    first, last = printed.look(run, 100.0 + LOOK_EVERY_S)
    assert (first.step, last.step, last.values) == (1, 3, {"loss": 1.0})
    assert printed.look(run, 101.0) == [], "the line is not whole"
    (rest,) = printed.look(run, 101.1, final=True)
    assert rest.step == 4
    assert printed.look(run, 110.0, final=True) == []


def test_an_agent_that_takes_over_reads_what_is_printed_from_then_on(tmp_path: Path) -> None:
    run = run_of(tmp_path, progress_regex=NANO)
    run.folder.log(0).write_text("iter 1: loss 3.0\n")
    run.stepped = True
    printed = PrintedSteps()
    assert printed.look(run, 1.0) == []
    with run.folder.log(0).open("a") as log:
        log.write("iter 2: loss 3.0\n")
    assert [one.step for one in printed.look(run, 2.0)] == [2]


def test_a_pattern_that_cannot_be_used_is_told_in_the_log(tmp_path: Path) -> None:
    run = run_of(tmp_path, progress_regex=r"(?P<step>\d+)(?=a)")
    run.folder.log(0).write_text("1a\n")
    assert PrintedSteps().look(run, 1.0) == []
    assert "progress.regex cannot be used" in run.folder.log(0).read_text()


@pytest.mark.parametrize(
    ("pattern", "line", "read"),
    [
        (r"step (?P<step>\d+)", "step 1,250 / 5,000", "1 as the step from 1,250"),
        (r"(?P<step>\d+)/(?P<total>\d+)", "7/5,000,000 it", "5 as the total from 5,000,000"),
        (r"step (?P<step>[\d,]+)", "step 1,250", ""),
        (r"step (?P<step>\d+)", "step 1, 250", ""),
        (r"step (?P<step>\d+)", "step 1,25", ""),
        (r"step (?P<step>\d+)", "step 1250,100", ""),
        (r"step (?P<step>\d+)", "epoch 1,250", ""),
    ],
)
def test_a_pattern_that_divides_a_number_is_noted(pattern: str, line: str, read: str) -> None:
    found = divided_number(compiled(pattern), line.encode())
    assert found.startswith(f"progress.regex reads {read}") if read else found == ""
