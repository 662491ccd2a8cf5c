"""Ranks of a real agent: started, stopped, killed, reported."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from headway.contract.agents import COMMAND_FIELD, Holding, RanksStarted
from tests.integration.agent.looking import alive, wait_until
from tests.integration.agent.stub import StubService

WAIT_FOR_STOP = """
import os, signal, subprocess, sys, threading
stopped = []  # Event.set() in a handler would deadlock with a wait() that it interrupts
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
helper = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
print("pid", os.getpid(), "helper", helper.pid, flush=True)
print("ready", flush=True)
while not stopped:
    threading.Event().wait(0.02)
print("helper alive", helper.poll() is None, flush=True)
sys.exit(143)
"""

DEAF = """
import os, signal, subprocess, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
escaped = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("pids", os.getpid(), escaped.pid, flush=True)
print("ready", flush=True)
threading.Event().wait()
"""

ALL_REDUCE = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((1,), float(dist.get_rank() + 1))
dist.all_reduce(x)
print("sum", x.item(), "of", dist.get_world_size(), "argv", sys.argv, "threads", torch.get_num_threads())
print("seed", torch.initial_seed())
"""


def _pids(log: str, word: str) -> list[int]:
    line = next(line for line in log.splitlines() if line.startswith(word))
    return [int(part) for part in line.split() if part.isdigit()]


@pytest.mark.slow
def test_ranks_of_a_python_script_are_forked_and_talk_through_the_agents_store(shared: StubService) -> None:
    bundle = shared.add_bundle({"train.py": ALL_REDUCE})
    shared.run("talk", "python train.py --epochs 3", ranks=2, bundle=bundle)
    assert shared.started("talk").how == "zygote"
    exits = shared.exits("talk")
    assert {rank: (end.exit_code, end.signal) for rank, end in exits.items()} == {0: (0, None), 1: (0, None)}
    logs = [shared.wait_log("talk", "seed", rank) for rank in (0, 1)]
    for log in logs:
        assert "sum 3.0 of 2 argv ['train.py', '--epochs', '3'] threads 1" in log
    assert logs[0].split("seed")[1] != logs[1].split("seed")[1], "forks must not share random numbers"


def test_a_variable_that_the_interpreter_reads_at_its_start_gets_a_new_interpreter(
    shared: StubService,
) -> None:
    bundle = shared.add_bundle({"train.py": "import sys; print('seeded', sys.flags.hash_randomization)"})
    shared.run("hashed", "python train.py", bundle=bundle, env={"PYTHONHASHSEED": "0"})
    assert shared.started("hashed").how == "spawn"
    assert shared.exits("hashed")[0].exit_code == 0
    assert "seeded 0" in shared.wait_log("hashed", "seeded")


def test_a_module_of_the_job_is_not_hidden_by_a_preloaded_one(shared: StubService) -> None:
    bundle = shared.add_bundle({"train.py": "import numpy; print(numpy.MINE)", "numpy.py": "MINE = 'my own'"})
    shared.run("shadow", "python train.py", bundle=bundle)
    assert shared.started("shadow").how == "spawn"
    shared.wait_log("shadow", "my own")


@pytest.mark.parametrize(
    ("job", "run", "how"),
    [
        ("as-script", "python pkg/show.py a 'b c'", "zygote"),
        ("as-module", "python -m pkg.show a 'b c'", "zygote"),
        ("as-shell", "cd pkg && python show.py a 'b c'", "spawn"),
    ],
)
def test_a_program_finds_what_an_interpreter_would_give_it(
    shared: StubService, job: str, run: str, how: str
) -> None:
    show = (
        "import json, logging, os, sys\n"
        "print(json.dumps(dict(name=__name__, argv=sys.argv[1:], file=os.path.basename(__file__),\n"
        "      first=os.path.basename(sys.path[0]), cwd=os.path.basename(os.getcwd()),\n"
        "      handlers=len(logging.root.handlers), main=sys.modules['__main__'].__dict__ is globals())))\n"
    )
    shared.run(job, run, bundle=shared.add_bundle({"pkg/show.py": show}))
    assert shared.started(job).how == how
    seen = json.loads(shared.wait_log(job, "}"))
    assert seen == {
        "name": "__main__",
        "argv": ["a", "b c"],
        "file": "show.py",
        "first": "work" if job == "as-module" else "pkg",
        "cwd": "pkg" if job == "as-shell" else "work",
        "handlers": 0,
        "main": True,
    }


