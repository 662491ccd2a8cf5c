"""Ranks in containers, through the real launcher: the engine is a program that records its command line and runs the rank."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.agent.looking import alive, wait_until
from tests.integration.agent.stub import AgentProcess, StubService

ENGINE = """#!{python}
import json, os, signal, subprocess, sys
folder, arguments = {folder!r}, sys.argv[1:]
with open(folder + "/calls.jsonl", "a") as calls:
    calls.write(json.dumps(dict(argv=arguments, env=dict(os.environ))) + "\\n")
if arguments[0] == "version":
    print("27.0")
elif arguments[0] == "rm":
    try:
        os.killpg(int(open(folder + "/" + arguments[-1]).read()), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        sys.exit("Error response from daemon: No such container: " + arguments[-1])
else:
    options = dict(one.removeprefix("--").split("=", 1) for one in arguments if one.startswith("--") and "=" in one)
    image = arguments.index("registry.example/train:1")
    env = dict(line.rstrip("\\n").split("=", 1) for line in open(options["env-file"]))
    env["PATH"] = os.environ["PATH"]
    rank = subprocess.Popen(arguments[image + 1:], env=env, cwd=options["workdir"], start_new_session=True)
    open(folder + "/" + options["name"], "w").write(str(rank.pid))
    signal.signal(signal.SIGTERM, lambda *_: rank.send_signal(signal.SIGTERM))
    code = rank.wait()
    os.unlink(folder + "/" + options["name"])
    sys.exit(code if code >= 0 else 128 - code)
"""

WAIT = """
import os, signal, sys, threading
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
print("pid", os.getpid(), "value", os.environ["VALUE"], "rank", os.environ["RANK"], flush=True)
print("ready", flush=True)
while not stopped:
    threading.Event().wait(0.02)
sys.exit(143)
"""
DEAF = WAIT.replace("lambda *_: stopped.append(True)", "signal.SIG_IGN")
IMAGE = "registry.example/train:1"


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """The folder of the program that plays Docker."""
    folder = tmp_path / "engine"
    folder.mkdir()
    program = folder / "docker"
    program.write_text(ENGINE.format(python=sys.executable, folder=str(folder)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.fixture
def node(stub: StubService, make_agent: Callable[..., AgentProcess], engine: Path) -> AgentProcess:
    agent = make_agent("--isolation", "none")
    agent.env = {**agent.env, "PATH": f"{engine}{os.pathsep}{os.environ['PATH']}"}
    agent.start()
    stub.wait_for(lambda: stub.reports)
    return agent


def calls(engine: Path, verb: str) -> list[dict[str, object]]:
    lines = (engine / "calls.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["argv"][0] == verb]


@pytest.mark.slow
def test_a_rank_runs_in_a_container_with_exactly_these_rights(
    stub: StubService, node: AgentProcess, engine: Path
) -> None:
    assert stub.joins[-1].container_engine == "docker"
    stub.run(
        "boxed", "python train.py", bundle=stub.add_bundle({"train.py": WAIT}), image=IMAGE, ranks=2,
        env={"VALUE": "hidden", "LD_PRELOAD": "", "DOCKER_HOST": "tcp://elsewhere"},
        memory_per_slot_bytes=1 << 30, cpus_per_slot=2.0,
    )  # fmt: skip
    for rank in (0, 1):
        stub.wait_log("boxed", f"value hidden rank {rank}", rank)
    stub.send_stop("boxed")
    assert [end.exit_code for end in stub.exits("boxed").values()] == [143, 143]
    job = node.state / "runs" / "boxed"
    call = next(one for one in calls(engine, "run") if "--name=headway-boxed-1-1" in one["argv"])  # type: ignore[operator]
    argv = [str(word) for word in call["argv"]]  # type: ignore[attr-defined]
    mounts = [word for word in argv if word.startswith("--mount")]
    assert mounts[0] == f"--mount=type=bind,source={job}/work,target={job}/work"
    assert [word for word in argv if word not in mounts and not word.startswith("--env-file")] == [
        "run", "--rm", "--init", "--name=headway-boxed-1-1", "--network=host", "--ipc=host", "--log-driver=none",
        "--cap-drop=all", "--security-opt=no-new-privileges", "--ulimit=core=0", f"--user={os.getuid()}:{os.getgid()}",
        "--pids-limit=16384", f"--memory={1 << 30}", f"--memory-swap={1 << 30}", "--cpus=2",
        f"--workdir={job}/work", IMAGE, "python", "train.py",
    ]  # fmt: skip
    assert "hidden" not in json.dumps(call), "neither on its command line nor in the client's environment"
    assert not {"DOCKER_HOST", "LD_PRELOAD", "HEADWAY_JOIN_TOKEN"} & set(call["env"])  # type: ignore[call-overload]


@pytest.mark.slow
def test_a_container_ends_when_its_run_is_killed(stub: StubService, node: AgentProcess, engine: Path) -> None:
    stub.run(
        "deaf", "python train.py", bundle=stub.add_bundle({"train.py": DEAF}), image=IMAGE, env={"VALUE": "x"}
    )
    pid = int(stub.wait_log("deaf", "ready").split()[1])
    stub.send_stop("deaf", mode="kill")
    stub.released("deaf")
    wait_until(lambda: not alive(pid))
    assert calls(engine, "rm")[-1]["argv"] == ["rm", "--force", "headway-deaf-1-0"]


@pytest.mark.slow
def test_a_node_whose_engine_does_not_answer_says_so(
    stub: StubService, make_agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    client = tmp_path / "client" / "docker"
    client.parent.mkdir()
    client.write_text("#!/bin/sh\nexit 1\n")
    client.chmod(0o755)
    agent = make_agent("--isolation", "none")
    agent.env = {**agent.env, "PATH": str(client.parent)}  # whatever is installed here
    agent.start()
    stub.wait_for(lambda: stub.reports)
    assert stub.joins[-1].container_engine is None
    stub.run("boxed", "python train.py", image=IMAGE)
    failed = stub.start_failed("boxed")
    assert "docker is installed, but its engine does not answer" in failed.message
    assert failed.retryable
