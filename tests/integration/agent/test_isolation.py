"""Jobs that attack: their agent, other jobs on the host, and what keeps them in."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.contract.agents import OutputReport
from tests.integration.agent.looking import alive, launchers, wait_until
from tests.integration.agent.stub import AgentProcess, StubService

VICTIM = """
import os, threading
open("secret.txt", "w").write("mine")
open(os.environ["TMPDIR"] + "/secret.txt", "w").write("mine")
os.makedirs(os.environ["HEADWAY_CHECKPOINT_URI"].removeprefix("file://"), exist_ok=True)
open(os.environ["HEADWAY_CHECKPOINT_URI"].removeprefix("file://") + "/weights", "w").write("mine")
print("pid", os.getpid(), "tmp", os.environ["TMPDIR"], flush=True)
print("ready", flush=True)
threading.Event().wait()
"""

ATTACKER = """
import ctypes, json, os, socket
agent, victim, launcher = (int(os.environ[name]) for name in ("AGENT", "VICTIM", "LAUNCHER"))
state, theirs, own = os.environ["STATE"], os.environ["STATE"] + "/runs/victim", os.environ["HEADWAY_CONTROL"]
libc = ctypes.CDLL(None, use_errno=True)

def read(path):
    return lambda: open(path, "rb").read(1)

def append(path):
    return lambda: open(path, "ab").write(b"x")

def order_the_launcher():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(state + "/launcher.sock")
        connection.sendall(b'{"type": "hello"}\\n')
        if not connection.recv(1):
            raise OSError("it hangs up")

def trace(pid):
    def attach():
        if libc.ptrace(16, pid, 0, 0):
            raise OSError(ctypes.get_errno(), "ptrace")
        os.waitpid(pid, 0x40000000)
        libc.ptrace(17, pid, 0, 0)
    return attach

attacks = {
    "read a token file": read(state + "/agent.json"),
    "read the agent's outbox": read(state + "/outbox.jsonl"),
    "change the agent's outbox": append(state + "/outbox.jsonl"),
    "read the bundle of another job": read(os.environ["BUNDLE"]),
    "change the bundle cache": append(os.environ["BUNDLE"]),
    "add to the bundle cache": append(state + "/bundles/new.tar.gz"),
    "read the command of another job": read(theirs + "/1/command.json"),
    "read the environment file of another rank": read(theirs + "/1/rank-0.env"),
    "read the output of another job": read(theirs + "/1/rank-0.log"),
    "read another job's folder": read(theirs + "/work/secret.txt"),
    "write to another job's folder": append(theirs + "/work/new.txt"),
    "read another job's temporary files": read(os.environ["VICTIM_TMP"] + "/secret.txt"),
    "speak for another job": append(theirs + "/1/control/rank-0.jsonl"),
    "order another job": append(theirs + "/1/control/order.json"),
    "read another job's checkpoint": read(os.environ["VICTIM_CHECKPOINT"] + "/weights"),
    "change another job's checkpoint": append(os.environ["VICTIM_CHECKPOINT"] + "/weights"),
    "lead the agent elsewhere by a link": lambda: os.symlink("/etc/shadow", own + "/rank-7.jsonl"),
    "take the place of an own file": lambda: os.rename(own + "/stacks-0.txt", own + "/rank-8.jsonl"),
    "order itself": append(own + "/order.json"),
    "give orders to the launcher": order_the_launcher,
    "list the agent's folder": lambda: os.listdir(state),
    "list the jobs": lambda: os.listdir(state + "/runs"),
    "list another job's folder": lambda: os.listdir(theirs + "/work"),
}
for who, pid in (("the agent", agent), ("the launcher", launcher), ("another job", victim)):
    attacks[f"read the environment of {who}"] = read(f"/proc/{pid}/environ")
    attacks[f"read the memory of {who}"] = lambda pid=pid: open(f"/proc/{pid}/mem", "rb").close()
    attacks[f"trace {who}"] = trace(pid)
    attacks[f"signal {who}"] = lambda pid=pid: os.kill(pid, 0)

