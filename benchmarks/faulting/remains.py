"""What a cluster leaves behind: processes, ports, files."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from benchmarks.faulting.evidence import Left, Life, listening
from benchmarks.faulting.rig import process_ids
from worker_agent.host.folders import StateFolder
from worker_agent.runs.records import KEEP_GENERATIONS


def of_jobs(living: Collection[Life], agents: Collection[Path]) -> list[Left]:
    """What is left of jobs on agents, once all of them have ended and the agents had time to tidy up."""
    found = [Left(f"process {life.pid} (rank {life.rank})", life.name) for life in living]
    for folder in agents:
        found += _in_folder(StateFolder(folder))
        found += _ports(folder)
    return found


def _in_folder(state: StateFolder) -> Iterator[Left]:
    for job in state.jobs():
        folders = job.runs()
        for run in folders:
            if not run.ended.exists():
                yield Left("a run that was never released", f"{state.path.name} {run.name}")
            elif not run.shipped.exists():
                yield Left("logs that were never sent", f"{state.path.name} {run.name}")
        if len(folders) > KEEP_GENERATIONS:
            yield Left(f"{len(folders)} generations of files", f"{state.path.name} {job.path.name}")
        for partial in job.path.glob("*.partial"):
            yield Left(f"half a working folder: {partial.name}", f"{state.path.name} {job.path.name}")
    for beside in state.path.rglob(".*.tmp"):
        yield Left("half a file", str(beside))


def _ports(folder: Path) -> Iterator[Left]:
    first, last = json.loads((folder / "agent.json").read_text())["ports"]
    lines = [
        line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    for port in listening(["", *lines]):
        if first <= port <= last:
            yield Left(f"port {port} is listened on", folder.name)


def of_cluster(folder: Path) -> list[Left]:
    """Processes that have to do with a folder, once everything was stopped."""
    marker, ours = os.fsencode(folder), set(_ancestors(os.getpid()))
    found = []
    for pid in process_ids():
        if pid in ours:
            continue
        with contextlib.suppress(OSError):
            about = Path(f"/proc/{pid}")
            command = (about / "cmdline").read_bytes()
            if not command:
                continue  # a zombie: its parent has not looked yet
            texts = (command, (about / "environ").read_bytes(), os.fsencode((about / "cwd").readlink()))
            if any(marker in text for text in texts):
                found.append(Left(f"process {pid}: {command.decode(errors='replace')[:120]}", str(folder)))
    return found


def _ancestors(pid: int) -> Iterator[int]:
    """A process and those that it descends from: their command lines may name the folder."""
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