def test_a_rank_has_torchruns_environment_and_no_secret(shared: StubService) -> None:
    bundle = shared.add_bundle({"e.py": "import json, os; print(json.dumps(dict(os.environ)))"})
    shared.run("env", "python e.py", ranks=2, bundle=bundle, env={"MINE": "1"}, restart_count=2, attempt=3)
    env = json.loads(shared.wait_log("env", "}", rank=1))
    assert "secret-api-token" not in env.values()
    assert not {"HEADWAY_TOKEN", "HEADWAY_JOIN_TOKEN", "HEADWAY_URL"} & set(env)
    expected = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "env",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "HEADWAY_JOB_ID": "env",
        "HEADWAY_ATTEMPT": "3",
        "HEADWAY_GENERATION": "1",
        "HEADWAY_GLOBAL_BATCH": "64",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "MINE": "1",
    }
    assert {name: env.get(name) for name in expected} == expected


def test_an_error_of_the_script_is_reported_with_its_last_lines(shared: StubService) -> None:
    bundle = shared.add_bundle({"train.py": "def boom():\n    raise RuntimeError('no such data')\nboom()\n"})
    shared.run("boom", "python train.py", bundle=bundle)
    end = shared.exits("boom")[0]
    assert (end.exit_code, end.signal, end.stopped_by_agent, end.completed) == (1, None, False, False)
    assert end.log_tail[0] == "Traceback (most recent call last):"
    assert end.log_tail[-1] == "RuntimeError: no such data"
    assert not any("worker_agent" in line for line in end.log_tail)


@pytest.mark.parametrize(
    ("job", "body", "code"),
    [
        ("exit-retry", "import sys; sys.exit(75)", 75),
        ("exit-text", "import sys; sys.exit('bad configuration')", 1),
        ("exit-none", "raise SystemExit", 0),
        ("exit-syntax", "this is not Python", 1),
    ],
)
def test_exit_codes_are_those_of_the_interpreter(shared: StubService, job: str, body: str, code: int) -> None:
    shared.run(job, "python train.py", bundle=shared.add_bundle({"train.py": body}))
    assert shared.exits(job)[0].exit_code == code


def test_what_the_interpreter_does_at_its_end_is_done(shared: StubService) -> None:
    body = """
import atexit, threading
go = threading.Event()
def late():
    go.wait()
    print("thread done")
threading.Thread(target=late).start()
atexit.register(lambda: print("atexit done"))
go.set()
"""
    shared.run("tidy", "python train.py", bundle=shared.add_bundle({"train.py": body}))
    assert shared.wait_log("tidy", "atexit done").splitlines() == ["thread done", "atexit done"]


def test_a_missing_script_and_a_missing_command(shared: StubService) -> None:
    shared.run("no-script", "python nowhere.py")
    end = shared.exits("no-script")[0]
    assert end.exit_code == 2
    assert "can't open file" in end.log_tail[-1]
    shared.run("no-command", "trainify --fast")
    failed = shared.start_failed("no-command")
    assert "trainify" in failed.message
    assert not failed.retryable
    assert shared.exits("no-command") == {}


def test_a_stop_lets_the_rank_decide_and_leaves_its_helpers_to_it(shared: StubService) -> None:
    shared.run("stop", "python train.py", ranks=2, bundle=shared.add_bundle({"train.py": WAIT_FOR_STOP}))
    logs = [shared.wait_log("stop", "ready", rank) for rank in (0, 1)]
    shared.send_stop("stop")
    exits = shared.exits("stop")
    assert {(end.exit_code, end.signal, end.stopped_by_agent) for end in exits.values()} == {
        (143, None, True)
    }
    shared.wait_log("stop", "helper alive True")
    assert not any(alive(pid) for log in logs for pid in _pids(log, "pid"))


@pytest.mark.parametrize("run", ["cd . && python train.py; exit $?", "python train.py | cat"])
def test_a_stop_reaches_the_program_behind_a_shell(shared: StubService, run: str) -> None:
    job = f"shell-{len(run)}"
    shared.run(job, run, bundle=shared.add_bundle({"train.py": WAIT_FOR_STOP}))
    shared.wait_log(job, "ready")
    shared.send_stop(job)
    end = shared.exits(job)[0]
    assert end.stopped_by_agent
    shared.wait_log(job, "helper alive True")
    assert end.exit_code == (0 if "|" in run else 143), "a pipeline ends with the code of its last command"


