"""Search for remainders of a cluster: processes, ports and files."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.faulting.evidence import Left, Life, listening
from benchmarks.faulting.rig import process_ids
from worker_agent.host.folders import StateFolder
from worker_agent.launcher import processes
from worker_agent.runs.records import KEEP_GENERATIONS


def of_jobs(living: Collection[Life], agents: Mapping[Path, Sequence[str]]) -> list[Left]:
    """Return the remainders of jobs on agents, after all jobs have ended and the agents had time to tidy up.

    `agents` maps the folder of each to the tables of TCP sockets on its host.
    """
    found = [Left(f"process {life.pid} (rank {life.rank})", life.name) for life in living]
    for folder, sockets in agents.items():
        found += _in_folder(StateFolder(folder))
        found += _ports(folder, sockets)
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


def _ports(folder: Path, sockets: Sequence[str]) -> Iterator[Left]:
    first, last = json.loads((folder / "agent.json").read_text(encoding="utf-8"))["ports"]
    for port in listening(sockets):
        if first <= port < last:  # the agent listens on the last one for probes
            yield Left(f"port {port} is listened on", folder.name)


def of_cluster(folder: Path) -> list[Left]:
    """Return the processes that use a folder after the cluster was stopped."""
    marker, ours = os.fsencode(folder), set(_ancestors(os.getpid()))
    found = []
    for pid in process_ids():
        if pid in ours:
            continue
        with contextlib.suppress(OSError):
            about = Path(f"/proc/{pid}")
            command = (about / "cmdline").read_bytes()
            if not command:
                continue  # a zombie
            texts = (command, (about / "environ").read_bytes(), os.fsencode((about / "cwd").readlink()))
            if any(marker in text for text in texts):
                found.append(Left(f"process {pid}: {command.decode(errors='replace')[:120]}", str(folder)))
    return found


def _ancestors(pid: int) -> Iterator[int]:
    """Yield a process and its ancestors, whose command lines may name the folder."""
    while pid > 1:
        yield pid
        process = processes.read(pid)
        pid = 0 if process is None else process.parent
