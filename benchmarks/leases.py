"""A live job on pods of a real control plane of Kubernetes, while requests fail, its servers are killed and its pods are taken.

    python -m benchmarks.leases --provider kubernetes --faults 1000 --json

Two nodes are played on this host, with two slots each. Headway has no nodes of its own: it rents pods, through a server that lets a share
of the requests fail. Each round takes one pod or one server away, once the job trains on both nodes.

`faults`: failed requests and rounds. `by_kind`: the same by their kind.
`lost_steps_max`: most steps that one change of members repeated. `pause_p50_s`, `pause_p99_s`: pauses of training by these changes.
`restarts`: starts of the job beyond the first. `exact_epochs`: whether every finished epoch trained each sample once.
`orphans`: pods that are left when the job is over and idle nodes are given back. `doubles`: leases with two pods at once.

It needs root and a control plane (`KUBEBUILDER_ASSETS`).
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.arguments import benchmark_parser, run_benchmark, shared_folder, show, temporary_folder
from benchmarks.engines.kubernetes_cluster import (
    ADMIN,
    INSTALLED,
    LOW,
    MISSING,
    Kubernetes,
    kubernetes_cluster,
)
from benchmarks.engines.kubernetes_faults import Fault, FaultyServer, faulty_server
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, EventView, JobState
from headway.local.stack import LocalStack

SCRIPT = Path(__file__).parent / "scripts" / "losing.py"
AGENT = "headway-agent:benchmark"
AGENT_ENTRY = (sys.executable, "-P", "-m", "worker_agent", "--state-dir", "{folder}/state")
MACHINE = "headway/machine"
"""Label of a pod with its lease."""
_SHARE = 0.4
"""Share of the requests that fail."""
_POLL_S = 0.2
_PATIENCE_S = 300.0
"""A place where a launch failed is left alone for a while, so a node may take minutes to come back."""
_GIVEN_BACK_S = 180.0
SETTINGS = {
    "HEADWAY_PROVIDERS": "kubernetes",
    "HEADWAY_KUBERNETES_IMAGE": AGENT,
    "HEADWAY_KUBERNETES_SPOT": "cpu=0.01",
    "HEADWAY_KUBERNETES_SPOT_CLASS": LOW,
    "HEADWAY_KUBERNETES_WAIT_S": "3",
    "HEADWAY_RENT_EVERY_S": "0.2",
    "HEADWAY_IDLE_S": "20",
}


class Faults:
    """Choice of the requests that fail: a fixed share of them, with a fault that a real server may give them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, method: str, path: str) -> Fault | None:  # noqa: ARG002 - a fault's choice may need it
        if self._random.random() >= _SHARE:
            return None
        kinds = [one for one in Fault if method != "GET" or one is not Fault.CONFLICT]
        return self._random.choice([one for one in kinds if method == "GET" or one is not Fault.EXPIRED])