done = []
for what, attack in attacks.items():
    try:
        attack()
        done.append(what)
    except OSError:
        pass
gained = []
for program in ("/bin/su", "/usr/bin/passwd"):
    if os.path.exists(program) and "NoNewPrivs:\\t1" not in open("/proc/self/status").read():
        gained.append(program)
print(json.dumps({"done": done, "of": len(attacks), "gained": gained, "uid": os.getuid(),
                  "core": __import__("resource").getrlimit(4)[0], "umask": os.umask(0o777),
                  "home": os.path.expanduser("~"), "groups": os.getgroups()}), flush=True)
"""

HOLDS_BY_ITSELF = """
import os, tempfile, torch
open(os.path.expanduser("~/kept"), "w").write("x")
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x")
loader = torch.utils.data.DataLoader(list(range(8)), num_workers=2)
print("sum", sum(int(one) for one in loader))
open("/dev/stdout", "a").write("again\\n")
"""

ESCAPE = """
import os, subprocess, sys
child = subprocess.Popen(["setsid", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], env={}, stdout=subprocess.PIPE)
print("escaped", child.communicate()[0].decode().strip(), flush=True)
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give jobs users of their own")
KINDS = [pytest.param("users", marks=needs_root), "landlock"]
NO_GROUPS = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh")


def _attack(stub: StubService, agent: AgentProcess, tmp_path: Path) -> dict[str, Any]:
    """Return the outcome of each attack on a victim on the same host."""
    agent.start()
    stub.wait_for(lambda: stub.reports)
    victim = stub.add_bundle({"train.py": VICTIM})
    checkpoints = tmp_path / "storage" / "checkpoints"
    stub.run("victim", "python train.py", bundle=victim, checkpoint_uri=f"file://{checkpoints}/victim")
    ready = stub.wait_log("victim", "ready").split()
    order = agent.state / "runs" / "victim" / "1" / "control" / "order.json"
    order.write_text("{}")
    env = {
        "AGENT": str(agent.pid),
        "LAUNCHER": str(launchers(agent.state)[0]),
        "VICTIM": ready[1],
        "VICTIM_TMP": ready[3],
        "VICTIM_CHECKPOINT": f"{checkpoints}/victim",
        "STATE": str(agent.state),
        "BUNDLE": f"{agent.state}/bundles/{victim.removeprefix('sha256:')}.tar.gz",
    }
    attacker = stub.add_bundle({"attack.py": ATTACKER})
    stub.run(
        "attacker", "python attack.py", bundle=attacker, env=env, first_slot=1, hosts_store=False,
        checkpoint_uri=f"file://{checkpoints}/attacker",
    )  # fmt: skip
    found: dict[str, Any] = json.loads(stub.wait_log("attacker", "}").strip().splitlines()[-1])
    assert stub.exits("attacker")[0].exit_code == 0
    assert alive(int(ready[1])), "the victim trains on"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_reaches_neither_its_agent_nor_another_job(
    stub: StubService, make_agent: Callable[..., AgentProcess], tmp_path: Path, kind: str
) -> None:
    agent = make_agent("--isolation", kind, "--umask", "027")
    found = _attack(stub, agent, tmp_path)
    assert found["done"] == []
    assert found["of"] > 25
    assert found["gained"] == []
    assert (found["core"], found["umask"]) == (0, 0o027)
    assert found["home"] == str(agent.state / "runs" / "attacker" / "home")
    assert (found["uid"] != os.getuid()) == (kind == "users")


