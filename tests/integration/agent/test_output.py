"""Output folders: what a rank writes on one host is there on the next, whatever happens to ranks and agents between."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.contract.agents import OutputReport
from service.adapters.storage import ObjectStorage
from service.usecases.jobs.after import copy_files
from tests.integration.agent.looking import end_all, wait_until
from tests.integration.agent.stub import AgentProcess, StubService

COUNTS = """
import json, os, pathlib, signal, sys, threading
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
home = pathlib.Path(os.environ["HEADWAY_OUTPUT_DIR"])
kept = home / "snapshot.json"
epoch = json.loads(kept.read_text())["epoch"] if kept.exists() else 0
print("from", epoch, "in", pathlib.Path.cwd() == home, flush=True)
epoch += 1
kept.write_text(json.dumps({"epoch": epoch}))
print("wrote", epoch, flush=True)
stopping.wait()
sys.exit(143)
"""

Agents = Callable[..., AgentProcess]


class Hosts:
    """One host after another, each with a state of its own and the same storage."""

    def __init__(self, stub: StubService, make_agent: Agents, tmp_path: Path) -> None:
        self.stub, self._make, self._folder = stub, make_agent, tmp_path
        self.agent: AgentProcess | None = None

    def next(self, name: str, *extra: str) -> AgentProcess:
        """Start the agent of another host; the one before is gone, with all that it started."""
        if self.agent is not None:
            self.agent.clean_up()
        before = len(self.stub.joins)
        self.agent = self._make(*extra, state=self._folder / name)
        self.agent.start()
        self.stub.wait_for(lambda: len(self.stub.joins) > before)
        return self.agent

    def run(self, job: str, generation: int, script: str = COUNTS, **fields: Any) -> None:
        given = {
            "bundle": self.stub.add_bundle({"train.py": script}),
            "checkpoint_uri": f"file://{self._folder}/checkpoints/{job}",
            "generation": generation,
            **fields,
        }
        self.stub.run(job, "python train.py", **given)

    def stop(self, job: str, generation: int) -> None:
        self.stub.send_stop(job, generation=generation)
        self.stub.released(job, generation)

    def said(self, job: str, what: str) -> list[OutputReport]:
        return [one for one in self.stub.of(job, OutputReport) if one.what == what]

    def saved_parts(self, job: str) -> int:
        return len(list((self._folder / "checkpoints" / job).glob("output/manifests/[0-9]*.json")))


@pytest.fixture
def hosts(stub: StubService, make_agent: Agents, tmp_path: Path) -> Hosts:
    return Hosts(stub, make_agent, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isolation", "output"),
    [
        ("users", {}),
        ("users", {"dir": "results"}),
        ("landlock", {"dir": ".", "as_cwd": True}),
        ("none", {"as_cwd": True}),
    ],
)
def test_the_next_host_has_what_was_written(hosts: Hosts, isolation: str, output: dict[str, Any]) -> None:
    if isolation == "users" and os.geteuid() != 0:
        pytest.skip("needs root")
    job = "moves"
    hosts.next("a", "--isolation", isolation)
    hosts.run(job, 1, output=output)
    hosts.stub.wait_log(job, "wrote 1")
    hosts.stop(job, 1)
    assert [one.files for one in hosts.said(job, "saved") if one.last] == [2 if output == {"dir": "."} else 1]
    hosts.next("b", "--isolation", isolation)
    hosts.run(job, 2, output=output)
    text = hosts.stub.wait_log(job, "wrote 2", generation=2)
    assert f"from 1 in {bool(output.get('as_cwd'))}" in text
    hosts.stop(job, 2)
    assert [one.moved_bytes for one in hosts.said(job, "fetched")] == [12]
    assert not hosts.said(job, "elsewhere")


@pytest.mark.slow
def test_a_host_that_is_lost_leaves_its_last_periodic_save(hosts: Hosts, tmp_path: Path) -> None:
    hosts.next("a")
    hosts.run("lost", 1, output={"every_s": 1.0})
    hosts.stub.wait_log("lost", "wrote 1")
    wait_until(lambda: hosts.saved_parts("lost") > 0)
    assert hosts.agent is not None
    hosts.agent.kill()
    end_all(hosts.agent.state)
    hosts.next("b")
    hosts.run("lost", 2)
    assert "from 1" in hosts.stub.wait_log("lost", "wrote 2", generation=2)


@pytest.mark.slow
def test_an_agent_that_takes_over_saves_what_the_ranks_leave(hosts: Hosts) -> None:
    agent = hosts.next("a")
    hosts.run("adopted", 1)
    hosts.stub.wait_log("adopted", "wrote 1")
    agent.kill()
    agent.start()
    hosts.stop("adopted", 1)
    (saved,) = hosts.said("adopted", "saved")
    assert (saved.last, saved.files) == (True, 1)


@pytest.mark.slow
def test_the_same_host_goes_on_without_fetching(hosts: Hosts) -> None:
    hosts.next("a")
    for generation in (1, 2):
        hosts.run("stays", generation)
        hosts.stub.wait_log("stays", f"wrote {generation}", generation=generation)
        hosts.stop("stays", generation)
    assert [one.moved_bytes for one in hosts.said("stays", "fetched")] == [0]


@pytest.mark.slow
def test_a_newer_generation_waits_for_what_the_older_one_leaves(hosts: Hosts) -> None:
    hosts.next("a")
    hosts.run("overtaken", 1)
    hosts.stub.wait_log("overtaken", "wrote 1")
    hosts.run("overtaken", 2)  # its stop was lost: the agent kills the older one
    assert "from 1" in hosts.stub.wait_log("overtaken", "wrote 2", generation=2)


@pytest.mark.slow
def test_newcomers_share_the_folder_with_ranks_that_train(hosts: Hosts) -> None:
    hosts.next("a")
    hosts.run("live", 1, live=True)
    hosts.stub.wait_log("live", "wrote 1")
    hosts.run("live", 2, live=True, joins=True, slots={1: 1}, hosts_store=False)
    assert "from 1" in hosts.stub.wait_log("live", "wrote 2", rank=1, generation=2)
    hosts.stop("live", 2)
    hosts.stub.wait_for(lambda: hosts.said("live", "saved"))
    assert hosts.said("live", "saved")[-1].files == 1
    hosts.next("b")
    hosts.run("live", 3)
    assert "from 2" in hosts.stub.wait_log("live", "wrote 3", generation=3)


@pytest.mark.slow
def test_files_elsewhere_are_named_when_the_run_ends(hosts: Hosts) -> None:
    script = """
