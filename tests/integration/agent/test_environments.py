"""Environments of jobs, built by the real uv in the confinement of this host, from wheels of a folder."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.contract.agents import StartFailed
from tests.integration.agent.looking import wait_until
from tests.integration.agent.stub import AgentProcess, StubService
from tests.integration.wheels import make_sdist, make_wheel

SHOW = """
import importlib.metadata, json, os, sys
import hwtest_greeter, headway, torch
def writable(path):
    try:
        open(path, "a").close()
    except OSError:
        return False
    return True
print("FOUND", json.dumps({
    "greeting": hwtest_greeter.GREETING, "prefix": sys.prefix, "torch": torch.__version__,
    "torch_dist": importlib.metadata.version("torch"), "torch_file": os.path.realpath(torch.__file__),
    "loss": float(torch.ones(2).sum()), "init": callable(headway.init),
    "writable": writable(hwtest_greeter.__file__), "others": [m for m in ("sqlalchemy", "fastapi") if __import__("importlib.util").util.find_spec(m)],
}), flush=True)
"""


@pytest.fixture
def agent(make_agent: Callable[..., AgentProcess], stub: StubService, tmp_path: Path) -> AgentProcess:
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "hwtest_greeter", "1.0", "GREETING = 'hello'\n")
    make_wheel(wheels, "hwtest_greeter", "2.0", "GREETING = 'welcome'\n")
    made = make_agent()
    made.env |= {"UV_FIND_LINKS": str(wheels), "UV_OFFLINE": "1"}
    made.start()
    stub.wait_for(lambda: stub.reports)
    return made


def start(stub: StubService, job: str, files: dict[str, str], **fields: object) -> None:
    bundle = stub.add_bundle({"show.py": SHOW, **files})
    stub.run(job, "python show.py", bundle=bundle, **{"requirements": "requirements.txt", **fields})


def found(stub: StubService, job: str) -> dict[str, object]:
    stub.released(job)
    assert not (failed := stub.of(job, StartFailed)), (failed, stub.log(job))
    (exit_,) = stub.exits(job).values()
    assert exit_.exit_code == 0, (exit_, stub.log(job))
    log = stub.wait_log(job, "FOUND")
    line = next(line for line in log.splitlines() if line.startswith("FOUND"))
    result: dict[str, object] = json.loads(line.removeprefix("FOUND "))
    return result


def environments(agent: AgentProcess) -> list[Path]:
    return sorted((agent.state / "environments").iterdir())


# Ten seconds: the only test in the gate of what an environment is for, over a real build.
def test_environment_of_two_jobs_is_built_once_and_has_the_torch_of_the_host(
    stub: StubService, agent: AgentProcess
) -> None:
    files = {"requirements.txt": "hwtest_greeter>=1\ntorch>=2\n"}
    start(stub, "jfirst", files, slots={0: 0})
    start(stub, "jsecond", files, slots={0: 1}, master_port=stub.joins[-1].first_port + 1)
    import torch  # noqa: PLC0415

    (environment,) = {str(found(stub, job)["prefix"]) for job in ("jfirst", "jsecond")}
    for job in ("jfirst", "jsecond"):
        seen = found(stub, job)
        assert seen["greeting"] == "welcome"
        assert seen["torch"] == seen["torch_dist"] == torch.__version__
        assert seen["torch_file"] == os.path.realpath(torch.__file__)
        assert (seen["loss"], seen["init"]) == (2.0, True)
        assert seen["writable"] is (os.geteuid() == 0 and agent_shares_user(agent))
        assert seen["others"] == []  # packages of the host that the job did not ask for
        assert stub.started(job).how == "spawn"
    assert environments(agent) == [Path(environment)]
    built = [job for job in ("jfirst", "jsecond") if "Building the Python environment" in stub.log(job)]
    assert len(built) == 1
    for path in Path(environment).rglob("*"):
        if not path.is_symlink():
            assert path.stat().st_uid == os.geteuid()
            assert not stat.S_IMODE(path.stat().st_mode) & 0o022

    start(stub, "jwarm", files, slots={0: 0})
    assert found(stub, "jwarm")["prefix"] == environment
    assert "Building" not in stub.log("jwarm")


def agent_shares_user(agent: AgentProcess) -> bool:
    return '"by": "none"' in agent.log()


def test_requirement_that_no_index_has_fails_the_start_for_good_with_the_line_of_uv(
    stub: StubService, agent: AgentProcess
) -> None:
    start(stub, "jmissing", {"requirements.txt": "hwtest_greeter==9\n"})
    failed = stub.start_failed("jmissing")
    assert not failed.retryable
    assert "requirements.txt" in failed.message
    assert "hwtest-greeter==9" in failed.message
    stub.released("jmissing")
    assert "hwtest-greeter==9" in stub.wait_log("jmissing", "No solution found")
    assert environments(agent) == []


@pytest.mark.parametrize(
    ("files", "fields", "named"),
    [
        ({}, {}, "no file requirements.txt"),
        ({"requirements.txt": "-e .\n"}, {}, "'-e .'"),
        ({"requirements.txt": "hwtest_greeter @ file:///root/x\n"}, {}, "file:///root/x"),
        ({"uv.lock": "version = 1\n"}, {"requirements": None, "lock": "uv.lock"}, "pyproject.toml"),
    ],
)
def test_file_that_cannot_be_used_fails_the_start_for_good(
    stub: StubService, agent: AgentProcess, files: dict[str, str], fields: dict[str, object], named: str
) -> None:
    start(stub, "jwrong", files, **fields)
    failed = stub.start_failed("jwrong")
    assert (failed.retryable, named in failed.message) == (False, True), failed.message


def test_code_of_a_package_under_build_runs_outside_of_jobs_and_of_the_agent(
    stub: StubService, agent: AgentProcess, tmp_path: Path
) -> None:
    setup = (
        "import os, pathlib\n"
        f"state = pathlib.Path({str(agent.state)!r})\n"
        "def may(what):\n"
        "    try:\n"
        "        what()\n"
        "    except OSError:\n"
        "        return False\n"
        "    return True\n"
        "seen = [may(lambda: (state / 'credentials.json').read_text()), may(lambda: (state / 'runs').iterdir().__next__()),"
        " 'HEADWAY_JOIN_TOKEN' in os.environ]\n"
        "raise SystemExit(f'SEEN {seen} {os.getuid()}')\n"
    )
    make_sdist(tmp_path / "wheels", "hwtest_nosy", "1.0", setup)
    start(stub, "jnosy", {"requirements.txt": "hwtest_nosy\n"})
    failed = stub.start_failed("jnosy")
    log = stub.wait_log("jnosy", "SEEN")
    assert not failed.retryable
    if not agent_shares_user(agent):
        assert "SEEN [False, False, False]" in log
    if '"by": "users"' in agent.log():
        assert "SEEN [False, False, False] 0" not in log


def start_endless_build(stub: StubService, agent: AgentProcess, tmp_path: Path) -> None:
    """Start the job `jendless`, and wait until the agent builds its environment, which never ends."""
    code = "import os, threading\nthreading.Event().wait(600)\n"
    make_sdist(tmp_path / "wheels", "hwtest_endless", "1.0", code)
    start(stub, "jendless", {"requirements.txt": "hwtest_endless\n"})
    wait_until(lambda: any(one.name.endswith(".partial") for one in environments(agent)))


def test_stop_during_a_build_ends_it_and_leaves_nothing(
    stub: StubService, agent: AgentProcess, tmp_path: Path
) -> None:
    start_endless_build(stub, agent, tmp_path)
    stub.send_stop("jendless")
    stub.released("jendless")
    wait_until(lambda: environments(agent) == [])


def test_agent_killed_during_a_build_leaves_nothing_for_the_next_one(
    stub: StubService, agent: AgentProcess, tmp_path: Path
) -> None:
    start_endless_build(stub, agent, tmp_path)
    (half,) = environments(agent)
    agent.kill()
    stub.send_stop("jendless", mode="kill")
    agent.start()
    stub.released("jendless")
    wait_until(lambda: half not in environments(agent))


@pytest.mark.slow
def test_lock_file_installs_what_it_pins(stub: StubService, agent: AgentProcess, tmp_path: Path) -> None:
    import subprocess  # noqa: PLC0415

    from uv import find_uv_bin  # noqa: PLC0415

    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "train"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = ["hwtest_greeter<2"]\n'
    )
    env = {**os.environ, "UV_FIND_LINKS": str(tmp_path / "wheels"), "UV_OFFLINE": "1"}
    subprocess.run([find_uv_bin(), "lock", "--quiet", "--project", str(project)], env=env, check=True)
    files = {name: (project / name).read_text() for name in ("pyproject.toml", "uv.lock")}
    start(stub, "jlocked", files, requirements=None, lock="uv.lock")
    assert found(stub, "jlocked")["greeting"] == "hello"


@pytest.mark.slow
def test_environments_beyond_the_limit_go_once_no_run_uses_them(
    stub: StubService, make_agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        make_wheel(wheels, "hwtest_greeter", version, f"GREETING = {version!r}\n")
    small = make_agent("--environments-size", "1")
    small.env |= {"UV_FIND_LINKS": str(wheels), "UV_OFFLINE": "1"}
    small.start()
    stub.wait_for(lambda: stub.reports)
    start(stub, "jold", {"requirements.txt": "hwtest_greeter==1.0\n"})
    old = str(found(stub, "jold")["prefix"])
    assert Path(old).exists()  # nobody has looked since the run ended
    start(stub, "jnew", {"requirements.txt": "hwtest_greeter==2.0\n"})
    new = str(found(stub, "jnew")["prefix"])
    assert environments(small) == [Path(new)]
