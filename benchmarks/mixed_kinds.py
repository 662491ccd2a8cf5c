"""Speed of one job on slots of two device kinds, from its first step on, against the bound of their speeds.

    python -m benchmarks.mixed_kinds --json

The service runs with two agents of one slot each, of the kinds `cpu-fast` and `cpu-slow`. Each rank has its own core, and the
ranks of `cpu-slow` compute each forward and backward pass four times. Stopping them for three quarters of the time would also
stop their part of the collectives, which no slower device does. A job runs on each kind alone, both at the same time. Then a
job of their class runs on both kinds: the models give its ranks their first local batches.

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
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.arguments import benchmark_parser, run_benchmark, shared_folder, show, temporary_folder
from benchmarks.cluster import wait_for_nodes, wait_for_success
from benchmarks.uneven import SCRIPT
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.local.agents import agent_program
from headway.local.ports import HOST
from headway.local.stack import LocalStack

KINDS = ("cpu-fast", "cpu-slow")
PASSES = (1, 4)
"""Passes that a rank of each kind computes instead of one."""
GLOBAL_BATCH = 960
"""Samples of a step, which takes half a second.

The service works on the cores of the ranks, and delays now one and now the other. A step waits for the later of both, so the
delays of short steps do not average out.
"""
QUICK_BATCH = 320
STEPS = 20
"""Number of steps of each part of a run."""
MICRO_BATCH = 20
_WITHIN_S = 300.0


@contextmanager
def agents(stack: LocalStack, client: Client) -> Iterator[None]:
    """Run an agent with one slot for each kind, beside those of the stack."""
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as programs:
        for kind, core, passes in zip(KINDS, cores, PASSES, strict=False):
            program = agent_program(
                kind,
                stack.url,
                state=stack.data / "agents" / kind,
                log=stack.logs / f"{kind}.log",
                env={
                    **os.environ,
                    "CORE": str(core),
                    "PASSES": str(passes),
                    "HEADWAY_JOIN_TOKEN": stack.join_token_file.read_text(encoding="utf-8").strip(),
                },
                arguments=[
                    "--address",
                    HOST,
                    "--slots",
                    "1",
                    "--device-kind",
                    kind,
                    "--pass-env",
                    "CORE,PASSES",
                ],
            )
            program.start()
            programs.callback(program.stop)
        wait_for_nodes(client, KINDS, time.monotonic() + _WITHIN_S)
        yield


def spec(name: str, kinds: tuple[str, ...], steps: int, folder: Path, batch: int) -> JobSpec:
    """Return a job with one rank on each of the kinds."""
    elastic: dict[str, Any] = {"min": len(kinds), "max": len(kinds)}
    return JobSpec.model_validate(
        {
            "name": name,
            "workdir": str(SCRIPT.parent),
            "run": f"python {SCRIPT.name} {batch} {steps} balanced {folder}",
            "env": {"OMP_NUM_THREADS": "1"},
            "resources": {"devices": list(kinds)},
            "elastic": {**elastic, "mix": list(kinds)} if len(kinds) > 1 else elastic,
            "batch": {"global": batch, "max_local": MICRO_BATCH},
        }
    )


def run(client: Client, jobs: list[JobSpec], folder: Path) -> list[list[dict[str, list[Any]]]]:
    """Run jobs together, and return the figures of each one's ranks."""
    until_s = time.monotonic() + _WITHIN_S
    ids = [client.submit(job).id for job in jobs]
    for one in ids:
        wait_for_success(client, one, until_s)
    return [
        [
            json.loads((folder / f"{job.name}-{rank}").read_text(encoding="utf-8"))
            for rank in range(job.elastic.max)
        ]
        for job in jobs
    ]


def measure(
    client: Client, folder: Path, number: int, alone_steps: int, batch: int = GLOBAL_BATCH
) -> dict[str, Any]:
    """Return the figures of one round. Its class has no earlier measurements."""
    names = [f"mix{number}-{job}" for job in range(1, 4)]
    # The fast rank takes four times as many steps, so that both end at the same time.
    counts = (4 * alone_steps, alone_steps)
    alone = run(
        client,
        [
            spec(name, (kind,), count, folder, batch)
            for name, kind, count in zip(names, KINDS, counts, strict=False)
        ],
        folder,
    )
    speeds = [batch / statistics.median(ranks[0]["step_s"][2:]) for ranks in alone]
    (both,) = run(client, [spec(names[2], KINDS, 2 * STEPS, folder, batch)], folder)
    both.sort(key=lambda rank: -rank["local_batches"][-1])
    bound_s, step_s = batch / sum(speeds), both[0]["step_s"]
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
    batch = QUICK_BATCH if arguments.quick else GLOBAL_BATCH
    with temporary_folder() as folder, LocalStack(folder / "stack", agents=0) as stack:
        shared = shared_folder(folder)
        with stack.client() as client, agents(stack, client):
            rounds = sorted(
                (measure(client, shared, number, alone_steps, batch) for number in range(repeats)),
                key=lambda one: one["first_steps_share"],
            )
    result = {
        **rounds[len(rounds) // 2],
        "shares": [[one["first_steps_share"], one["share_of_bound"]] for one in rounds],
    }
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
