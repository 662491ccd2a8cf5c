"""Ranks of a real agent under the filter of system calls: what they lose, and what they keep."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.agent.stub import AgentProcess, StubService
from worker_agent.launcher import system_calls

pytestmark = pytest.mark.slow
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give jobs users of their own")
KINDS = [pytest.param("users", marks=needs_root), "landlock", "none"]

TRIES = """
import ctypes, json, os, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def of(*call):
    ctypes.set_errno(0)
    libc.syscall(*call)
    return ctypes.get_errno()
CALLS = json.loads(os.environ["CALLS"])
found = {name: of(number, -1, 0, 0, 0) for name, number in CALLS.items()}
try:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()
except OSError as error:
    found["raw"] = error.errno
found["child"] = subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode
import resource, struct
piece = ctypes.create_string_buffer(b"own memory")
vector = struct.pack("PN", ctypes.addressof(piece), 1)
found["copied"] = libc.process_vm_readv(os.getpid(), vector, 1, vector, 1, 0)
found["limits"] = len(resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE))
resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
try:
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
except PermissionError:
    found["limited"] = False
import threading, faulthandler, tempfile, torch
with tempfile.TemporaryFile() as file:
    faulthandler.dump_traceback(file)
    file.seek(0)
    found["stack"] = b"File" in file.read()
done = []
thread = threading.Thread(target=done.append, args=(1,))
thread.start()
thread.join()
found["thread"] = done
found["loader"] = sum(int(one) for one in torch.utils.data.DataLoader(list(range(8)), num_workers=2))
found["interfaces"] = len(socket.if_nameindex())
found["forked"] = "worker_agent.launcher.child" in sys.modules
status = open("/proc/self/status").read().split()
found["seccomp"], found["privileges"] = status[status.index("Seccomp:") + 1], status[status.index("NoNewPrivs:") + 1]
print(json.dumps(found), flush=True)
"""
NAMES = (
    "ptrace",
    "keyctl",
    "bpf",
    "userfaultfd",
    "perf_event_open",
    "mount",
    "init_module",
)


def _tried(stub: StubService, agent: AgentProcess, run: str) -> dict[str, Any]:
    agent.start()
    stub.wait_for(lambda: stub.reports)
    numbers = system_calls.MACHINES[os.uname().machine].denied
    stub.run(
        "tries", run, bundle=stub.add_bundle({"tries.py": TRIES}),
        env={"CALLS": json.dumps({name: numbers[name] for name in NAMES})},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(stub.wait_log("tries", "}").strip().splitlines()[-1])
    assert stub.exits("tries")[0].exit_code == 0, stub.log("tries")
    return found


@pytest.mark.parametrize(
    "run", ["python tries.py", "sh -c 'exec python tries.py'"], ids=["forked", "started"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_lose_calls_that_training_does_not_need_and_train_on(
    stub: StubService, make_agent: Callable[..., AgentProcess], kind: str, run: str
) -> None:
    found = _tried(stub, make_agent("--isolation", kind), run)
    assert {name: found[name] for name in NAMES} == dict.fromkeys(NAMES, 1)
    assert (found["raw"], found["child"], found["seccomp"], found["privileges"]) == (1, 1, "2", "1")
    assert (found["stack"], found["thread"], found["loader"]) == (True, [1], 28)
    assert (found["copied"], found["limits"], found["limited"]) == (1, 2, False)
    assert found["interfaces"] > 0
    assert found["forked"] == (run == "python tries.py")


def test_one_setting_gives_ranks_all_calls_and_the_agent_says_so(
    stub: StubService, make_agent: Callable[..., AgentProcess]
) -> None:
    agent = make_agent("--isolation", "landlock", "--system-calls", "all")
    found = _tried(stub, agent, "python tries.py")
    assert found["seccomp"] == "0"
    assert found["ptrace"] == errno.ESRCH
    assert "system calls of jobs are not filtered: the agent was told to allow all" in agent.log()
