"""The gate is red for a failure that repeats, and lists one that does not."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tools.gate import (
    MOST_REPEATED,
    STAGES,
    Lane,
    Outcome,
    Stage,
    outcome_of,
    run_pytest,
    run_stages,
    table,
    verdict,
)
from tools.stress import first_failure

UNSTABLE = """
from pathlib import Path

def test_second_try_passes():
    tried = Path(__file__).with_name("tried")
    if not tried.exists():
        tried.touch()
        raise AssertionError("the first try fails")
"""


def outcome(*failed: str, exit_code: int | None = None, cpu_s: float = 1.0) -> Outcome:
    code = int(bool(failed)) if exit_code is None else exit_code
    return Outcome(
        exit_code=code,
        wall_s=1.0,
        cpu_s=cpu_s,
        durations_s=dict.fromkeys(failed, 0.5) | {"test_fine": 0.5},
        failures=dict.fromkeys(failed, "why"),
    )


def test_verdict_of_a_failure_that_passes_alone_is_green() -> None:
    first = outcome("test_a")
    assert verdict([first], [outcome()], 10.0) == []
    assert list(table({"unit": first}, ["test_a"]))[1].split() == ["unit", "2", "0", "1", "1", "1"]


def test_verdict_of_a_failure_that_repeats_is_red() -> None:
    assert verdict([outcome("test_a")], [outcome("test_a")], 10.0) == ["test_a failed twice"]


def test_verdict_of_many_failures_is_red_without_repetition() -> None:
    many = outcome(*map(str, range(MOST_REPEATED + 1)))
    assert len(verdict([many], [], 10.0)) == 1


def test_verdict_of_a_broken_run_is_red() -> None:
    assert verdict([outcome(exit_code=2)], [], 10.0) == ["pytest ended with 2"]
    assert verdict([outcome(exit_code=1)], [], 10.0) == ["pytest ended with 1"]
    assert verdict([outcome("test_a")], [outcome(exit_code=4)], 10.0) == ["a repetition ended with 4"]


def test_verdict_over_the_budget_is_red() -> None:
    assert verdict([outcome(cpu_s=6.0), outcome(cpu_s=4.0)], [], 10.0) == []
    (reason,) = verdict([outcome(cpu_s=6.0), outcome(cpu_s=4.5)], [], 10.0)
    assert "10 CPU seconds of 10" in reason


def test_outcome_counts_setup_and_names_what_could_not_be_collected() -> None:
    lines = [
        {"$report_type": "SessionStart"},
        {
            "$report_type": "CollectReport",
            "nodeid": "b.py",
            "outcome": "failed",
            "longrepr": "no such import",
        },
        *(
            {"$report_type": "TestReport", "nodeid": "a.py::t", "outcome": "passed", "duration": seconds}
            for seconds in (0.25, 1.0, 0.5)
        ),
    ]
    found = outcome_of(map(json.dumps, lines), exit_code=2, wall_s=3.0, cpu_s=1.0)
    assert (found.durations_s, found.failures) == ({"a.py::t": 1.75}, {"b.py": "no such import"})


def test_stages_that_the_gate_leaves_out_have_slow_tests_alone() -> None:
    left_out = [Path(folder) for stage in STAGES if stage.slow for folder in stage.folders]
    files = [file for one in left_out for file in ([one] if one.is_file() else one.rglob("test_*.py"))]
    assert files
    for file in files:
        assert "\npytestmark = pytest.mark.slow\n" in file.read_text(encoding="utf-8"), file


def test_a_repetition_runs_in_a_fresh_process(tmp_path: Path) -> None:
    (tmp_path / "test_unstable.py").write_text(UNSTABLE)
    alone = [str(tmp_path / "test_unstable.py"), "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    first = run_pytest(alone, tmp_path / "first.jsonl")
    (text,) = first.failures.values()
    assert (first.exit_code, first.broken) == (1, False)
    assert "the first try fails" in text
    assert first.cpu_s > 0
    again = run_pytest(alone, tmp_path / "again.jsonl")
    assert (again.exit_code, again.failures, len(again.durations_s)) == (0, {}, 1)


def stage(folder: Path, name: str, lane: Lane, *lines: str) -> Stage:
    """Return a stage with one test, whose body has these lines."""
    body = "\n    ".join(lines)
    (folder / f"test_{name}.py").write_text(
        f"import os\n\ndef test_{name}():\n    {body}\n", encoding="utf-8"
    )
    options = ("-p", "no:cacheprovider", "--rootdir", str(folder))
    return Stage(name=name, folders=(str(folder / f"test_{name}.py"),), lane=lane, options=options)


def test_lanes_run_side_by_side_and_the_last_one_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # each end opens when the other one does
    pipe, done = repr(str(tmp_path / "pipe")), repr(str(tmp_path / "done"))
    stages = [
        stage(tmp_path, "alone", Lane.ALONE, f"assert os.path.exists({done})"),
        stage(tmp_path, "writer", Lane.PROCESSES, f"open({pipe}, 'w').close()"),
        stage(tmp_path, "second", Lane.PROCESSES, f"open({done}, 'w').close()"),
        stage(tmp_path, "reader", Lane.COMPUTING, f"open({pipe}).close()", "assert os.nice(0) == 19"),
    ]
    found = run_stages(stages, [], tmp_path)
    assert {name: (one.exit_code, len(one.durations_s)) for name, one in found.items()} == dict.fromkeys(
        ("alone", "writer", "second", "reader"), (0, 1)
    )


def test_stress_keeps_the_output_of_the_first_failure(tmp_path: Path) -> None:
    test = tmp_path / "test_unstable.py"
    test.write_text(UNSTABLE)
    kept = tmp_path / "kept"
    assert first_failure(str(test), 3, kept) == 1
    assert "the first try fails" in (kept / "output.txt").read_text()
    assert first_failure(str(test), 2, kept) is None
