"""Scripts without the library under a real agent: their steps, how they end behind a shell, and their environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest

from headway.contract.agents import RankMessage
from headway.contract.rank_lines import from_fields
from headway.contract.runtime import FirstStep, Lingers, Message, Metrics, Progress
from tests.integration.agent.stub import StubService

M = TypeVar("M")

PRINTS = """
import time
for step in range(0, 60, 10):
    print(f"iter {step}: loss {3.0 - step / 100}, time 5ms", flush=True)
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        pass
print("done")
"""

REPORTS = """
import headway
headway.progress(4, 100, loss=0.5)
headway.progress(9, 100, loss=0.25)
"""

ENVIRONMENT = """
import os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID")
print("finds", [name for name in names if name in os.environ], "of job", os.environ["HEADWAY_JOB_ID"])
"""

WAITS = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


BAR = r"""
import sys
for step in range(30_000):
    sys.stderr.write(f"\rtrain: {step} of 30000 {'#' * 40}")
sys.exit("\nno such data")
"""


def said(shared: StubService, job: str) -> list[Message]:
    shared.exits(job)
    return [from_fields(dict(entry.message)) for entry in shared.of(job, RankMessage)]


def of(messages: Sequence[Message], kind: type[M]) -> list[M]:
    return [one for one in messages if isinstance(one, kind)]


@pytest.mark.slow
def test_steps_are_read_from_what_a_script_prints(shared: StubService) -> None:
    bundle = shared.add_bundle({"train.py": PRINTS})
    regex = r"iter (?P<step>\d+).*loss (?P<loss>[\d.]+)"
    shared.run("prints", "python train.py", bundle=bundle, progress_regex=regex, global_batch=None)
    messages = said(shared, "prints")
    (first,) = of(messages, FirstStep)
    assert (first.samples, first.plain) == (0, True)
    progress = of(messages, Progress)
    assert progress[-1].samples == 50, "what was printed last is read before the end is told"
    steps, seconds = sum(one.steps for one in progress), sum(one.step_s_sum for one in progress)
    assert steps in {20, 30, 40, 50}, "from the second look on every step counts"
    assert 5 <= steps / seconds <= 60, "ten steps take 0.3 s"
    assert of(messages, Metrics)[-1].values == {"loss": 2.5}
    assert shared.exits("prints")[0].log_tail == [], "it told of its steps"


@pytest.mark.parametrize("run", ["python train.py", "sh -c 'python train.py; exit $?'"])
def test_steps_are_reported_by_two_lines_of_a_script(shared: StubService, run: str) -> None:
    job = f"reports-{len(run)}"
    bundle = shared.add_bundle({"train.py": REPORTS})
    shared.run(job, run, bundle=bundle, launch="plain", global_batch=64)
    messages = said(shared, job)
    assert [one.TYPE for one in messages] == ["first_step", "progress", "metrics", "progress", "metrics"]
    first, last = of(messages, FirstStep)[0], of(messages, Progress)[-1]
    assert (first.samples, last.samples, last.total_samples) == (256, 576, 6400)
    assert (last.steps, last.global_batch) == (5, 64)


@pytest.mark.parametrize(("launch", "finds"), [("plain", 0), ("torchrun", 5)])
def test_the_environment_of_one_process(shared: StubService, launch: str, finds: int) -> None:
    job = f"finds-{launch}"
    shared.run(job, "python train.py", bundle=shared.add_bundle({"train.py": ENVIRONMENT}), launch=launch)
    line = next(line for line in shared.wait_log(job, "finds").splitlines() if line.startswith("finds"))
    assert line.count("'") == 2 * finds
    assert line.endswith(f"of job {job}")
    (end,) = shared.exits(job).values()
    assert end.exit_code == 0
    assert end.log_tail == [line], "nobody told of a step, so its output says what it did"


def test_a_program_that_is_killed_behind_a_shell(shared: StubService) -> None:
    shared.run("killed", "python -c 'import os; os.kill(os.getpid(), 9)'; exit $?")
    (end,) = shared.exits("killed").values()
    assert (end.exit_code, end.signal, end.stopped_by_agent) == (137, None, False)


@pytest.mark.parametrize(
    "run", ["python train.py; exit $?", "python train.py && echo more", "python train.py"]
)
def test_a_program_that_is_stopped_behind_a_shell(shared: StubService, run: str) -> None:
    job = f"stopped-{len(run)}"
    shared.run(job, run, bundle=shared.add_bundle({"train.py": WAITS}))
    shared.wait_log(job, "ready")
    shared.send_stop(job)
    (end,) = shared.exits(job).values()
    assert (end.exit_code, end.signal) in {(143, None), (None, 15)}
    assert end.stopped_by_agent


LEAVES_A_THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=[1e5], name="uploader").start()
"""


