"""Growth of a busy stack over time: memory, file descriptors, threads and sockets.

    python -m benchmarks.soak --minutes 60 --json

A complete stack runs on this machine (PostgreSQL, Redis, API, scheduler, two agents with their launchers). It gets a steady
stream of short jobs and one long job with live resizes, while a client reads all kinds of pages.

`api_mib_per_h`, `scheduler_mib_per_h`, `agent_mib_per_h`, `launcher_mib_per_h`: slope of the private memory of each program
after a warm-up (the first third), as the median of the slopes between all pairs of samples (Theil and Sen). For agents and
launchers it is the larger of the two slopes.
`jobs`: number of finished short jobs.
`growth`: file descriptors, threads and sockets of each program at the end less those after the warm-up, as medians over a
tenth of the samples.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, JobState
from headway.errors import HeadwayError
from headway.local.stack import LocalStack

SCRIPTS = Path(__file__).parent / "scripts"
SAMPLE_EVERY_S = 2.0
QUICK_MINUTES = 0.2
JOBS_AT_ONCE = 3
WARM_UP = 1 / 3
RESIZE_EVERY_S = 10.0
READ_EVERY_S = 0.2
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """Resources of one program at the time `at_s` (monotonic clock). `memory_bytes` is its private memory."""

    at_s: float
    memory_bytes: int
    descriptors: int
    sockets: int
    threads: int


def sample(pid: int) -> Sample | None:
    """Return the present resources of a process, or None if it has ended."""
    process = Path(f"/proc/{pid}")
    try:
        status = dict(
            line.split(":", 1) for line in (process / "status").read_text(encoding="utf-8").splitlines()
        )
        links = []
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                links.append(str(entry.readlink()))
    except (FileNotFoundError, ProcessLookupError):
        return None
    sockets = sum(link.startswith("socket:") for link in links)
    memory = int(status.get("RssAnon", status["VmRSS"]).split()[0]) << 10
    return Sample(time.monotonic(), memory, len(links), sockets, int(status["Threads"]))


def slope_per_h(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between all pairs of (seconds, value), per hour (P. K. Sen, 1968)."""
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in itertools.combinations(points, 2)
        if later[0] > earlier[0]
    ]
    return 3600.0 * statistics.median(slopes) if slopes else 0.0


