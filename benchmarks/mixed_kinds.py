"""Speed of one job on slots of two device kinds, from its first step on, against the bound of their speeds.

    python -m benchmarks.mixed_kinds --json

The service runs with two agents of one slot each, of the kinds `cpu-fast` and `cpu-slow`. Each rank has its own core, and the
ranks of `cpu-slow` are stopped for three quarters of the time. A job runs on each kind alone, both at the same time. Then a job
of their class runs on both kinds: the models give its ranks their first local batches.

`speeds`: samples per second on each kind alone.
`bound_s`: global batch, divided by the sum of the speeds.
`first_steps_share`: `bound_s`, divided by the median time of the first 20 steps on both kinds.
`share_of_bound`: the same for the 20 steps after these.
`local_batches`: samples of both ranks in the first step, the 20th and the last; the fast rank first.

All are of the round with the median `first_steps_share` of `--repeats` rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.arguments import benchmark_parser, run_benchmark, shared_folder, show, temporary_folder
from benchmarks.cluster import wait_for_success
from benchmarks.uneven import GLOBAL_BATCH, SCRIPT, Slowed
from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.local.stack import LocalStack
from headway.local.supervisor import Program

KINDS = ("cpu-fast", "cpu-slow")
STEPS = 20
"""Number of steps of each part of a run."""
MICRO_BATCH = 20
_POLL_S = 0.02
_WITHIN_S = 300.0


class RankProcess:
    """A rank, by its process id."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def send_signal(self, sig: int) -> None:
        """Send the signal, unless the process has ended."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, sig)


@contextmanager
def slowing(folder: Path) -> Iterator[None]:
    """Give each rank that arrives in the folder its core, slow those of the slow kind, and let them go."""
    ended = threading.Event()

    def attend() -> None:
        cores = sorted(os.sched_getaffinity(0))
        with ExitStack() as slowed:
            while not ended.wait(_POLL_S):
                for kind, core in zip(KINDS, cores, strict=False):
                    for arrived in folder.glob(f"{kind}.*[0-9]"):
                        begin = arrived.with_name(f"{arrived.name}.go")
                        if begin.exists():
                            continue
                        pid = int(arrived.name.rpartition(".")[2])
                        os.sched_setaffinity(pid, {core})
                        if kind == KINDS[1]:
                            slowed.enter_context(Slowed(RankProcess(pid)))
                        begin.touch()

    thread = threading.Thread(target=attend)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def agents(stack: LocalStack, client: Client) -> Iterator[None]:
    """Run an agent with one slot for each kind, beside those of the stack."""
    with ExitStack() as programs:
        for kind in KINDS:
            argv = [sys.executable, "-u", "-m", "worker_agent", "--url", stack.url, "--name", kind]
            argv += ["--address", "127.0.0.1", "--state-dir", str(stack.data / "agents" / kind)]
            argv += ["--slots", "1", "--device-kind", kind, "--pass-env", "NODE", "--own-jobs"]
            env = {
                **os.environ,
                "NODE": kind,
                "HEADWAY_JOIN_TOKEN": stack.join_token_file.read_text().strip(),
            }
            program = Program(argv, env, stack.logs / f"{kind}.log")
            program.start()
            programs.callback(program.stop)
        until_s = time.monotonic() + _WITHIN_S
        while {one.name for one in client.nodes() if one.state is NodeState.READY} != set(KINDS):
            if time.monotonic() > until_s:
                raise RuntimeError(f"the agents have not joined; see their logs in {stack.logs}")
            time.sleep(_POLL_S)
        yield


def spec(name: str, kinds: tuple[str, ...], steps: int, folder: Path) -> JobSpec:
    """Return a job with one rank on each of the kinds."""
    elastic: dict[str, Any] = {"min": len(kinds), "max": len(kinds)}
    return JobSpec.model_validate(
        {
            "name": name,
            "workdir": str(SCRIPT.parent),
            "run": f"python {SCRIPT.name} {GLOBAL_BATCH} {steps} balanced {folder}",
            "env": {"OMP_NUM_THREADS": "1"},
            "resources": {"devices": list(kinds)},
            "elastic": {**elastic, "mix": list(kinds)} if len(kinds) > 1 else elastic,
            "batch": {"global": GLOBAL_BATCH, "max_local": MICRO_BATCH},
        }
    )


def run(client: Client, jobs: list[JobSpec], folder: Path) -> list[list[dict[str, list[Any]]]]:
    """Run jobs together, and return the figures of each one's ranks."""
    until_s = time.monotonic() + _WITHIN_S
    ids = [client.submit(job).id for job in jobs]
    for one in ids:
        wait_for_success(client, one, until_s)
    return [
        [json.loads((folder / f"{job.name}-{rank}").read_text()) for rank in range(job.elastic.max)]
        for job in jobs
    ]


def measure(client: Client, folder: Path, number: int, alone_steps: int) -> dict[str, Any]:
    """Return the figures of one round. Its class has no earlier measurements."""
    names = [f"mix{number}-{job}" for job in range(1, 4)]
    # The fast rank takes four times as many steps, so that both end at the same time.
    counts = (4 * alone_steps, alone_steps)
    alone = run(
        client,
        [spec(name, (kind,), count, folder) for name, kind, count in zip(names, KINDS, counts, strict=False)],
        folder,
    )
    speeds = [GLOBAL_BATCH / statistics.median(ranks[0]["step_s"][2:]) for ranks in alone]
    (both,) = run(client, [spec(names[2], KINDS, 2 * STEPS, folder)], folder)
    both.sort(key=lambda rank: -rank["local_batches"][-1])
    bound_s, step_s = GLOBAL_BATCH / sum(speeds), both[0]["step_s"]
    return {
        "first_steps_share": round(bound_s / statistics.median(step_s[:STEPS]), 3),
        "share_of_bound": round(bound_s / statistics.median(step_s[STEPS:]), 3),
        "bound_s": round(bound_s, 4),
        "speeds": [round(speed, 1) for speed in speeds],
        "local_batches": [[rank["local_batches"][step] for rank in both] for step in (0, STEPS - 1, -1)],
    }


def main() -> None:
    parser = benchmark_parser(__doc__, quick="one round of few steps alone")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise RuntimeError("this benchmark needs two cores, one for each rank")
    alone_steps, repeats = (12, 1) if arguments.quick else (25, arguments.repeats)
    with temporary_folder() as folder, LocalStack(folder / "stack", agents=0) as stack:
        shared = shared_folder(folder)
        with stack.client() as client, slowing(shared), agents(stack, client):
            rounds = sorted(
                (measure(client, shared, number, alone_steps) for number in range(repeats)),
                key=lambda one: one["first_steps_share"],
            )
    result = {
        **rounds[len(rounds) // 2],
        "shares": [[one["first_steps_share"], one["share_of_bound"]] for one in rounds],
    }
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
