"""Agreement of the simulator with the live system: the same jobs run on this machine, and replayed in virtual time.

    python -m benchmarks.agreement --json
    python -m benchmarks.agreement --timer --quick

Nine jobs train on two slots of a local cluster (PostgreSQL, Redis, service and agent as `headway up` starts them). Their
submit times make them wait, share slots and change their sizes. The last two adapt their batch. The measurements of that run (step times by size, starts,
changes, ends) define a world. `service.simulation` replays it with the scheduling code of production, and does not know the
live decisions.

`errors`: |simulated - live| / live of the time from submit to end, by job. `worst_error` is the largest of them.
`average_error` is the same error of the mean time. `live_s` and `simulated_s` are the times by job.

With `--timer`, a step waits for a fixed time instead of computing, so that a busy machine does not change it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.agreement_live import Run, Submit, run_live
from benchmarks.agreement_world import world_of
from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from benchmarks.scripts.paced import BATCH, LAYERS, PASSES, WIDTH, network
from service.domain.policies.registry import policy
from service.simulation.replay.engine import replay


@dataclass(frozen=True, slots=True)
class Job:
    """Job with `length_s` seconds of training on one slot. The other fields are those of `Submit`.

    The steps of a job that adapts its batch always wait for a timer.
    """

    name: str
    at_s: float
    length_s: float
    follows: str | None = None
    noise_scale: float | None = None


SLOTS = 2
STEP_S = 0.1
"""Seconds of a step on one slot with `--timer`."""
NOISE_SCALE = 4096.0
"""Gradient noise in samples, at which a larger batch wastes next to nothing."""
STREAM = (
    Job("ada", 0.0, 60.0),
    Job("bob", 3.0, 12.0),
    Job("cy", 8.0, 10.0),
    Job("dan", 40.0, 40.0),
    Job("eve", 75.0, 15.0),
    Job("fay", 80.0, 35.0),
    Job("gus", 85.0, 10.0),
    Job("hal", 150.0, 50.0, noise_scale=NOISE_SCALE),
    Job("ida", 175.0, 20.0, noise_scale=NOISE_SCALE),
)
"""No job is submitted about when the speed of another one is first measured.

Otherwise a few milliseconds would change the decision of a round, and no two live runs would agree.
"""
SHORT = (Job("ada", 0.0, 46.0), Job("bob", 8.0, 23.0), Job("cy", 3.0, 8.0, follows="ada"))
"""The first job shares the slots, grows once it runs alone for long enough, and shrinks when the third one comes."""
QUICK = (Job("ada", 0.0, 4.0), Job("bob", 0.5, 2.0))


def main() -> None:
    parser = benchmark_parser(__doc__, quick="two short jobs")
    parser.add_argument("--timer", action="store_true", help="steps wait instead of computing")
    arguments = parser.parse_args()
    with temporary_folder() as folder:
        run = run_live(
            folder,
            submits(QUICK if arguments.quick else STREAM, timer=arguments.timer),
            slots=SLOTS,
            within_s=600.0,
        )
    show(agreement(run), arguments)


def submits(jobs: Sequence[Job], *, timer: bool) -> list[Submit]:
    """Return the submits of jobs of these lengths. Without the timer, a step's arithmetic is timed on this machine first."""
    computed_s = None if timer else _arithmetic_s()
    waits = [timer or job.noise_scale is not None for job in jobs]
    return [
        Submit(
            name=job.name,
            at_s=job.at_s,
            steps=round(job.length_s / (STEP_S if waiting or computed_s is None else computed_s)),
            step_s=STEP_S if waiting else None,
            follows=job.follows,
            noise_scale=job.noise_scale,
        )
        for job, waiting in zip(jobs, waits, strict=True)
    ]


def agreement(run: Run) -> dict[str, Any]:
    """Return the errors of a replay of the run."""
    replayed = replay(world_of(run), policy(run.policy)).jobs
    live_s = np.array([one.completion_s for one in run.jobs])
    simulated_s = replayed.end_s - replayed.submit_s
    errors = np.abs(simulated_s - live_s) / live_s
    return {
        "jobs": len(live_s),
        "worst_error": float(errors.max()),
        "average_error": float(abs(simulated_s.mean() - live_s.mean()) / live_s.mean()),
        "errors": dict(zip(replayed.id, errors.round(4).tolist(), strict=True)),
        "live_s": dict(zip(replayed.id, live_s.round(3).tolist(), strict=True)),
        "simulated_s": dict(zip(replayed.id, simulated_s.round(3).tolist(), strict=True)),
    }


def _arithmetic_s() -> float:
    """Return the median seconds of a step's arithmetic on one slot."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, x = network(WIDTH, LAYERS), torch.ones(BATCH * BATCH * PASSES, WIDTH)
    taken = []
    for _ in range(20):
        began_s = time.perf_counter()
        model(x).square().mean().backward()
        taken.append(time.perf_counter() - began_s)
    torch.set_num_threads(threads)
    return float(np.median(taken))


if __name__ == "__main__":
    run_benchmark(main)