def thin_out(samples: Sequence[Sample], most: int = 600) -> Sequence[Sample]:
    """Return evenly spaced samples, to limit the number of pairs."""
    return samples[:: max(1, len(samples) // most)]


def launchers(folder: Path) -> dict[str, int]:
    """Return the process ids of the launchers of a stack, by the name of their agent."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"worker_agent.launcher" in words:
                state = Path(words[-2].decode())
                if state.parent.parent == folder and _parent_is_agent(entry):
                    found[f"launcher {state.name}"] = int(entry.name)
    return found


def _parent_is_agent(process: Path) -> bool:
    """Return True for the launcher itself: a forked child has its command line too until it becomes a rank."""
    parent = int((process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return b"worker_agent.launcher" not in Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")


class Watch:
    """Thread that samples all programs of a stack periodically."""

    def __init__(self, stack: LocalStack) -> None:
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self._stack = stack
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_EVERY_S):
            programs = {name: one.pid for name, one in self._stack.programs.items()}
            for name, pid in {**programs, **launchers(self._stack.data)}.items():
                found = sample(pid) if pid is not None else None
                if found is not None:
                    self.samples[name].append(found)


def keep_submitting(stack: LocalStack, over: threading.Event, ended: list[JobState]) -> None:
    """Submit short jobs, a few at a time. Every tenth job uses the library."""
    with stack.client() as client:
        open_: list[str] = []
        for number in itertools.count():
            while len(open_) >= JOBS_AT_ONCE:
                if over.wait(0.1):
                    return
                states = {job: client.job(job).state for job in open_}
                ended += [state for state in states.values() if state in TERMINAL_STATES]
                open_ = [job for job, state in states.items() if state not in TERMINAL_STATES]
            trains = number % 10 == 0
            run = "python first_step.py" if trains else "sh -c 'for i in 1 2 3; do echo $i; done'"
            spec = JobSpec.model_validate(
                {"name": f"short-{number}", "run": run, "workdir": str(SCRIPTS), "elastic": {"max": 1}}
            )
            open_.append(client.submit(spec).id)


def keep_resizing(stack: LocalStack, over: threading.Event) -> None:
    """Resize one long job between one slot and two."""
    with stack.client() as client:
        run = "python paced.py 1000000 0.2"
        elastic = {"min": 1, "max": 2, "resize": "live"}
        job = client.submit(
            JobSpec.model_validate({"name": "long", "run": run, "workdir": str(SCRIPTS), "elastic": elastic})
        )
        for size in itertools.cycle((2, 1)):
            if over.wait(RESIZE_EVERY_S):
                client.cancel(job.id, force=True)
                return
            client.resize(job.id, size)


def keep_reading(stack: LocalStack, over: threading.Event) -> None:
    """Send the requests of people and dashboards."""
    with stack.client() as client:
        while not over.wait(READ_EVERY_S):
            for read in _reads(client):
                if over.is_set():
                    return
                with contextlib.suppress(HeadwayError):  # the job may be gone
                    read()


def _reads(client: Client):  # type: ignore[no-untyped-def]  # noqa: ANN202 - calls of many kinds
    newest = list(itertools.islice(client.jobs(), 20))
    yield from (lambda: list(client.nodes()), client.cluster, client.round)
    for job in newest[:3]:
        yield lambda job=job: client.job(job.id)
        yield lambda job=job: list(client.events(job.id))
        yield lambda job=job: list(client.logs(job.id))
        yield lambda job=job: list(client.metrics(job.id))
        yield lambda job=job: client.explain(job.id)


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the growth of all resources except memory, from the first to the last tenth of the samples."""
    tenth = max(1, len(samples) // 10)
    return {
        what: statistics.median(getattr(one, what) for one in samples[-tenth:])
        - statistics.median(getattr(one, what) for one in samples[:tenth])
        for what in ("descriptors", "sockets", "threads")
    }


@contextlib.contextmanager
def loaded(stack: LocalStack, ended: list[JobState]) -> Iterator[None]:
    """Load the stack until the `with` block ends."""
    over = threading.Event()
    threads = [
        threading.Thread(target=keep_submitting, args=[stack, over, ended]),
        threading.Thread(target=keep_resizing, args=[stack, over]),
        threading.Thread(target=keep_reading, args=[stack, over]),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def soak(minutes: float) -> dict[str, object]:
    """Run the load, and return the growth of all resources."""
    ended: list[JobState] = []
    with (
        temporary_folder() as folder,
        LocalStack(folder, agents=2, slots=3) as stack,
        Watch(stack) as watch,
        loaded(stack, ended),
    ):
        threading.Event().wait(60.0 * minutes)
    warm = {name: found[int(len(found) * WARM_UP) :] for name, found in watch.samples.items()}
    slopes: dict[str, float] = defaultdict(lambda: -float("inf"))
    for name, found in warm.items():
        points = [(one.at_s, one.memory_bytes / _MIB) for one in thin_out(found)]
        kind = name.split()[0]
        slopes[kind] = max(slopes[kind], slope_per_h(points))
    return {
        **{f"{kind}_mib_per_h": round(slope, 2) for kind, slope in sorted(slopes.items())},
        "jobs": len(ended),
        "failed_jobs": sum(state is not JobState.SUCCEEDED for state in ended),
        "minutes": minutes,
        "memory_mib": {
            name: round(found[-1].memory_bytes / _MIB, 1) for name, found in warm.items() if found
        },
        "growth": {name: growth(found) for name, found in warm.items() if found},
    }


def main() -> None:
    parser = benchmark_parser(__doc__, quick="a few seconds")
    parser.add_argument("--minutes", type=float, default=60.0)
    arguments = parser.parse_args()
    result = soak(QUICK_MINUTES if arguments.quick else arguments.minutes)
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
