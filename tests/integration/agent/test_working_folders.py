"""Where an agent is started decides nothing about what its jobs can read: with the shipped unit's and image's folders, and others."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.agent.stub import AgentProcess, StubService

ROOT = Path(__file__).parents[3]
NO_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")

SNOOP = """
import json, os
state = os.environ["STATE"]
def attempt(what, *arguments):
    try:
        what(*arguments)
        return True
    except OSError:
        return False
def read(path):
    open(path, "rb").read(1)
paths = [state + "/credentials.json", state + "/agent.json", state + "/runs/victim/1/rank-0.env",
         state + "/runs/victim/1/rank-0.log", state + "/runs/victim/work/train.py", os.environ["ADMIN"],
         f"/proc/{os.environ['AGENT']}/environ"]
folders = [state, state + "/runs", state + "/runs/victim/work", state + "/bundles", os.path.dirname(os.environ["ADMIN"])]
found = [p for p in paths if attempt(read, p)] + [p for p in folders if attempt(os.listdir, p)]
print(json.dumps({"found": found, "of": len(paths) + len(folders)}), flush=True)
"""


def unit() -> configparser.ConfigParser:
    """The systemd unit of an agent. Keys that are given twice are not asked for here."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read(ROOT / "deploy/systemd/headway-agent.service")
    return parser


def working_folder_of_the_image() -> str:
    """Return the working folder of the last stage, which is the agent's."""
    return re.findall(r"^WORKDIR (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[-1]


def state_of_the_image() -> str:
    return re.findall(r'"--state-dir", "([^"]+)"', (ROOT / "Dockerfile").read_text())[-1]


def shipped(kind: str, state: Path) -> Path:
    """The working folder that is shipped; one that is the state folder there, or above it, is so here."""
    if kind == "unit":
        theirs = Path("/var/lib/headway-agent")
        working = Path(unit()["Service"].get("WorkingDirectory", "/"))
    else:
        theirs, working = Path(state_of_the_image()), Path(working_folder_of_the_image())
    if theirs.is_relative_to(working) and working != Path("/"):
        return state.parents[len(theirs.relative_to(working).parts) - 1] if working != theirs else state
    return working


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "as the unit ships": lambda state: shipped("unit", state),
    "as the image ships": lambda state: shipped("image", state),
    "the state folder": lambda state: state,
    "above it": lambda state: state.parent,
}


@pytest.mark.slow
@pytest.mark.parametrize("where", FOLDERS)
def test_no_working_folder_opens_anything(
    stub: StubService, make_agent: Callable[..., AgentProcess], tmp_path: Path, where: str
) -> None:
    admin = tmp_path / "admin" / "admin-token"
    admin.parent.mkdir()
    admin.write_text("hwy_admin")
    state = tmp_path / "state"
    (state / "runs").mkdir(parents=True, mode=0o700)
    agent = make_agent("--isolation", "landlock", state=state)
    agent.imports = FOLDERS[where](state)
    # Whatever leads to the folders beside the working one: what Python is told to import from, homes, temporary files.
    told = os.pathsep.join(["", str(state), str(tmp_path), "/"])
    agent.env |= {"HEADWAY_HOME": str(admin.parent), "HEADWAY_API_TOKEN": "secret", "PYTHONPATH": told}
    agent.env |= {"HOME": str(state), "PATH": f"{state}:{os.environ['PATH']}"}
    agent.start()
    stub.wait_for(lambda: stub.reports)
    assert [slot.withheld for slot in stub.joins[-1].slots] == ["", ""]
    victim = stub.add_bundle(
        {"train.py": "print('ready', flush=True)\n__import__('threading').Event().wait()"}
    )
    stub.run("victim", "python train.py", bundle=victim)
    stub.wait_log("victim", "ready")
    env = {"STATE": str(state), "ADMIN": str(admin), "AGENT": str(agent.pid)}
    snoop = stub.add_bundle({"snoop.py": SNOOP})
    stub.run("snoop", "python snoop.py", bundle=snoop, env=env, first_slot=1, hosts_store=False)
    found = json.loads(stub.wait_log("snoop", "}").strip().splitlines()[-1])
    assert found == {"found": [], "of": 12}


@pytest.mark.slow
def test_an_agent_whose_jobs_would_not_be_kept_apart_joins_and_takes_none(
    stub: StubService, make_agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    """The interpreter lies in a private folder: either jobs could look into that, or they could not start."""
    agent = make_agent("--isolation", "landlock")
    agent.env["HEADWAY_PRIVATE"] = str(ROOT)
    agent.start()
    stub.wait_for(lambda: stub.reports)
    assert all("Install it elsewhere" in slot.withheld for slot in stub.joins[-1].slots)
    stub.run("job", "true")
    failed = stub.start_failed("job")
    assert failed.retryable
    assert "takes no jobs" in failed.message
    stub.released("job")
    assert agent.log().count("isolation_broken") == 1, "it says so, and does not start again and again"
    agent.end()
    agent.env["HEADWAY_PRIVATE"] = ""
    agent.start()
    stub.wait_for(lambda: len(stub.joins) > 1)
    assert [slot.withheld for slot in stub.joins[-1].slots] == ["", ""]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_an_agent_without_any_power_keeps_jobs_apart(
    stub: StubService, make_agent: Callable[..., AgentProcess]
) -> None:
    agent = make_agent("--isolation", "landlock")
    agent.before = NO_CAPABILITIES
    agent.imports = agent.state
    agent.state.mkdir()
    agent.start()
    stub.wait_for(lambda: stub.reports)
    stub.run("job", "true", bundle=stub.add_bundle({"a.py": ""}))
    assert stub.exits("job")[0].exit_code == 0


def test_the_shipped_agents_do_not_import_from_where_they_start() -> None:
    """A file of a job's, left there, would be the agent's code at its next start."""
    assert "python -P -m worker_agent" in unit()["Service"]["ExecStart"]
    assert '"python", "-P", "-m", "worker_agent"' in (ROOT / "Dockerfile").read_text()