import os
os.makedirs("runs/1")
for name in ("model.pt", "runs/1/events", "results/kept.pt"):
    open(name, "w").write("x")
open("train.py", "a").write("# changed")
"""
    hosts.next("a")
    hosts.run("strays", 1, script, output={"dir": "results"})
    hosts.stub.exits("strays")
    (said,) = hosts.said("strays", "elsewhere")
    assert (said.paths, said.files) == (["model.pt", "runs/1/events", "train.py"], 3)
    assert [one.files for one in hosts.said("strays", "saved")] == [1]


@pytest.mark.slow
def test_a_folder_over_its_bound_is_told_before_the_release(hosts: Hosts) -> None:
    hosts.next("a")
    script = """
import os
for name, size in (("big", 5000), ("small", 50)):
    with open(os.environ["HEADWAY_OUTPUT_DIR"] + "/" + name, "w") as file:
        file.write("x" * size)
"""
    hosts.run("large", 1, script, output={"max_bytes": 4096})
    hosts.stub.released("large", 1)
    (said,) = hosts.said("large", "lost")
    assert "output.max_size" in said.message
    assert said.paths == ["big (4.88 KiB)"]
    assert [(one.files, one.size_bytes) for one in hosts.said("large", "saved")] == [(1, 50)]


@pytest.mark.slow
def test_a_link_in_the_place_of_the_folder_leads_nowhere(hosts: Hosts, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o777)
    (target / "secret").write_text("mine")
    script = f"""
import os, shutil
shutil.rmtree("results")
os.symlink({str(target)!r}, "results")
"""
    hosts.next("a")
    hosts.run("hostile", 1, script, output={"dir": "results"})
    hosts.stub.exits("hostile")
    stored = (tmp_path / "checkpoints" / "hostile").rglob("output/data/*/*")
    assert not any(part.read_text() == "mine" for part in stored)
    assert sorted(one.name for one in target.iterdir()) == ["secret"]


READS = """
import os, pathlib
folder = pathlib.Path(os.environ["HEADWAY_AFTER_PREP_DATA"])
print("found", sorted(one.name for one in folder.iterdir()), (folder / "snapshot.json").read_text(), flush=True)
print("empty", list(pathlib.Path(os.environ["HEADWAY_AFTER_OTHER"]).iterdir()), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["users", "landlock", "none"])
def test_ranks_read_the_copied_files_of_a_predecessor(hosts: Hosts, isolation: str, tmp_path: Path) -> None:
    if isolation == "users" and os.geteuid() != 0:
        pytest.skip("needs root")
    hosts.next("a", "--isolation", isolation)
    hosts.run("prep", 1)
    hosts.stub.wait_log("prep", "wrote 1")
    hosts.stop("prep", 1)
    copied = asyncio.run(copy_files(ObjectStorage(f"file://{tmp_path}"), "prep", "train", "prep-data"))
    assert copied == 1
    hosts.next("b", "--isolation", isolation)
    hosts.run("train", 1, READS, after=["prep-data", "other"])
    text = hosts.stub.wait_log("train", "empty")
    assert "found ['snapshot.json'] {\"epoch\": 1}" in text
    assert "empty []" in text
    hosts.stub.exits("train")
