"""Devices are tried out when the service asks for it: by a real process, which may do anything."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headway.contract.agents import SlotInfo
from headway.contract.health import DeviceProbed
from tests.integration.agent.looking import wait_until
from tests.integration.agent.stub import StubService
from worker_agent.devices.probing import PROBE, Prober
from worker_agent.link.outbox import Outbox

CORE = SlotInfo(index=1, device_kind="cpu")


def probes(stub: StubService) -> list[DeviceProbed]:
    return [one for one in stub.entries if isinstance(one, DeviceProbed)]


@pytest.mark.slow
def test_a_core_is_tried_when_the_service_asks_for_it(shared: StubService) -> None:
    with shared.changed:
        shared.probe = [2, 99]
    first = shared.wait_for(lambda: next(iter(probes(shared)), None))
    assert (first.slot, first.healthy) == (2, True)
    assert first.message.endswith(" ms for a matrix product")
    told = len(shared.reports)
    shared.wait_for(lambda: len(shared.reports) > told + 2)
    assert len(probes(shared)) == 1, "asked again before the answer was taken in, it is not tried again"
    with shared.changed:
        shared.probe = []
        told = len(shared.reports)
    shared.wait_for(lambda: len(shared.reports) > told + 1)
    with shared.changed:
        shared.probe = [2]
    shared.wait_for(lambda: len(probes(shared)) == 2)
    with shared.changed:
        shared.probe = []


class Trial:
    """A prober of one slot, with a program of the test's in the place of the probe."""

    def __init__(self, folder: Path) -> None:
        self.memory = folder / "probes.json"
        self.folder = folder
        self.outbox = Outbox(folder / "outbox.jsonl")
        self.stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, *program: str, limit_s: int = 30, slot: SlotInfo = CORE) -> None:
        command: Sequence[str] = (sys.executable, "-c", *program) if program else PROBE
        prober = Prober(
            slots=[slot],
            outbox=self.outbox,
            first_times=self.memory,
            environment={"PATH": os.defpath, "TRIAL": str(self.folder)},
            stopping=self.stopping,
            command=command,
            limit_s=limit_s,
        )
        prober.request([slot.index])
        self._thread = threading.Thread(target=prober.run)
        self._thread.start()

    def answer(self) -> DeviceProbed:
        wait_until(lambda: not self.outbox.empty())
        (entry,), _ = self.outbox.take(2)
        assert isinstance(entry, DeviceProbed)
        self.outbox.delivered([entry], ())
        return entry

    def end(self) -> None:
        self.stopping.set()
        if self._thread is not None:
            self._thread.join(60)
            assert not self._thread.is_alive()
        self.stopping.clear()


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    trial = Trial(tmp_path)
    yield trial
    trial.end()
    trial.outbox.close()


def says(product_s: float, wrong: int = 0) -> str:
    return f"print({json.dumps(json.dumps({'product_s': product_s, 'wrong': wrong, 'of': 8}))})"


def test_the_first_good_probe_is_remembered_and_others_are_compared_with_it(trial: Trial) -> None:
    for product_s, healthy in ((0.002, True), (0.0029, True), (0.0031, False), (0.0021, True)):
        trial.start(says(product_s))
        assert trial.answer().healthy is healthy
        trial.end()
        assert json.loads(trial.memory.read_text()) == {"cpu": 0.002}


def test_a_bad_first_probe_is_not_what_others_are_compared_with(trial: Trial) -> None:
    trial.start(says(0.002, wrong=8))
    assert not trial.answer().healthy
    assert not trial.memory.exists()


def test_a_probe_that_hangs_is_ended_with_all_that_it_started(trial: Trial) -> None:
    hang = """
import os, time
child = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
with open(os.environ["TRIAL"] + "/pids.tmp", "w") as file:
    file.write(f"{os.getpid()} {child}")
os.rename(os.environ["TRIAL"] + "/pids.tmp", os.environ["TRIAL"] + "/pids")
time.sleep(600)
"""
    trial.start(hang, limit_s=3)
    answer = trial.answer()
    assert (answer.healthy, answer.message) == (False, "the probe did not end within 3 s")
    pids = [int(pid) for pid in (trial.folder / "pids").read_text().split()]
    wait_until(lambda: not any(_runs(pid) for pid in pids))


def test_an_agent_that_ends_leaves_no_probe_and_no_answer(trial: Trial) -> None:
    trial.start("import os, time; open(os.environ['TRIAL'] + '/up', 'w').close(); time.sleep(600)")
    wait_until((trial.folder / "up").exists)
    trial.end()
    assert trial.outbox.empty()


@pytest.mark.slow
def test_a_gpu_that_is_not_there_fails_its_probe(trial: Trial) -> None:
    trial.start(slot=SlotInfo(index=0, device_kind="a100", uuid="GPU-00000000-0000-0000-0000-000000000000"))
    answer = trial.answer()
    assert not answer.healthy
    assert answer.message == "the probe failed: CUDA does not see the device"


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
