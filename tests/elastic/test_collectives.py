"""The conformance suite of collective backends, in real processes: built-in ones, and that of docs/extending.md, installed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from headway.contract.runtime import FirstStep, Restored
from tests.elastic.harness import Generation, Job
from tests.elastic.live import Live
from tests.elastic.streamed import NAME, SILENT
from tests.elastic.test_live import assert_exact
from tools.pages import ROOT, blocks

BACKENDS = [
    "gloo",
    "timed",
    NAME,
    pytest.param(
        "nccl",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="THERE IS NO GPU FOR NCCL"),
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package of the page is installed, as pip does it."""
    project, installed = tmp_path_factory.mktemp("headway-timed"), tmp_path_factory.mktemp("site")
    pages = sorted((ROOT / "docs").glob("extending*.md"))
    for block in (block for page in pages for block in blocks(page)):
        name, _, text = block.text.partition("\n")
        if name == "# headway_timed.py" or "headway.collectives" in text:
            (project / name.removeprefix("# ")).write_text(text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", str(installed), str(project)], check=True
    )
    return installed


@pytest.fixture
def ranks(job: Callable[..., Job], site: Path) -> Callable[..., Generation]:
    """Starts so many ranks of a scenario with a backend."""

    def start(name: str, scenario: str, size: int) -> Generation:
        return job("collective.py", name, scenario, PYTHONPATH=str(site)).start(size)

    return start


def ended(started: Generation, codes: Sequence[int]) -> None:
    assert started.wait() == list(codes), started.output()


@pytest.mark.parametrize("name", BACKENDS)
def test_every_generation_sums_over_its_members(ranks: Callable[..., Generation], name: str) -> None:
    started = ranks(name, "sums", 3)
    ended(started, [0, 0, 0])
    assert started.output().count("formed in") == (9 if name == "timed" else 0)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_transfer_fills_the_tensors_of_every_receiver(ranks: Callable[..., Generation], name: str) -> None:
    ended(ranks(name, "transfers", 3), [0, 0, 0])


@pytest.mark.parametrize("name", BACKENDS)
def test_a_transfer_leaves_those_alone_that_do_not_receive_it(
    ranks: Callable[..., Generation], name: str
) -> None:
    ended(ranks(name, "some", 3), [0, 0, 0])


@pytest.mark.parametrize("name", BACKENDS)
def test_the_first_operation_of_a_group_may_be_one_of_two_ranks(
    ranks: Callable[..., Generation], name: str
) -> None:
    ended(ranks(name, "pairs", 3), [0, 0, 0])


@pytest.mark.parametrize("name", BACKENDS)
def test_a_rank_that_hangs_is_freed_by_an_abort(ranks: Callable[..., Generation], name: str) -> None:
    started = ranks(name, "hangs", 2)
    started.processes[0].join(240)
    assert started.processes[0].exitcode == 0, started.output()
    assert started.output().count("aborted") == (name == "timed")


@pytest.mark.parametrize("name", BACKENDS[2:])
def test_a_meeting_ends_if_a_member_dies_before_it_connects(
    ranks: Callable[..., Generation], name: str
) -> None:
    started = ranks(name, "absent", 3)
    for process in started.processes:
        process.join(240)
    assert [process.exitcode for process in started.processes] == [0, 0, -signal.SIGKILL], started.output()


@pytest.mark.parametrize("name", [*BACKENDS[2:], SILENT])
def test_an_abort_frees_operations_of_several_groups(ranks: Callable[..., Generation], name: str) -> None:
    started = ranks(name, "divided", 3)
    for rank in (0, 2):
        started.processes[rank].join(240)
    assert [started.processes[rank].exitcode for rank in (0, 2)] == [0, 0], started.output()


@pytest.mark.parametrize("name", BACKENDS)
def test_leave_waits_for_operations_on_the_devices_of_all_members(
    ranks: Callable[..., Generation], name: str
) -> None:
    ended(ranks(name, "settles", 2), [0, 0])


@pytest.mark.parametrize("name", BACKENDS)
def test_leave_aborts_operations_that_do_not_complete_in_time(
    ranks: Callable[..., Generation], name: str
) -> None:
    started = ranks(name, "unsettled", 2)
    started.processes[0].join(240)
    assert started.processes[0].exitcode == 0, started.output()


@pytest.mark.parametrize("name", BACKENDS[2:])
def test_leave_completes_operations_that_the_script_does_not_wait_for(
    ranks: Callable[..., Generation], name: str
) -> None:
    ended(ranks(name, "completes", 2), [0, 0])


@pytest.mark.parametrize("name", [*BACKENDS[2:], SILENT])
def test_a_transfer_from_a_dead_peer_on_a_device_stands_until_aborted(
    ranks: Callable[..., Generation], name: str
) -> None:
    started = ranks(name, "stands", 2)
    for process in started.processes:
        process.join(240)
    assert [process.exitcode for process in started.processes] == [0, -signal.SIGKILL], started.output()


@pytest.mark.parametrize("name", ["gloo", "timed"])
def test_a_transfer_from_a_dead_peer_is_a_lost_peer(ranks: Callable[..., Generation], name: str) -> None:
    started = ranks(name, "loses", 2)
    for process in started.processes:
        process.join(240)
    assert [process.exitcode for process in started.processes] == [0, -signal.SIGKILL], started.output()


def test_a_job_over_an_installed_backend_changes_members_in_place(
    job: Callable[..., Job], site: Path
) -> None:
    counted = job("count.py", "--epochs", 3, "--collective", "timed", PYTHONPATH=str(site))
    counted.arguments = [*counted.arguments, "--result", str(counted.folder)]
    live = Live(counted)
    live.start(2, steps=3)
    live.wait_until_held()
    live.give(live.newcomers(live.members, 1))
    live.allow(4)
    live.wait_for_switch()
    live.wait_until_held()
    live.kill(live.members[1])
    live.give(live.survivors([live.members[0], live.members[2]]))
    live.allow(2)
    live.wait_for_switch()
    assert_exact(live)
    assert live.output().count("formed in") == 2 + 3 + 2
    assert not live.messages(Restored)


def test_a_job_with_a_group_of_its_own_is_not_changed_in_place(job: Callable[..., Job]) -> None:
    counted = job("count.py", "--own-group")
    counted.arguments = [*counted.arguments, "--result", str(counted.folder)]
    live = Live(counted)
    live.start(2, steps=2)
    live.until(lambda: len(live.messages(FirstStep)) == 2)
    assert not any(one.live for one in live.messages(FirstStep))
    assert "has made 1 process group with dist.new_group" in live.output()


def test_a_job_that_names_no_known_backend_ends_with_its_code(job: Callable[..., Job]) -> None:
    counted = job("count.py", "--collective", "ucc")
    counted.arguments = [*counted.arguments, "--result", str(counted.folder)]
    started = counted.start(1)
    ended(started, [1])
    assert "COLLECTIVE_UNAVAILABLE" in started.output()
