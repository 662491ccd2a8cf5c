from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headway.local.processes import LocalError, last_lines
from headway.local.supervisor import Supervisor


class Scripted:
    """A child that dies and starts as it is told, and notes what happens to it."""

    def __init__(self, name: str, journal: list[str], *, starts: bool = True) -> None:
        self.log = Path(f"{name}.log")
        self.running = True
        self.starts = starts
        self._name = name
        self._journal = journal

    def start(self) -> None:
        self._journal.append(f"start {self._name}")
        if not self.starts:
            raise LocalError("it does not start.")
        self.running = True

    def alive(self) -> bool:
        return self.running

    def stop(self) -> None:
        self._journal.append(f"stop {self._name}")


def restarts(supervisor: Supervisor, child: Scripted, journal: list[str], until_s: int) -> list[float]:
    """The times at which a child is started again that dies at once."""
    times: list[float] = []
    for tenth in range(until_s * 10):
        before = len(journal)
        supervisor.run_once(tenth / 10)
        if len(journal) > before:
            times.append(tenth / 10)
            child.running = False
    return times


def test_a_child_that_keeps_dying_is_started_ever_more_rarely():
    journal: list[str] = []
    supervisor = Supervisor()
    child = Scripted("api", journal)
    supervisor.add("api", child, 0)
    child.running = False
    times = restarts(supervisor, child, journal, 200)
    pauses = [round(later - earlier) for earlier, later in zip([0.0, *times], times, strict=False)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30


def test_a_child_that_does_not_start_is_tried_again(caplog: pytest.LogCaptureFixture):
    journal: list[str] = []
    supervisor = Supervisor()
    child = Scripted("api", journal, starts=False)
    supervisor.add("api", child, 0)
    child.running = False
    supervisor.run_once(0.0)
    supervisor.run_once(0.6)
    child.starts = True
    supervisor.run_once(0.7)
    assert journal == ["start api"]
    supervisor.run_once(2.0)
    assert child.running
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [message.split()[:3] for message in said] == [
        ["api", "ended;", "restarting"],
        ["api", "does", "not"],
        ["api", "runs", "again"],
    ]


def test_a_running_child_is_left_alone():
    journal: list[str] = []
    supervisor = Supervisor()
    supervisor.add("api", Scripted("api", journal), 0)
    for now_s in range(100):
        supervisor.run_once(float(now_s))
    assert journal == []


def test_higher_layers_stop_first():
    journal: list[str] = []
    supervisor = Supervisor()
    for name, layer in {"database": 0, "scheduler": 4, "api": 2, "agent 1": 3, "agent 2": 3}.items():
        supervisor.add(name, Scripted(name, journal), layer)
    supervisor.stop()
    assert journal[0] == "stop scheduler"
    assert set(journal[1:3]) == {"stop agent 1", "stop agent 2"}
    assert journal[3:] == ["stop api", "stop database"]
    supervisor.stop()
    assert len(journal) == 5


def test_the_end_of_a_log_may_leave_out_what_was_there_before(tmp_path: Path):
    log = tmp_path / "up.log"
    log.write_text("Headway is up.\n")
    start = log.stat().st_size
    with log.open("a") as more:
        more.write("The port is taken.\n")
    assert last_lines(log, start=start) == "The port is taken."


def test_a_log_that_grows_is_set_aside_while_its_writer_goes_on(tmp_path: Path):
    supervisor = Supervisor()
    child = Scripted("api", [])
    child.log = tmp_path / "api.log"
    supervisor.add("api", child, 0)
    with child.log.open("ab", buffering=0) as writer:
        writer.write(b"early\n")
        supervisor.run_once(0.0)
        assert child.log.read_bytes() == b"early\n"
        writer.write(b"x" * (17 << 20))
        supervisor.run_once(1.0)
        writer.write(b"late\n")
    assert child.log.read_bytes() == b"late\n"
    assert child.log.with_name("api.log.1").read_bytes().startswith(b"early\n")
