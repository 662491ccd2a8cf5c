"""Stacks of the threads of ranks: request them, read them, and write them into the ranks' logs.

On `STACKS_SIGNAL`, a rank's interpreter writes its stacks to a file in the control folder. It does this in C
without taking a lock, so it works even while all threads wait for one. The signal is sent only to processes
that handle it. A process that cannot write, because it is stopped or not a Python program, is described by
the kernel's information on it.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import structlog

from headway.contract.runtime import STACKS_SIGNAL, stacks_file
from worker_agent.host.folders import read_json
from worker_agent.launcher import processes
from worker_agent.runs.hung import ThreadSample
from worker_agent.runs.records import Run

_log = structlog.get_logger()

WRITTEN_WITHIN_S = 1.0
"""Seconds within which a rank that is able to write its stacks has written them."""
_MOST_BYTES = 64 << 10
"""Maximum bytes of one rank's stacks."""
_OF_LAUNCHER = re.compile(r'  File "(?:[^"]*/worker_agent/launcher/[^"/]+\.py|<frozen runpy>)", line ')
"""Frame of the launcher in a stack, or of the module that runs a script for it."""
_CANNOT_WRITE = "it cannot write its stacks"
_STATES = {
    "R": "running",
    "S": "waiting",
    "D": "waiting for a device, and cannot be interrupted",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead",
    "I": "idle",
}


def request(run: Run) -> None:
    """Make every living rank of the run write its stacks, and delete earlier ones."""
    for rank, process in _living(run):
        with contextlib.suppress(FileNotFoundError):
            os.truncate(_file(run, rank), 0)
        for one in processes.catching(process, STACKS_SIGNAL):
            processes.send(one, STACKS_SIGNAL)


def read(run: Run) -> dict[int, str]:
    """Return the stacks of the living ranks since `request`, main thread first, or the kernel's information on a rank."""
    return {rank: _read(run, rank, process) for rank, process in _living(run)}


def sample_threads(run: Run, stacks: dict[int, str]) -> dict[int, ThreadSample]:
    """Return the place of each rank's main thread, which is first in its stacks, and its processor time."""
    found = {}
    for rank, process in _living(run):
        cpu_s = sum(processes.cpu_s(one.pid) for one in processes.catching(process, STACKS_SIGNAL))
        place = stacks.get(rank, "").partition("\n\n")[0]
        if process.state == "R" and _CANNOT_WRITE in place:
            place = f"has not written, after {cpu_s} s"  # overloaded host: it does not wait
        found[rank] = ThreadSample(place, cpu_s)
    return found


def write_to_logs(run: Run, stacks: dict[int, str], why: str) -> None:
    """Append the stacks to the ranks' logs."""
    for rank, text in stacks.items():
        add_to_log(run, rank, f"[headway] {why}. Its threads:\n{text}\n[headway] End of the threads.\n")


def add_to_log(run: Run, rank: int, text: str) -> None:
    """Append a text to a rank's log. An error such as a full disk is only logged."""
    try:
        with run.folder.log(rank).open("a", encoding="utf-8") as log:
            log.write(text)
    except OSError as error:
        _log.warning("could not add to a log", run=run.name, rank=rank, error=str(error))


def _living(run: Run) -> list[tuple[int, processes.Process]]:
    found = []
    for slot in run.command.ranks:
        record = None if slot.rank in run.exits_reported else read_json(run.folder.pid(slot.rank))
        process = processes.read(record["pid"]) if record is not None else None
        if record is not None and process is not None and process.start_ticks == record["start_ticks"]:
            found.append((slot.rank, process))
    return found


def _file(run: Run, rank: int) -> Path:
    return run.folder.control / stacks_file(rank)


def _read(run: Run, rank: int, process: processes.Process) -> str:
    try:
        with _file(run, rank).open("rb") as file:
            text = file.read(_MOST_BYTES).decode(errors="replace").replace("\0", "")
    except FileNotFoundError:
        text = ""
    head = f"rank {rank}, process {process.pid}"
    if text.strip():
        return f"{head}:\n{_main_first(text)}"
    return f"{head}: {_kernel_state(process)}"


def _main_first(text: str) -> str:
    """Return the stacks with the main thread first, which an interpreter writes last."""
    threads = [_of_script(one.strip("\n")) for one in text.split("\n\n") if one.strip()]
    return "\n\n".join([threads[-1], *threads[:-1]])


def _of_script(thread: str) -> str:
    """Return the stack of a thread without the launcher's frames, which are below those of the script."""
    lines = thread.split("\n")
    end = len(lines)
    while end and _OF_LAUNCHER.match(lines[end - 1]):
        end -= 1
    return "\n".join(lines[:end]) if end > 1 else thread


def _kernel_state(process: processes.Process) -> str:
    state = _STATES.get(process.state, process.state)
    place = processes.waits_in(process.pid)
    where = f", in {place}" if place else ""
    return f"{_CANNOT_WRITE}; the kernel says that it is {state} ({process.state}){where}"
