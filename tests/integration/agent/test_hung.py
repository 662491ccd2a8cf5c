"""Ranks that hang in a real agent: found, and where they hang said, however they do it and however they were started."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from headway.contract.agents import RanksHung
from tests.integration.agent.stub import AgentProcess, StubService

LOCK = """
import os, threading
def take_twice():
    lock = threading.Lock()
    lock.acquire()
    print("pid", os.getpid(), flush=True)
    lock.acquire()
take_twice()
"""
GIL = """
import ctypes, os
def hold_everything():
    print("pid", os.getpid(), flush=True)
    ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)  # keeps the interpreter's lock
hold_everything()
"""
STOPPED = """
import os, signal
print("pid", os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
COLLECTIVE = """
import os, signal, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.zeros(1))
print("pid", os.getpid(), flush=True)
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
def wait_for_the_other():
    dist.all_reduce(torch.zeros(1))
wait_for_the_other()
"""
LIBRARY = """
import json, os, threading
lines = open(f"{os.environ['HEADWAY_CONTROL']}/rank-0.jsonl", "a")
def say(kind, **fields):
    lines.write(json.dumps({"type": kind, "rank": 0, "generation": 1, "at_s": 1.0, **fields}) + "\\n")
    lines.flush()
say("hello")
say("first_step", samples=1)
for step in range(3):
    say("progress", epoch=0, samples=step, total_samples=None, steps=2, step_s_sum=0.02, step_s_squares=0.0,
        global_batch=1, local_batch=1, accumulation=1)
print("pid", os.getpid(), flush=True)
def wait_for_ever():
    threading.Event().wait()
wait_for_ever()
"""


EVALUATES = LIBRARY.replace(
    "threading.Event().wait()",
    "value = 0\n    while True:\n        value = one(value)\n        value = another(value)\n"
    "def one(value):\n    return sum(range(100_000)) + value\n"
    "def another(value):\n    return len(str(value)) + max(range(100_000))",
)


def hung(stub: StubService, job: str, place: str = "") -> RanksHung:
    """Wait for a report whose stacks have the place. The ranks may have been slow to start before."""
    return stub.wait_for(
        lambda: next(
            (one for one in stub.of(job, RanksHung) if any(place in each for each in one.stacks)), None
        )
    )


def start(stub: StubService, job: str, script: str, run: str = "python train.py", **fields: Any) -> None:
    defaults = {"hung_after_s": 1.0, "hung_factor": 5.0, "hosts_store": fields.get("ranks", 1) > 1}
    stub.run(job, run, bundle=stub.add_bundle({"train.py": script}), **{**defaults, **fields})
    stub.wait_log(job, "pid")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "script", "place", "env"),
    [
        ("lock", LOCK, "in take_twice", {}),
        ("lock-spawned", LOCK, "in take_twice", {"PYTHONHASHSEED": "0"}),
        ("gil", GIL, "in hold_everything", {}),
        ("gil-spawned", GIL, "in hold_everything", {"PYTHONHASHSEED": "0"}),
        ("library", LIBRARY, "in wait_for_ever", {}),
    ],
)
def test_where_a_rank_hangs_is_reported_and_logged(
    shared: StubService, job: str, script: str, place: str, env: dict[str, str]
) -> None:
    start(shared, job, script, env=env)
    entry = hung(shared, job, place)
    assert entry.silent_s >= 1.0
    assert entry.usual_s == pytest.approx(0.01 if script is LIBRARY else 0.0)
    assert len(entry.stacks) == 1
    assert entry.stacks[0].startswith("rank 0, process ")
    assert "worker_agent" not in entry.stacks[0]
    assert place in shared.wait_log(job, place)
    shared.send_stop(job, mode="kill")
    assert shared.exits(job)[0].signal == signal.SIGKILL


def test_a_rank_that_is_stopped_is_described_by_its_kernel(shared: StubService) -> None:
    start(shared, "frozen", STOPPED)
    assert "stopped by a signal (T)" in hung(shared, "frozen", "stopped by").stacks[0]
    shared.send_stop("frozen", mode="kill")
    shared.released("frozen")


def test_of_a_collective_the_one_who_waits_and_the_one_who_is_missing_are_told_apart(
    shared: StubService,
) -> None:
    start(shared, "collective", COLLECTIVE, ranks=2)
    waits, missing = hung(shared, "collective", "stopped by a signal").stacks
    assert "in wait_for_the_other" in waits
    assert "stopped by a signal (T)" in missing
    shared.send_stop("collective", mode="kill")
    shared.released("collective")


