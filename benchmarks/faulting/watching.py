"""Observation of the cluster from outside: living ranks, new checkpoints, and answers to clients."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.faulting.checker import ENDED
from benchmarks.faulting.evidence import Life, Sealed, Sighting, read_journal
from benchmarks.faulting.histories import Call, History, Operation, seen_of
from headway.client.client import Client
from headway.contract.manifest import MANIFEST, Name
from headway.errors import HeadwayError
from worker_agent.host.folders import boot_s
from worker_agent.launcher import processes

_RANKS_EVERY_S = 0.1
_STORAGE_EVERY_S = 0.25
_SERVICE_EVERY_S = 0.5


class Watcher:
    """Three threads that observe periodically until `stop`. What the service answers is also recorded in the history.

    Args:
        journals: folder of the ranks' journals.
        storage: folder of object storage.
        client: client without retries, for this observer alone.
        history: receives its reads of jobs.
    """

    def __init__(self, journals: Path, storage: Path, client: Client, history: History) -> None:
        self._history = history
        self.sealed: dict[str, Sealed] = {}
        self.sightings: list[Sighting] = []
        self._journals = journals
        self._storage = storage
        self._client = client
        self._states: dict[str, str] = {}
        self._lives: dict[str, Life] = {}
        self._ticks: dict[str, int] = {}
        """Start times of the ranks that were alive at the last observation, by the names of their journals."""
        self._stopping = threading.Event()
        bodies = (
            (self._look_at_ranks, _RANKS_EVERY_S),
            (self._look_at_storage, _STORAGE_EVERY_S),
            (self._look_at_service, _SERVICE_EVERY_S),
        )
        self._threads = [threading.Thread(target=self._again, args=body, daemon=True) for body in bodies]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def lives(self) -> list[Life]:
        """Return every rank process that was observed."""
        return list(self._lives.values())

    def living(self) -> list[Life]:
        """Return the ranks that were alive at the last observation."""
        return [self._lives[name] for name in list(self._ticks)]

    def _again(self, look: Callable[[], None], every_s: float) -> None:
        while not self._stopping.wait(every_s):
            look()

    def _look_at_ranks(self) -> None:
        for name in os.listdir(self._journals):  # noqa: PTH208  # names alone, ten times a second
            if name not in self._lives:
                self._meet(name)
        for name, ticks in list(self._ticks.items()):
            life = self._lives[name]
            if _is_alive(life.pid, ticks):
                self._lives[name] = replace(life, seen_s=boot_s())
            else:
                del self._ticks[name]

    def _meet(self, name: str) -> None:
        begin = next(read_journal(self._journals / name), None)
        if begin is None:
            return  # the first line is not written yet
        self._lives[name] = Life(
            job=begin["job"],
            name=begin["name"],
            generation=begin["generation"],
            rank=begin["rank"],
            node=begin["node"],
            slot=begin["slot"],
            pid=begin["pid"],
            born_s=begin["born_s"],
            seen_s=begin["at_s"],
        )
        self._ticks[name] = begin["ticks"]

    def _look_at_storage(self) -> None:
        for manifest in self._storage.glob(f"checkpoints/*/*/{MANIFEST}"):
            key = str(manifest.relative_to(self._storage))
            name = Name.parse(manifest.parent.name)
            if key in self.sealed or name is None:
                continue
            with contextlib.suppress(FileNotFoundError):  # replaced by a newer checkpoint
                at_s = manifest.stat().st_mtime
                job = manifest.parts[-3]
                self.sealed[key] = Sealed(job, name.generation, name.epoch, name.samples, at_s)

    def _look_at_service(self) -> None:
        with contextlib.suppress(HeadwayError):
            began_s = self._history.clock_s()
            living = list(self._client.jobs(live=True))
            gone = [job for job, state in self._states.items() if state not in ENDED]
            ended = [self._client.job(job) for job in set(gone) - {view.id for view in living}]
            end_s = self._history.clock_s()
            for view in [*living, *ended]:
                self._states[view.id] = str(view.state)
                self._history.add(Operation(view.name, Call.READ, began_s, end_s, seen_of(view)))
                self.sightings.append(Sighting(view.id, boot_s(), view.generation, str(view.state)))


def _is_alive(pid: int, ticks: int) -> bool:
    """Return True if the process with this start time lives. A zombie uses no slot."""
    process = processes.read(pid)
    return process is not None and process.start_ticks == ticks and process.state not in "ZX"
