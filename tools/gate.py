"""Run the tests in stages, repeat each failed one alone, and print what they took. Run as `python -m tools.gate`.

Tests of real processes mostly wait. The stages are therefore in lanes that run side by side: the tests that only compute
have the lowest priority, and get the time of the cores that the others leave.

A test that fails runs once more in a fresh process, with nothing beside it, after all stages. If it passes then, it is listed as
UNSTABLE with its first failure, and the gate stays green: `make stress TEST=...` finds its cause. If it fails again, the
gate is red. Many failures are not repeated: their cause is no chance.

The gate leaves out the tests that are marked `slow`, and is red above its budget of CPU seconds; `--all` runs every test.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO, Any

from headway.local.guard import Guard

BUDGET_CPU_S = 1800.0
"""CPU seconds that the stages of the gate may take together."""
MOST_REPEATED = 10
"""Failed tests that are repeated at most."""
_SLOWEST = 20
_NO_TESTS = 5
"""Exit code of pytest when every test was deselected."""
_LINES = 60
"""Lines of a first failure that are printed."""
_LEAST_URGENT = 19
"""Highest nice value of Linux."""


class Lane(Enum):
    """Stages that run one after another. The lanes run side by side, but the last one, which follows them."""

    PROCESSES = "processes"
    PAGES = "pages"
    COMPUTING = "computing"
    """Tests without other processes, at the lowest priority."""
    ALONE = "alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Folders whose tests run in one process group. Tests that mostly wait share a core: more workers than cores."""

    name: str
    folders: tuple[str, ...]
    lane: Lane
    options: tuple[str, ...] = ()
    slow: bool = False
    """True if every test is marked `slow`, so that the gate need not even collect them."""


STAGES = (
    Stage(
        name="stores",
        folders=("tests/conformance", "tests/integration/service", "tests/integration/plugins"),
        lane=Lane.PROCESSES,
        options=("-n", "4"),
    ),
    Stage(
        name="processes",
        folders=(
            "tests/elastic",
            "tests/e2e",
            "tests/chaos",
            "tests/network",
            "tests/integration/agent",
            "tests/integration/local",
            "tests/integration/parts",
            "tests/integration/providers",
            "tests/integration/test_fault_tools.py",
        ),
        lane=Lane.PROCESSES,
        options=("-n", "4", "--dist", "loadfile", "--ignore=tests/chaos/test_faults.py"),
    ),
    # A browser and a whole Headway each: of the time, most is waiting for pages.
    Stage(
        name="pages",
        folders=("tests/browser",),
        lane=Lane.PAGES,
        options=("-n", "2", "--dist", "loadfile"),
    ),
    Stage(name="unit", folders=("tests/unit",), lane=Lane.COMPUTING, options=("-n", "2")),
    Stage(name="repo", folders=("tests/repo", "tests/histories"), lane=Lane.COMPUTING, options=("-n", "2")),
    Stage(
        name="benchmarks",
        folders=("tests/integration/benchmarks",),
        lane=Lane.ALONE,
        options=("-n", "3"),
        slow=True,
    ),
    Stage(name="alone", folders=("tests/chaos/test_faults.py",), lane=Lane.ALONE, slow=True),
)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Results of a run of pytest."""

    exit_code: int
    wall_s: float
    cpu_s: float
    durations_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each test with its setup and teardown."""
    failures: dict[str, str] = field(default_factory=dict)
    """The text of each failed test."""

    @property
    def broken(self) -> bool:
        """True if pytest itself failed, so that nobody knows which tests would have passed."""
        return self.exit_code not in (0, 1, _NO_TESTS) or (self.exit_code == 1 and not self.failures)


def outcome_of(lines: Iterable[str], *, exit_code: int, wall_s: float, cpu_s: float) -> Outcome:
    """Return the outcome that the lines of a report log describe."""
    found = Outcome(exit_code=exit_code, wall_s=wall_s, cpu_s=cpu_s)
    for report in map(json.loads, lines):
        if report["$report_type"] not in ("TestReport", "CollectReport"):
            continue
        name = report["nodeid"]
        if report["$report_type"] == "TestReport":
            found.durations_s[name] = found.durations_s.get(name, 0.0) + report["duration"]
        if report["outcome"] == "failed":
            found.failures.setdefault(name, _text(report))
    return found


