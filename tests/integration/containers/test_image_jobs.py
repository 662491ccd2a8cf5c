"""Jobs with an image, run by an agent in real containers, whose limits the kernel keeps."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agent.stub import AgentProcess, StubService
from tests.integration.containers.engine import BASE, Podman

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MIB = 1 << 20
HUNGRY = """
kept = []
for size in range(16, 1025, 16):
    kept.append(b"x" * (16 << 20))
    print("holds", size, "MiB", flush=True)
"""
BREEDING = """
import _thread, os
_thread.stack_size(32768)
block = _thread.allocate_lock()
block.acquire()
count = 1
try:
    while count < 20_000:
        _thread.start_new_thread(block.acquire, ())
        count += 1
except RuntimeError:
    pass
print("made", count, "processes", flush=True)
os._exit(0)
"""
BURNING = """
import os, time
began, used = time.monotonic(), time.process_time()
while time.monotonic() < began + 4:
    pass
print("used", (time.process_time() - used) / (time.monotonic() - began), "cores", flush=True)
print("user", os.getuid(), "rank", os.environ["RANK"], "value", os.environ["VALUE"], flush=True)
"""
DEAF = """
import signal, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def agent(bare: Podman, stub: StubService, tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent as root that finds this engine."""
    made = AgentProcess(stub.url, tmp_path / "state")
    made.env = {**made.env, "PATH": bare.env["PATH"]}
    made.start()
    stub.wait_for(lambda: stub.reports)
    yield made
    made.clean_up()


def test_memory_beyond_its_limit_ends_a_containers_rank(stub: StubService, agent: AgentProcess) -> None:
    assert stub.joins[-1].container_engine == "podman"
    bundle = stub.add_bundle({"train.py": HUNGRY})
    stub.run("hungry", "python train.py", bundle=bundle, image=BASE, memory_per_slot_bytes=256 * MIB)
    stub.released("hungry")
    assert [end.exit_code for end in stub.exits("hungry").values()] == [137]
    held = [int(size) for size in re.findall(r"holds (\d+) MiB", stub.log("hungry"))]
    assert 128 <= max(held) <= 256


def test_processes_of_a_container_stop_at_the_limit(stub: StubService, agent: AgentProcess) -> None:
    stub.run("breeding", "python train.py", bundle=stub.add_bundle({"train.py": BREEDING}), image=BASE)
    made = int(stub.wait_log("breeding", "processes").split()[1])
    assert 16_000 < made <= 16_384


def test_a_container_gets_its_share_of_a_core_and_the_jobs_user(
    stub: StubService, agent: AgentProcess
) -> None:
    bundle = stub.add_bundle({"train.py": BURNING})
    stub.run(
        "burning", "python train.py", bundle=bundle, image=BASE, cpus_per_slot=0.25, env={"VALUE": "given"}
    )
    log = stub.wait_log("burning", "value")
    used = re.search(r"used (\S+) cores", log)
    who = re.search(r"user (\d+) rank 0 value given", log)
    assert used is not None
    assert who is not None
    assert 0 < float(used[1]) < 0.35
    assert int(who[1]) > 0x70000000 - 1
    stub.released("burning")
    assert [end.exit_code for end in stub.exits("burning").values()] == [0]


def test_nothing_is_left_of_a_container_that_was_killed(
    bare: Podman, stub: StubService, agent: AgentProcess
) -> None:
    stub.run("deaf", "python train.py", bundle=stub.add_bundle({"train.py": DEAF}), image=BASE)
    stub.wait_log("deaf", "ready")
    assert bare.run("ps", "--format={{.Names}}") == "headway-deaf-1-0"
    pid = int(bare.run("inspect", "--format={{.State.Pid}}", "headway-deaf-1-0"))
    stub.send_stop("deaf", mode="kill")
    stub.released("deaf")
    assert bare.run("ps", "--all", "--quiet") == ""
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
