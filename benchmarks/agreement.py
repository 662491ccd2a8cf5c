"""The simulator against the live system: the same jobs, run by agents of this machine and replayed in virtual time.

    python -m benchmarks.agreement --json
    python -m benchmarks.agreement --timer --quick

Seven jobs train on two slots of a local cluster (PostgreSQL, Redis, service and agent as `headway up` starts them). They
come so that they wait, share, and change their sizes. What was measured in that very run (step times by size, starts,
changes, ends) makes a world; `service.simulation` replays it with the code that decides in production, and knows of the
live decisions nothing. `errors`: of each job |simulated - live| / live of the time from submit to end. `worst_error`
is the largest of them, `average_error` the same of the mean times, `live_s` and `simulated_s`.

With `--timer` a step waits for a known time in place of computing, so that a busy machine does not change it.
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
    """`at_s` as in `Submit`; `length_s` are seconds of training on one slot."""

    name: str
    at_s: float
    length_s: float
    follows: str | None = None


SLOTS = 2
STEP_S = 0.1
"""On one slot, by the timer."""
STREAM = (
    Job("ada", 0.0, 60.0),
    Job("bob", 3.0, 12.0),
    Job("cy", 8.0, 10.0),
    Job("dan", 40.0, 40.0),
    Job("eve", 75.0, 15.0),
    Job("fay", 80.0, 35.0),
    Job("gus", 85.0, 10.0),
)
"""No job comes when another one's speed has only just been measured, or is about to be: by a few milliseconds more or less, a
round then decides otherwise, and no two live runs agree.
"""
SHORT = (Job("ada", 0.0, 46.0), Job("bob", 8.0, 23.0), Job("cy", 3.0, 8.0, follows="ada"))
"""The first shares, grows when it is alone and has run for long enough, and makes room when the third comes."""
QUICK = (Job("ada", 0.0, 4.0), Job("bob", 0.5, 2.0))


def main() -> None:
    parser = benchmark_parser(__doc__, quick="two short jobs")
    parser.add_argument("--timer", action="store_true", help="steps wait in place of computing")
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
    """Jobs of so many seconds, by the timer or by what a step's arithmetic takes on this machine now."""
    step_s = STEP_S if timer else _arithmetic_s()
    return [
        Submit(
            name=job.name,
            at_s=job.at_s,
            steps=round(job.length_s / step_s),
            step_s=STEP_S if timer else None,
            follows=job.follows,
        )
        for job in jobs
    ]


def agreement(run: Run) -> dict[str, Any]:
    """How far a replay of what was measured in a run is from it."""
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
    """The median time of a step's arithmetic on one slot."""
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