def test_who_does_not_stop_in_time_is_killed_with_all_that_it_started(shared: StubService) -> None:
    shared.run("deaf", "python train.py", bundle=shared.add_bundle({"train.py": DEAF}))
    pids = _pids(shared.wait_log("deaf", "ready"), "pids")
    shared.send_stop("deaf", grace_s=0.2)
    end = shared.exits("deaf")[0]
    assert (end.exit_code, end.signal, end.stopped_by_agent) == (None, 9, True)
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_kill_does_not_ask(shared: StubService) -> None:
    shared.run("kill", "python train.py", ranks=2, bundle=shared.add_bundle({"train.py": WAIT_FOR_STOP}))
    shared.wait_log("kill", "ready", rank=1)
    shared.send_stop("kill", mode="kill")
    assert {end.signal for end in shared.exits("kill").values()} == {9}


def test_a_gang_ends_when_one_of_it_fails(shared: StubService) -> None:
    body = """
import os, sys, threading
if os.environ["RANK"] == "1":
    sys.exit(3)
threading.Event().wait()
"""
    shared.run("gang", "python train.py", ranks=3, bundle=shared.add_bundle({"train.py": body}))
    exits = shared.exits("gang")
    assert (exits[1].exit_code, exits[1].stopped_by_agent) == (3, False)
    assert [(exits[rank].signal, exits[rank].stopped_by_agent) for rank in (0, 2)] == [(9, True), (9, True)]


def test_a_rank_that_is_done_does_not_end_the_others(shared: StubService) -> None:
    body = """
import os, sys
from pathlib import Path
flag = Path("go")
if os.environ["RANK"] == "1":
    print("done", flush=True)
    sys.exit(0)
import threading
print(flag.resolve(), flush=True)
while not flag.exists():
    threading.Event().wait(0.01)
"""
    shared.run("uneven", "python train.py", ranks=2, bundle=shared.add_bundle({"train.py": body}))
    shared.wait_log("uneven", "done", rank=1)
    Path(shared.wait_log("uneven", "go").split()[0]).touch()
    assert {end.exit_code for end in shared.exits("uneven").values()} == {0}


def test_old_and_repeated_commands_change_nothing(shared: StubService) -> None:
    bundle = shared.add_bundle({"train.py": WAIT_FOR_STOP})
    second = shared.run("fence", "python train.py", generation=2, bundle=bundle)
    shared.wait_log("fence", "ready", generation=2)
    shared.push(second)
    first = shared.run("fence", "python train.py", generation=1, bundle=bundle)
    shared.send_stop("fence", generation=1, mode="kill")
    assert shared.released("fence", generation=1)
    shared.wait_for(lambda: any(first.command_id in report.acknowledged for report in shared.reports))
    twice = [report for report in shared.reports if second.command_id in report.acknowledged]
    assert twice
    stop = shared.send_stop("fence", generation=2)
    assert shared.exits("fence", generation=2)[0].exit_code == 143
    assert len(shared.of("fence", RanksStarted)) == 1
    shared.push(stop)
    shared.wait_for(lambda: sum(stop.command_id in report.acknowledged for report in shared.reports) >= 2)


def test_a_stop_that_overtakes_its_run_wins(shared: StubService) -> None:
    shared.send_stop("early", generation=1)
    assert shared.released("early").generation == 1
    command = shared.run("early", "python -c pass", generation=1)
    shared.wait_for(lambda: any(command.command_id in report.acknowledged for report in shared.reports))
    assert not shared.of("early", RanksStarted)


def test_a_newer_generation_waits_until_the_older_one_is_gone(shared: StubService) -> None:
    bundle = shared.add_bundle({"train.py": DEAF})
    shared.run("newer", "python train.py", generation=1, bundle=bundle)
    shared.wait_log("newer", "ready")
    shared.run("newer", "python train.py", generation=2, bundle=bundle)
    shared.started("newer", generation=2)
    released = shared.released("newer", generation=1)
    assert released.sequence < shared.started("newer", generation=2).sequence
    shared.stop.append(Holding(job_id="newer", generation=2))
    assert shared.exits("newer", generation=2)[0].signal == 9