def verdict(outcomes: Iterable[Outcome], repeated: Iterable[Outcome], budget_cpu_s: float) -> list[str]:
    """Return the reasons why the gate is red, none if it is green."""
    outcomes = list(outcomes)
    reasons = [f"pytest ended with {one.exit_code}" for one in outcomes if one.broken]
    failed = sum(len(one.failures) for one in outcomes)
    if failed > MOST_REPEATED:
        reasons.append(f"{failed} tests failed, too many to be chance")
    reasons += [f"{name} failed twice" for one in repeated for name in one.failures]
    reasons += [f"a repetition ended with {one.exit_code}" for one in repeated if one.broken]
    used_s = sum(one.cpu_s for one in outcomes)
    if used_s > budget_cpu_s:
        reasons.append(
            f"the stages took {used_s:.0f} CPU seconds of {budget_cpu_s:.0f}: mark slow tests `slow`, or make them quicker"
        )
    return reasons


def table(outcomes: dict[str, Outcome], unstable: Iterable[str]) -> Iterator[str]:
    """Return the lines of a table: tests, failures, unstable tests, wall and CPU seconds of each stage."""
    stable = set(unstable)
    yield f"{'stage':<12}{'tests':>7}{'failed':>8}{'unstable':>10}{'wall_s':>8}{'cpu_s':>8}"
    for name, one in outcomes.items():
        again = len(stable & one.failures.keys())
        yield (
            f"{name:<12}{len(one.durations_s):>7}{len(one.failures) - again:>8}{again:>10}"
            f"{one.wall_s:>8.0f}{one.cpu_s:>8.0f}"
        )


def run_pytest(arguments: Sequence[str], log: Path) -> Outcome:
    """Run pytest with its output on this terminal, and return its outcome."""
    run = _Run.started(arguments, log)
    _, status, used = os.wait4(run.process.pid, 0)
    return run.ended(status, used)