@pytest.mark.slow
def test_without_isolation_the_attacks_succeed(
    stub: StubService, make_agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    """They are real, and the agent says at its start what it cannot prevent."""
    agent = make_agent("--isolation", "none")
    found = _attack(stub, agent, tmp_path)
    assert "speak for another job" in found["done"]
    assert "signal the agent" in found["done"]
    assert "list another job's folder" in found["done"]
    assert "give orders to the launcher" not in found["done"]
    said = next(line for line in agent.log().splitlines() if "jobs are kept apart" in line)
    assert "can read and change whatever the agent's user can" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_confined_job_has_what_it_needs(
    stub: StubService, make_agent: Callable[..., AgentProcess], kind: str
) -> None:
    make_agent("--isolation", kind).start()
    stub.wait_for(lambda: stub.reports)
    stub.run("good", "python train.py", bundle=stub.add_bundle({"train.py": HOLDS_BY_ITSELF}))
    assert stub.exits("good")[0].exit_code == 0, stub.log("good")
    assert "sum 28\nagain" in stub.wait_log("good", "again")


LEAVES = """
import ctypes
open("/dev/shm/" + {name!r}, "w").write("x")
open("/tmp/" + {name!r}, "w").write("x")
print("segment", ctypes.CDLL(None).shmget(0, 4096, 0o1600), flush=True)
"""


@needs_root
@pytest.mark.slow
def test_memory_of_an_ended_job_is_removed_and_its_temporary_files_are_named(
    stub: StubService, make_agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    make_agent("--isolation", "users").start()
    stub.wait_for(lambda: stub.reports)
    name = f"left-{os.getpid()}"
    try:
        stub.run("leaves", "python t.py", bundle=stub.add_bundle({"t.py": LEAVES.format(name=name)}))
        stub.released("leaves")
        segment = stub.log("leaves").split()[1]
        assert int(segment) >= 0
        assert not Path("/dev/shm", name).exists()
        lines = Path("/proc/sysvipc/shm").read_text().splitlines()
        assert segment not in {line.split()[1] for line in lines}
        (said,) = [one for one in stub.of("leaves", OutputReport) if one.what == "elsewhere"]
        assert f"/tmp/{name}" in said.paths
    finally:
        Path("/tmp", name).unlink(missing_ok=True)


WRITES = """
import os, sys
os.makedirs(sys.argv[1] + "/inner")
open(sys.argv[1] + "/inner/model.txt", "w").write("weights")
"""
READS = """
import os, sys
print("read", open(sys.argv[1] + "/inner/model.txt").read(), "as", os.getuid(), flush=True)
"""


@needs_root
@pytest.mark.slow
def test_job_reads_what_another_job_wrote_to_a_common_folder(
    stub: StubService, make_agent: Callable[..., AgentProcess]
) -> None:
    agent = make_agent("--isolation", "users")
    agent.before = ("sh", "-c", 'umask 022; exec "$@"', "sh")
    agent.start()
    stub.wait_for(lambda: stub.reports)
    common = Path(
        tempfile.mkdtemp(prefix="common-")
    )  # outside of the tests' own folder, which is closed to other users
    common.chmod(0o1777)
    try:
        for job, script in (("writes", WRITES), ("reads", READS)):
            stub.run(job, f"python {job}.py {common}/cache", bundle=stub.add_bundle({f"{job}.py": script}))
            assert stub.exits(job)[0].exit_code == 0, stub.log(job)
        assert "read weights as" in stub.wait_log("reads", "read")
    finally:
        shutil.rmtree(common)


@pytest.mark.slow
@pytest.mark.parametrize("before", [(), pytest.param(NO_GROUPS, marks=needs_root)], ids=["groups", "none"])
def test_what_flees_its_group_and_its_environment_ends_with_its_run(
    stub: StubService, make_agent: Callable[..., AgentProcess], before: tuple[str, ...]
) -> None:
    agent = make_agent()
    agent.before = before
    agent.start()
    stub.wait_for(lambda: stub.reports)
    stub.run("flee", "python flee.py", bundle=stub.add_bundle({"flee.py": ESCAPE}))
    escaped = int(stub.wait_log("flee", "escaped").split()[1])
    stub.released("flee")
    wait_until(lambda: not alive(escaped))


def test_an_agent_that_cannot_do_what_is_asked_for_says_so(
    stub: StubService, make_agent: Callable[..., AgentProcess]
) -> None:
    agent = make_agent("--isolation", "users")
    agent.before = ("unshare", "--user", "--map-root-user")
    agent.start()
    assert agent.wait() == 78
    assert "Jobs cannot be kept apart by users on this host" in agent.log()