def test_a_command_that_cannot_be_read_does_not_block_the_next(shared: StubService) -> None:
    shared.redis.xadd(shared.stream, {COMMAND_FIELD: '{"kind": "dance"}'})
    shared.redis.xadd(shared.stream, {"other": "field"})
    bad = shared.run_command("../../etc", "true")
    shared.push(bad)
    shared.run("after-bad", "true")
    assert shared.exits("after-bad")[0].exit_code == 0
    wait_until(lambda: shared.redis.xlen(shared.stream) == 0)


def test_messages_are_forwarded_in_order_and_completed_outweighs_the_exit_code(shared: StubService) -> None:
    body = """
import json, os
with open(os.environ["HEADWAY_CONTROL"] + "/rank-0.jsonl", "a") as file:
    def say(kind, **fields):
        file.write(json.dumps({"type": kind, "rank": 0, "generation": 1, "at_s": 1.0, **fields}) + "\\n")
        file.flush()
    say("hello")
    file.write("not JSON\\n")
    say("unheard-of")
    say("first_step", samples=64)
    say("completed", samples=640)
    file.write('{"type": "hel')
os.abort()
"""
    shared.run("talks", "python train.py", bundle=shared.add_bundle({"train.py": body}))
    end = shared.exits("talks")[0]
    assert (end.signal, end.completed, end.log_tail) == (6, True, [])
    assert [message["type"] for message in shared.messages("talks")] == ["hello", "first_step", "completed"]
    assert shared.messages("talks")[1]["samples"] == 64


def test_a_taken_port_is_another_nodes_chance(shared: StubService) -> None:
    port = shared.joins[-1].last_port
    with socket.create_server(("127.0.0.1", port)):
        shared.run("taken", "python -m this", master_port=port)
        failed = shared.start_failed("taken")
    assert failed.retryable
    assert str(port) in failed.message
    assert shared.exits("taken") == {}


def test_a_missing_bundle_and_one_that_leaves_its_folder(shared: StubService) -> None:
    shared.run("lost", "python train.py", bundle=f"sha256:{'0' * 64}")
    failed = shared.start_failed("lost")
    assert not failed.retryable
    shared.run("climb", "python train.py", bundle=shared.add_bundle({"../../escaped.py": ""}))
    failed = shared.start_failed("climb")
    assert not failed.retryable
    assert "leaves the folder" in failed.message


def test_a_bundle_is_fetched_once_per_node(shared: StubService) -> None:
    digest = shared.add_bundle({"train.py": "pass"})
    shared.run("fine", "python train.py", bundle=digest)
    assert shared.exits("fine")[0].exit_code == 0
    requests = shared.bundle_requests
    shared.run("again", "python train.py", bundle=digest)
    assert shared.exits("again")[0].exit_code == 0
    assert shared.bundle_requests == requests


def test_a_long_log_arrives_whole(shared: StubService) -> None:
    body = "for i in range(40000):\n    print(f'line {i} of the ülong log')\nprint('the end', end='')"
    shared.run("long", "python train.py", bundle=shared.add_bundle({"train.py": body}))
    expected = "".join(f"line {i} of the ülong log\n" for i in range(40000)) + "the end"
    assert shared.wait_log("long", "the end") == expected


def test_logs_flow_while_the_rank_runs(shared: StubService) -> None:
    body = "import threading\nprint('first line')\nthreading.Event().wait()"
    shared.run("flows", "python train.py", bundle=shared.add_bundle({"train.py": body}))
    shared.wait_log("flows", "first line\n")
    shared.send_stop("flows")
    end = shared.exits("flows")[0]
    assert (end.signal, end.stopped_by_agent) == (15, True)


def test_the_working_folder_is_the_jobs_over_generations(shared: StubService) -> None:
    body = (
        "from pathlib import Path\nfile = Path('count')\nn = int(file.read_text()) if file.exists() else 0\n"
    )
    body += "file.write_text(str(n + 1))\nprint('count', n)"
    bundle = shared.add_bundle({"train.py": body})
    for generation in (1, 2):
        shared.run("counts", "python train.py", generation=generation, bundle=bundle)
        assert shared.exits("counts", generation)[0].exit_code == 0
        shared.wait_log("counts", f"count {generation - 1}", generation=generation)


def test_holding_names_what_runs(shared: StubService) -> None:
    held = Holding(job_id="held", generation=1)
    shared.run("held", "sleep 600")
    shared.wait_for(lambda: held in shared.reports[-1].holding)
    shared.send_stop("held", mode="kill")
    shared.released("held")
    shared.wait_for(lambda: held not in shared.reports[-1].holding)