def test_thread_that_outlives_its_script_is_reported_and_its_rank_ends_well(shared: StubService) -> None:
    job = "lingers"
    bundle = shared.add_bundle({"leaves.py": LEAVES_A_THREAD})
    shared.run(job, "python leaves.py", bundle=bundle, env={"HEADWAY_EXIT_WITHIN_S": "0.2"})
    (end,) = shared.exits(job).values()
    assert (end.exit_code, end.signal) == (0, None)
    (report,) = of(said(shared, job), Lingers)
    assert (report.over, report.waits_for) == (True, ("thread uploader",))


ZONE = """
import datetime
print("offset", datetime.datetime(2026, 1, 1).astimezone().utcoffset())
"""


def test_time_zone_of_a_job_acts_on_a_forked_rank(shared: StubService) -> None:
    bundle = shared.add_bundle({"zone.py": ZONE})
    shared.run("zone", "python zone.py", bundle=bundle, env={"TZ": "XYZ-05:45"})
    shared.exits("zone")
    assert "offset 5:45:00" in shared.log("zone")


def test_variable_that_an_import_reads_acts(shared: StubService) -> None:
    bundle = shared.add_bundle(
        {"read.py": "import sympy.core.cache as c\nprint('cache', c.SYMPY_CACHE_SIZE)"}
    )
    shared.run("reads", "python read.py", bundle=bundle, env={"SYMPY_CACHE_SIZE": "77"})
    shared.exits("reads")
    assert "cache 77" in shared.log("reads")


def test_words_without_a_newline_of_a_killed_script_are_in_its_log(shared: StubService) -> None:
    script = "import os\nprint('. . .', end=' ')\nprint('last words', end='')\nos.kill(os.getpid(), 9)"
    shared.run("dots", "python dots.py", bundle=shared.add_bundle({"dots.py": script}))
    shared.exits("dots")
    shared.wait_log("dots", ". . . last words")


@pytest.mark.parametrize(
    ("run", "cause"),
    [
        ("./crlf.sh", "Windows line ends"),
        ("nothing-here", "give its whole path"),
        ("conda run x", "/envs/NAME/bin/python"),
    ],
)
def test_program_that_cannot_be_executed_fails_with_its_cause(
    shared: StubService, run: str, cause: str
) -> None:
    job = f"cannot-{len(run)}"
    bundle = shared.add_bundle({"crlf.sh": "#!/bin/sh\r\necho ran\r\n"}, mode=0o755)
    shared.run(job, run, bundle=bundle)
    failed = shared.start_failed(job)
    assert cause in failed.message
    assert not failed.retryable


def test_script_of_several_lines_ends_at_the_first_that_fails(shared: StubService) -> None:
    shared.run("lines", "cd missing-folder\necho went on\n")
    (end,) = shared.exits("lines").values()
    assert end.exit_code not in {0, None}
    assert "went on" not in shared.log("lines")


def test_script_of_several_lines_runs_in_the_bash_that_it_names(shared: StubService) -> None:
    bundle = shared.add_bundle({"settings.sh": "export COLOUR=blue\n"})
    run = "#!/bin/bash\nset -euo pipefail\nsource settings.sh\n[[ $COLOUR == b* ]] && echo colour $COLOUR {1..3}\n"
    shared.run("bash", run, bundle=bundle)
    (end,) = shared.exits("bash").values()
    assert end.exit_code == 0
    assert "colour blue 1 2 3" in shared.log("bash")


LOGS = r"""
import logging
logging.basicConfig(level="INFO")
def outer():
    logging.info("here", stack_info=True)
outer()
"""


@pytest.mark.parametrize(("job", "env"), [("logs", {}), ("logs-spawned", {"PYTHONHASHSEED": "0"})])
def test_stack_of_a_log_line_begins_with_the_script(
    shared: StubService, job: str, env: dict[str, str]
) -> None:
    shared.run(job, "python train.py", bundle=shared.add_bundle({"train.py": LOGS}), env=env)
    shared.exits(job)
    said = shared.wait_log(job, "stack_info=True")
    assert "in outer" in said
    assert "worker_agent" not in said


def test_progress_bar_before_an_error_is_one_line_of_its_report(shared: StubService) -> None:
    shared.run("bar", "python train.py", bundle=shared.add_bundle({"train.py": BAR}))
    assert shared.exits("bar")[0].log_tail == [f"train: 29999 of 30000 {'#' * 40}", "no such data"]
