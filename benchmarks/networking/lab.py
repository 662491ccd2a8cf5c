"""Jobs on hosts in namespaces that count their samples, and the evidence of their steps and processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from benchmarks.cluster import wait_for_nodes, wait_for_success
from benchmarks.faulting import checker
from benchmarks.faulting.evidence import read_journal, read_result
from benchmarks.faulting.histories import History
from benchmarks.faulting.users import SCRIPTS
from benchmarks.faulting.watching import Watcher
from benchmarks.networking.cluster import Network, NetworkHost, network
from benchmarks.networking.namespaces import Namespace
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState, JobView

PATIENCE_S = 420.0
"""Longest wait for anything: longer than the longest timeout of the library."""
STEP_S = 0.04
STEPS_PER_EPOCH = 12
_POLL_S = 0.2
_SEED = 1

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class HostStep:
    """Step of a rank of a job of `world_size` ranks on a node. `at_s` are seconds since boot."""

    at_s: float
    generation: int
    rank: int
    world_size: int


def now_s() -> float:
    """Return the seconds since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class HostLab:
    """Cluster whose hosts are namespaces, with a record of its jobs.

    Args:
        net: the cluster.
        client: client of its service.
        journals: folder of the ranks' journals.
    """

    def __init__(self, net: Network, client: Client, journals: Path) -> None:
        self.net = net
        self.client = client
        self.journals = journals
        self.jobs: dict[str, str] = {}
        """Ids of submitted jobs by name, without those that are cancelled."""
        self._watcher = Watcher(
            journals,
            net.stack.data / "storage",
            Client(net.stack.url, net.stack.token, patience_s=0),
            History(time.monotonic),
        )

    def add_host(self, name: str) -> NetworkHost:
        """Return a new host with one slot that takes jobs."""
        # Ranks write their journals outside of their own folders.
        host = self.net.add_host(name, env={"HEADWAY_ISOLATION": "none"})
        self.wait_for_hosts()
        return host

    def wait_for_hosts(self) -> None:
        """Wait until all hosts take jobs."""
        wait_for_nodes(self.client, self.net.hosts, time.monotonic() + PATIENCE_S)

    def submit(self, name: str, least: int, most: int, *, training_s: float) -> str:
        """Submit a job that counts its samples, and return its id.

        `training_s` is its duration without pauses, at least.
        """
        epochs = max(2, round(training_s / STEP_S / STEPS_PER_EPOCH))
        job = self.client.submit(
            JobSpec.model_validate(
                {
                    "name": name,
                    "workdir": str(SCRIPTS),
                    "run": f"python counted.py {epochs} {_SEED} {STEP_S}",
                    "env": {"JOURNAL": str(self.journals)},
                    "elastic": {"min": least, "max": most},
                    "checkpoint": {"every": "2s", "grace_s": 20},
                    "retry": {"infrastructure": 1000},
                }
            )
        )
        self.jobs[name] = job.id
        return job.id

    def steps(self, job: str, since_s: float = 0.0) -> list[HostStep]:
        """Return the steps of a job's ranks after `since_s`, ordered by time."""
        found = [
            HostStep(fact["at_s"], fact["generation"], fact["rank"], fact["of"])
            for journal in self.journals.glob(f"{job}-*.jsonl")
            for fact in read_journal(journal)
            if fact["kind"] == "step" and fact["at_s"] > since_s
        ]
        return sorted(found, key=lambda one: one.at_s)

    def until_step(self, job: str, since_s: float, world_size: int | None = None, count: int = 1) -> HostStep:
        """Wait for the `count`-th step after `since_s` (of jobs of this size, if any), and return it."""

        def taken() -> HostStep | None:
            steps = [one for one in self.steps(job, since_s) if world_size in {None, one.world_size}]
            return steps[count - 1] if len(steps) >= count else None

        return self.until(f"steps of {job}", taken)

    def longest_pause_s(self, job: str, since_s: float) -> float:
        """Return the longest time between two steps of rank 0 after `since_s`."""
        times = [since_s, *(one.at_s for one in self.steps(job, since_s) if one.rank == 0)]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def until(self, what: str, found: Callable[[], Found | None]) -> Found:
        """Wait until `found` returns something, and return it.

        Raises:
            RuntimeError: it does not within `PATIENCE_S`.
        """
        give_up_s = time.monotonic() + PATIENCE_S
        while (value := found()) is None:
            if time.monotonic() > give_up_s:
                told = [f"{one.name}: {one.state}: {one.message}" for one in self.client.jobs(live=True)]
                raise RuntimeError(f"waited {PATIENCE_S:.0f} s for {what}; live jobs: {told}")
            time.sleep(_POLL_S)
        return value

    def finish(self, job: str) -> JobView:
        """Wait until a job has succeeded."""
        return wait_for_success(self.client, job, time.monotonic() + PATIENCE_S)

    def stragglers(self, job: str) -> list[str]:
        """Return the hosts that were named as slow for a job, one for each event."""
        return [event.data["node"] for event in self.client.events(job) if event.kind == "straggler"]

    def named_slow(self, job: str) -> set[str]:
        """Return the hosts that were named as slow for a job, or whose link is marked as slow."""
        return set(self.stragglers(job)) | {host.name for host in self.client.hosts().hosts if host.slow_link}

    def names_pair(self, job: str, one: Namespace, other: Namespace) -> bool:
        """Return True if the service tells that one of two hosts does not reach the other."""
        view = self.client.job(job)
        told = [view.message, view.present, *(event.message for event in self.client.events(job))]
        told += [node.message for node in self.client.nodes()]
        return any(
            "reach" in text and all(host.name in text or host.address in text for host in (one, other))
            for text in told
        )

    def verdict(self) -> dict[str, int]:
        """Return the numbers of lost jobs, lost or repeated samples, and slots with two processes at once."""
        lost_jobs = lost_samples = 0
        for name, job in self.jobs.items():
            ended = self.client.job(job).state
            result = read_result(self.net.stack.data / "storage" / "checkpoints" / job)
            if ended is not JobState.SUCCEEDED or result is None:
                lost_jobs += 1
                continue
            lost_samples += len(checker.lost_samples(name, result))
            lost_samples += len(checker.repeated_samples(name, result))
        doubled = checker.double_slots(self._watcher.lives())
        return {"lost_jobs": lost_jobs, "lost_samples": lost_samples, "double_slots": len(doubled)}

    def __enter__(self) -> HostLab:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.stop()


@contextmanager
def host_lab(folder: Path) -> Iterator[HostLab]:
    """Run a cluster without hosts."""
    journals = folder / "journals"
    journals.mkdir()
    with network(folder) as net, net.stack.client() as client, HostLab(net, client, journals) as lab:
        yield lab