class Pool:
    """The job on the pods, and what happens to them."""

    def __init__(self, client: Client, kubernetes: Kubernetes, notes: Path) -> None:
        self._client = client
        self._kubernetes = kubernetes
        self.doubles: set[str] = set()
        self.rounds: Counter[str] = Counter()
        self._slots = kubernetes.nodes * kubernetes.cpus
        spec = {
            "name": "pooled",
            "workdir": str(SCRIPT.parent),
            "run": f"python {SCRIPT.name} {notes}",
            "market": "spot",
            "goal": {"objective": "time"},
            "elastic": {"min": 1, "max": self._slots, "resize": "live"},
            "checkpoint": {"every": "30s", "grace_s": 10},
            "retry": {"infrastructure": 1000},
        }
        self.job = client.submit(JobSpec.model_validate(spec)).id

    def on_all(self) -> None:
        """Wait until the job trains on all nodes."""
        self._client.resize(self.job, self._slots)
        self._until("the job on all nodes", lambda: self._nodes() == self._kubernetes.nodes)

    def play(self, number: int) -> None:
        """Play the round of a number: one pod or one server goes, and comes back."""
        rounds: list[Callable[[], None]] = [
            self.preempted,
            self.server_killed,
            self.evicted,
            self.store_killed,
        ]
        play = rounds[number % len(rounds)]
        self.rounds[play.__name__.replace("_", " ")] += 1
        play()

    def preempted(self) -> None:
        """Let a pod of a higher class take a node, and end it once the job trains on the rest."""
        self._client.resize(self.job, None)  # it takes what there is
        higher = self._kubernetes.occupy()
        running = self._kubernetes.pod
        self._until("the higher pod", lambda: running(higher)["status"]["phase"] == "Running")
        self._until("the job on the other nodes", lambda: 0 < self._nodes() < self._kubernetes.nodes)
        self._kubernetes.delete(higher)

    def evicted(self) -> None:
        """Evict a pod of the job, as a drain does."""
        name = next(iter(self._pods()))
        self._client.resize(self.job, None)
        self._kubernetes.evict(name)
        self._until("the end of the evicted pod", lambda: name not in self._pods())

    def server_killed(self) -> None:
        """Kill the API server while the job trains, and start it again."""
        self._kubernetes.kill_server()
        time.sleep(3.0)  # some lists fail
        self._kubernetes.start_server()

    def store_killed(self) -> None:
        """Kill etcd while the job trains, and start it again."""
        self._kubernetes.kill_store()
        time.sleep(3.0)
        self._kubernetes.start_store()
        self._kubernetes.until(lambda: self._kubernetes.pods() is not None, "the API server's answers")

    def switches(self) -> list[EventView]:
        """Return the changes of members so far."""
        return [event for event in self._client.events(self.job) if event.kind == "switch"]

    def finish(self) -> dict[str, object]:
        """End the job, wait until idle pods are given back, and return what it trained and what is left."""
        done = self._client.job(self.job)
        self._client.cancel(self.job)
        give_up_s = time.monotonic() + _GIVEN_BACK_S
        while self._pods() and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
        progress = done.progress
        return {
            "restarts": done.attempt - 1,
            "exact_epochs": progress.epochs_exact == progress.epochs_audited > 0,
            "orphans": len(self._pods()),
            "doubles": len(self.doubles),
        }

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + _PATIENCE_S
        while not condition():
            job = self._client.job(self.job)
            if job.state in TERMINAL_STATES or time.monotonic() > give_up_s:
                raise RuntimeError(f"{what} did not come; the job is {job.state}: {job.message}")
            self.doubles |= {lease for lease, count in Counter(self._pods().values()).items() if count > 1}
            time.sleep(_POLL_S)

    def _nodes(self) -> int:
        job = self._client.job(self.job)
        return len(job.allocation) if job.state is JobState.RUNNING else 0

    def _pods(self) -> Mapping[str, str]:
        """Return the leases of the pods, by the pods' names."""
        labelled = ((one["metadata"], one["metadata"].get("labels", {})) for one in self._kubernetes.pods())
        return {fields["name"]: labels[MACHINE] for fields, labels in labelled if MACHINE in labels}


def measure(folder: Path, faults: int) -> dict[str, object]:
    """Return the figures of at least so many faults."""
    with (
        kubernetes_cluster(folder / "kubernetes", nodes=2) as kubernetes,
        faulty_server(kubernetes.url, Faults(seed=1)) as server,
    ):
        kubernetes.images[AGENT] = (
            sys.executable,
            "-P",
            "-m",
            "worker_agent",
            "--state-dir",
            "{folder}/state",
        )
        access = folder / "kubeconfig"
        kubernetes.write_kubeconfig(access, ADMIN, server.url)
        settings = SETTINGS | {"KUBECONFIG": str(access)}
        with LocalStack(folder / "stack", agents=0, settings=settings) as stack, stack.client() as client:
            pool = Pool(client, kubernetes, shared_folder(folder))
            pool.on_all()
            number = 0
            while number == 0 or _count(server, pool) < faults:
                pool.play(number)
                pool.on_all()
                number += 1
                print(f"{_count(server, pool)} of {faults} faults", file=sys.stderr, flush=True)
            switches = pool.switches()
            end = pool.finish()
            pauses_s = sorted(float(event.data["pause_s"]) for event in switches)
            return {
                "provider": "kubernetes",
                "faults": _count(server, pool),
                "by_kind": {**{kind.value: count for kind, count in server.faults.items()}, **pool.rounds},
                "changes": len(switches),
                "lost_steps_max": max(int(event.data["lost_steps"]) for event in switches),
                "pause_p50_s": statistics.median(pauses_s),
                "pause_p99_s": pauses_s[min(len(pauses_s) - 1, int(0.99 * len(pauses_s)))],
                **end,
            }


def _count(server: FaultyServer, pool: Pool) -> int:
    return sum(server.faults.values()) + sum(pool.rounds.values())


def main() -> None:
    """Measure, and print the figures."""
    parser = benchmark_parser(__doc__, quick="one round only")
    parser.add_argument("--provider", choices=["kubernetes"], default="kubernetes", help="%(default)s")
    parser.add_argument(
        "--faults", type=int, default=200, help="least number of faults (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if not INSTALLED:
        raise SystemExit(MISSING)
    with temporary_folder() as folder:
        show(measure(folder, 1 if arguments.quick else arguments.faults), arguments)


if __name__ == "__main__":
    run_benchmark(main)