def test_a_kill_that_asks_for_stacks_leaves_them_in_the_logs(shared: StubService) -> None:
    start(shared, "killed", LOCK, "true && python train.py", hung_after_s=None)
    shared.send_stop("killed", mode="kill", dump_stacks=True)
    assert shared.exits("killed")[0].stopped_by_agent
    log = shared.wait_log("killed", "End of the threads")
    assert "Killed on request of the service" in log
    assert "cannot write its stacks" in log, "nobody has told this interpreter to"
    start(shared, "killed-too", LOCK, hung_after_s=None)
    shared.send_stop("killed-too", mode="kill", dump_stacks=True)
    shared.released("killed-too")
    assert "in take_twice" in shared.wait_log("killed-too", "End of the threads")


def test_script_that_never_prints_hangs_from_its_start(shared: StubService) -> None:
    silent = "import threading\ndef wait_silently():\n    threading.Event().wait()\nwait_silently()\n"
    bundle = shared.add_bundle({"train.py": silent})
    shared.run("silent", "python train.py", bundle=bundle, hung_after_s=1.0, hung_factor=5.0)
    assert "in wait_silently" in hung(shared, "silent", "in wait_silently").stacks[0]
    shared.send_stop("silent", mode="kill")
    shared.released("silent")


@pytest.mark.slow
def test_an_agent_that_takes_over_knows_what_trained_before(
    stub: StubService, make_agent: Callable[..., AgentProcess]
) -> None:
    agent = make_agent()
    agent.start()
    stub.wait_for(lambda: stub.reports)
    start(stub, "adopted", LIBRARY, hung_after_s=5.0)
    stub.wait_for(
        lambda: any(said["type"] == "progress" and said["samples"] == 2 for said in stub.messages("adopted"))
    )
    agent.kill()
    assert not stub.of("adopted", RanksHung)
    agent.start()
    entry = hung(stub, "adopted", "in wait_for_ever")
    assert entry.usual_s == pytest.approx(0.01)
    assert "in wait_for_ever" in entry.stacks[0]


@pytest.mark.slow
def test_ranks_whose_main_threads_move_are_left_alone_where_nobody_gave_a_time(shared: StubService) -> None:
    start(shared, "evaluates", EVALUATES, hung_when_still=True)
    start(shared, "plain", LOCK, hung_when_still=True, first_slot=1)
    start(shared, "still", LIBRARY, hung_when_still=True, first_slot=2)
    assert "in wait_for_ever" in hung(shared, "still").stacks[0], "looked at four times"
    assert not shared.of("evaluates", RanksHung)
    assert not shared.of("plain", RanksHung), "nobody knows what a step of it is"
    for job in ("evaluates", "plain", "still"):
        shared.send_stop(job, mode="kill")
        shared.released(job)


@pytest.mark.slow
def test_ranks_that_step_or_are_being_stopped_are_left_alone(shared: StubService) -> None:
    steps = "import time\nwhile True:\n    print('step, pid', flush=True)\n    time.sleep(0.1)\n"
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LOCK
    start(shared, "deaf", deaf, hung_after_s=3.0)
    shared.send_stop("deaf", grace_s=5.0)
    start(shared, "steps", steps, first_slot=1, hung_after_s=6.0)
    shared.released("deaf")
    assert not shared.of("deaf", RanksHung)
    assert not shared.of("steps", RanksHung)
    shared.send_stop("steps", mode="kill")
    shared.released("steps")


@pytest.mark.slow
def test_who_asks_for_stacks_harms_nobody_who_does_not_know_the_signal(shared: StubService) -> None:
    start(shared, "shell", "", "echo pid $$; while true; do sleep 0.1; done")
    assert "cannot write its stacks" in hung(shared, "shell").stacks[0]
    pid = int(shared.log("shell").split()[1])
    os.kill(pid, signal.SIGURG)
    shared.wait_for(lambda: len(shared.of("shell", RanksHung)) >= 2)
    assert not shared.of("shell", RanksHung)[0].stacks[0].endswith("dead (Z)")
    shared.send_stop("shell", mode="kill")
    shared.released("shell")
