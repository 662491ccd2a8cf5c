"""A live job on a preemptible partition of a real Slurm, which loses a node to a job of higher priority again and again.

    python -m benchmarks.slurm --preemptions 100 --json

Two nodes are played on this host, with two slots each. Headway has no nodes of its own: it rents pilots of the partition. When the
job trains on both, a job of higher priority takes one node. When the job trains on the other node alone, that job ends, and Headway rents the node again.

`preemptions`: nodes that were taken. `left_s`: longest time from the submit of the higher job until it ran.
`lost_steps_max`: most steps that one change of members repeated. `pause_p50_s`, `pause_p99_s`: pauses of training by these changes.
`restarts`: starts of the job beyond the first. `exact_epochs`: whether every finished epoch trained each sample once.
`orphans`: pilots that are left when the job is over and idle nodes are given back. `doubles`: leases with two pilots at once.

It needs root and Slurm (Debian: slurmctld, slurmd, slurm-client).
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.arguments import benchmark_parser, run_benchmark, shared_folder, show, temporary_folder
from benchmarks.engines.slurm_cluster import INSTALLED, MISSING, Slurm, slurm_cluster
from benchmarks.node import until
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, EventView, JobState
from headway.local.stack import LocalStack

SCRIPT = Path(__file__).parent / "scripts" / "losing.py"
_POLL_S = 0.2
SETTINGS = {
    "HEADWAY_PROVIDERS": "slurm",
    "HEADWAY_SLURM_PARTITIONS": "low=0.01",
    "HEADWAY_SLURM_WAIT_S": "3",
    "HEADWAY_RENT_EVERY_S": "0.5",
    "HEADWAY_IDLE_S": "10",
}


class Pool:
    """The job on the pool, and what Slurm does to it."""

    def __init__(self, client: Client, slurm: Slurm, notes: Path) -> None:
        self._client = client
        self._slurm = slurm
        self.doubles: set[str] = set()
        self._slots = slurm.nodes * slurm.cpus
        spec = {
            "name": "pooled",
            "workdir": str(SCRIPT.parent),
            "run": f"python {SCRIPT.name} {notes}",
            "market": "spot",
            "elastic": {"min": 1, "max": self._slots, "resize": "live"},
            "checkpoint": {"every": "30s", "grace_s": 10},
            "retry": {"infrastructure": 1000},
        }
        self.job = client.submit(JobSpec.model_validate(spec)).id

    def on_all(self) -> None:
        """Wait until the job trains on all nodes."""
        self._client.resize(self.job, self._slots)
        self._until("the job on all nodes", lambda: self._nodes() == self._slurm.nodes)

    def preempt(self, user: str = "root") -> float:
        """Let a higher job take a node, return the seconds until it ran, and end it once the job trains on the rest."""
        self._client.resize(self.job, None)  # it takes what there is
        asked_s = time.monotonic()
        higher = self._slurm.take_nodes(1, user)
        self._until("the higher job", lambda: self._state(higher) == "RUNNING")
        left_s = time.monotonic() - asked_s
        self._until("the job on the other nodes", lambda: 0 < self._nodes() < self._slurm.nodes)
        self._slurm.command("scancel", higher)
        return left_s

    def switches(self) -> list[EventView]:
        """Return the changes of members so far."""
        return [event for event in self._client.events(self.job) if event.kind == "switch"]

    def finish(self) -> dict[str, object]:
        """End the job, wait until idle nodes are given back, and return what it trained and what is left."""
        done = self._client.job(self.job)
        self._client.cancel(self.job)
        until(
            "the end of the job",
            lambda: self._client.job(self.job).state in TERMINAL_STATES,
            lambda: None,
            every_s=_POLL_S,
        )
        give_up_s = time.monotonic() + 120.0
        while self._pilots() and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
        progress = done.progress
        return {
            "restarts": done.attempt - 1,
            "exact_epochs": progress.epochs_exact == progress.epochs_audited > 0,
            "orphans": len(self._pilots()),
            "doubles": len(self.doubles),
        }

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        until(what, condition, self._must_live, every_s=_POLL_S)

    def _must_live(self) -> None:
        job = self._client.job(self.job)
        if job.state in TERMINAL_STATES:
            raise RuntimeError(f"the job ended: {job.message}")
        running = Counter(self._pilots())
        self.doubles |= {name for name, count in running.items() if count > 1}

    def _nodes(self) -> int:
        job = self._client.job(self.job)
        return len(job.allocation) if job.state is JobState.RUNNING else 0

    def _state(self, number: str) -> str:
        return self._slurm.command("squeue", "--noheader", f"--jobs={number}", "--format=%T").strip()

    def _pilots(self) -> Sequence[str]:
        """Return the names of the pilots that hold a node."""
        lines = self._slurm.command(
            "squeue", "--noheader", "--states=running,completing", "--format=%j"
        ).splitlines()
        return [line for line in lines if line.startswith("headway:")]


def measure(folder: Path, preemptions: int) -> dict[str, object]:
    """Return the figures of so many preemptions."""
    with slurm_cluster(folder / "slurm", nodes=2, kill_wait_s=30) as slurm:
        os.environ["SLURM_CONF"] = str(slurm.conf)
        settings = SETTINGS | {"HEADWAY_SLURM_LOG": str(slurm.folder / "pilot-%j.log")}
        with LocalStack(folder / "stack", agents=0, settings=settings) as stack, stack.client() as client:
            pool = Pool(client, slurm, shared_folder(folder))
            left_s = []
            for _ in range(preemptions):
                pool.on_all()
                left_s.append(pool.preempt())
            pool.on_all()
            switches = pool.switches()
            pauses_s = sorted(float(event.data["pause_s"]) for event in switches)
            return {
                "preemptions": preemptions,
                "left_s": max(left_s),
                "changes": len(switches),
                "lost_steps_max": max(int(event.data["lost_steps"]) for event in switches),
                "pause_p50_s": statistics.median(pauses_s),
                "pause_p99_s": pauses_s[min(len(pauses_s) - 1, int(0.99 * len(pauses_s)))],
                **pool.finish(),
            }


def main() -> None:
    """Measure, and print the figures."""
    parser = benchmark_parser(__doc__, quick="one preemption only")
    parser.add_argument("--preemptions", type=int, default=20, help="nodes to take (default: %(default)s)")
    arguments = parser.parse_args()
    if not INSTALLED:
        raise SystemExit(MISSING)
    with temporary_folder() as folder:
        show(measure(folder, 1 if arguments.quick else arguments.preemptions), arguments)


if __name__ == "__main__":
    run_benchmark(main)