def run_stages(stages: Sequence[Stage], chosen: Sequence[str], folder: Path) -> dict[str, Outcome]:
    """Run the lanes of these stages side by side, and return the outcome of each stage, in their order.

    Args:
        stages: The stages.
        chosen: Options of pytest that choose the tests.
        folder: Folder of the report logs.
    """
    left: dict[Lane, list[Stage]] = {}
    for stage in stages:
        left.setdefault(stage.lane, []).append(stage)
    alone = left.pop(Lane.ALONE, [])
    several = len(left) > 1
    outcomes: dict[str, Outcome] = {}
    running: dict[int, tuple[Stage, _Run]] = {}

    def start_next(lane: list[Stage]) -> None:
        if lane:
            stage = lane.pop(0)
            _say(f"== {stage.name} begins")
            arguments = [*stage.folders, *stage.options, *chosen, "-q"]
            run = _Run.started(
                arguments,
                folder / f"{stage.name}.jsonl",
                urgent=stage.lane is not Lane.COMPUTING,
                quiet=several and stage.lane in {Lane.PAGES, Lane.COMPUTING},
            )
            running[run.process.pid] = stage, run

    try:
        for lane in left.values():
            start_next(lane)
        while running:
            pid, status, used = os.wait4(-1, 0)
            if pid not in running:  # the guard
                continue
            stage, run = running.pop(pid)
            outcomes[stage.name] = run.ended(status, used)
            _say(f"== {stage.name} took {outcomes[stage.name].wall_s:.0f} s")
            start_next(left.get(stage.lane, []))
            if not running:
                start_next(alone)
    finally:
        for _, run in running.values():
            run.process.terminate()
    return {stage.name: outcomes[stage.name] for stage in stages}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run of pytest that has begun."""

    process: subprocess.Popen[bytes]
    log: Path
    started_s: float
    output: IO[bytes] | None
    """Output that is printed at the end, so that it is not mixed with that of another run; None if it is on this terminal."""

    @classmethod
    def started(
        cls, arguments: Sequence[str], log: Path, *, urgent: bool = True, quiet: bool = False
    ) -> _Run:
        """Start pytest.

        Args:
            arguments: Arguments of pytest.
            log: File of its report log.
            urgent: False gives it the lowest priority.
            quiet: True keeps its output until it ends.
        """
        command = [sys.executable, "-m", "pytest", *arguments, f"--report-log={log}"]
        output = tempfile.TemporaryFile() if quiet else None  # noqa: SIM115 - closed by `ended`
        process = subprocess.Popen(command, stdout=output, start_new_session=not urgent)
        if not urgent:
            os.setpriority(os.PRIO_PROCESS, process.pid, _LEAST_URGENT)
            with suppress(OSError):  # a kernel that does not group processes by session
                Path(f"/proc/{process.pid}/autogroup").write_text(str(_LEAST_URGENT), encoding="ascii")
        return cls(process=process, log=log, started_s=time.monotonic(), output=output)

    def ended(self, status: int, used: resource.struct_rusage) -> Outcome:
        """Print the kept output, and return the outcome."""
        wall_s = time.monotonic() - self.started_s
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.output is not None:
            with self.output:
                self.output.seek(0)
                _say(self.output.read().decode("utf-8", "replace").rstrip())
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        cpu_s = used.ru_utime + used.ru_stime
        return outcome_of(lines, exit_code=self.process.returncode, wall_s=wall_s, cpu_s=cpu_s)


def main() -> int:
    """Run the stages, and return the exit code."""
    parser = argparse.ArgumentParser(description="Run the tests in stages, and repeat each failed one alone.")
    parser.add_argument("--all", action="store_true", help="run the slow tests too")
    parser.add_argument(
        "--only", choices=[one.name for one in STAGES], action="append", help="run this stage"
    )
    asked = parser.parse_args()
    stages = [one for one in STAGES if (one.name in asked.only if asked.only else asked.all or not one.slow)]
    chosen = [] if asked.all else ["-m", "not slow"]
    started_s = time.monotonic()
    with Guard() as guard, guard.temporary_folder(prefix="headway-gate-") as folder:
        outcomes = run_stages(stages, chosen, folder)
        failures = {name: text for one in outcomes.values() for name, text in one.failures.items()}
        repeated = {}
        if len(failures) <= MOST_REPEATED:
            for number, name in enumerate(failures):
                _say(f"== once more, alone: {name}")
                repeated[name] = run_pytest([name, "-q"], folder / f"again-{number}.jsonl")
    unstable = [name for name, one in repeated.items() if one.exit_code == 0]
    reasons = verdict(outcomes.values(), repeated.values(), float("inf") if asked.all else BUDGET_CPU_S)
    _report(outcomes, {name: failures[name] for name in unstable}, reasons)
    _say(f"took {time.monotonic() - started_s:.0f} s")
    return 1 if reasons else 0


def _report(outcomes: dict[str, Outcome], unstable: dict[str, str], reasons: Sequence[str]) -> None:
    durations = [(s, name) for one in outcomes.values() for name, s in one.durations_s.items()]
    _say(f"== the slowest {_SLOWEST}")
    for duration_s, name in sorted(durations, reverse=True)[:_SLOWEST]:
        _say(f"{duration_s:8.1f} s  {name}")
    for name, text in unstable.items():
        _say(f"== UNSTABLE: {name} failed, and passed alone. Find the cause: make stress TEST='{name}'")
        _say("\n".join(text.splitlines()[-_LINES:]))
    _say("== gate")
    for line in table(outcomes, unstable):
        _say(line)
    for reason in reasons:
        _say(f"RED: {reason}")
    passed = sum(len(one.durations_s) - len(one.failures) for one in outcomes.values()) + len(unstable)
    failed = sum(len(one.failures) for one in outcomes.values()) - len(unstable)
    _say(f"{passed} passed, {failed} failed")


def _text(report: dict[str, Any]) -> str:
    sections = "\n".join(f"--- {title}\n{text}" for title, text in report.get("sections", ()))
    failure = report["longrepr"]
    if isinstance(failure, dict):
        crash = failure.get("reprcrash") or {}
        entries = (failure.get("reprtraceback") or {}).get("reprentries", ())
        lines = [line for entry in entries for line in entry["data"].get("lines", ())]
        failure = "\n".join([*lines, str(crash.get("message", ""))])
    return f"{sections}\n{failure}" if sections else str(failure)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])
    sys.exit(main())
