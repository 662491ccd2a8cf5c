"""Step time with Headway, compared with plain DistributedDataParallel.

    python -m benchmarks.overhead --json

Two ranks train two equal networks on equal data, one with Headway and one without, in alternating turns of a few steps. Both
run in the same processes, so that other load of the machine affects both. The ratio of a round is that of the median step
times of its two turns.

`step_time_ratio`: median ratio over the rounds. `spread`: half the distance between the quartiles.
`step_time_ratio_noise`: the ratio with measurement of the gradient noise, which a variable global batch needs. Few steps
measure the noise, and a median would hide them: this is the ratio of the mean step times of all rounds, each step limited
to three median ones. It holds after the first 120 steps, in which measurements are dense.
`step_time_ratio_alone`, `step_time_ratio_alone_noise`: the ratios for one rank, compared with a bare loop.

The keys at the top are those of the network with short steps, on which Headway's overhead is larger. `long` has the figures
of the longer steps.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arguments import benchmark_parser, run_benchmark, temporary_folder
from benchmarks.node import Job, Node, find_slots
from headway.contract.agents import DEVICE_CPU
from headway.contract.runtime import ENV_MAX_GLOBAL_BATCH
from worker_agent.devices.inventory import gpu_slots

SCRIPT = Path(__file__).parent / "scripts" / "stepping.py"


_CAP = 3.0
"""Limit of a step time in a mean, in median steps, so that a pause of the machine hardly counts."""


@dataclass(frozen=True, slots=True)
class Load:
    """Size of a network and of its training."""

    width: int
    batch: int
    rounds: int
    steps: int


LOADS = {"short": Load(512, 256, 30, 12), "long": Load(1024, 512, 14, 7)}
QUICK = {"short": Load(256, 64, 4, 5)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of the rounds of one run."""

    ratio: float
    spread: float
    step_s: float
    plain_step_s: float


def compare(rounds: Sequence[tuple[Sequence[float], Sequence[float]]], *, mean: bool = False) -> Comparison:
    """Return the comparison of the rounds, given as seconds of each step with Headway and without.

    `mean`: the ratio is that of the means of limited step times.
    """
    medians = [(statistics.median(ours), statistics.median(theirs)) for ours, theirs in rounds]
    ratios = [ours / theirs for ours, theirs in medians]
    quartiles = statistics.quantiles(ratios, n=4)
    step_s, plain_step_s = (statistics.median(column) for column in zip(*medians, strict=True))
    means = [
        statistics.fmean(min(one, _CAP * typical_s) for steps in column for one in steps)
        for column, typical_s in zip(zip(*rounds, strict=True), (step_s, plain_step_s), strict=True)
    ]
    return Comparison(
        means[0] / means[1] if mean else statistics.median(ratios),
        (quartiles[2] - quartiles[0]) / 2,
        step_s,
        plain_step_s,
    )


def measure(node: Node, load: Load, *, world_size: int, noise: bool, against_ddp: bool = False) -> Comparison:
    """Train both networks in turns, and return the comparison.

    `against_ddp`: a single rank, too, is compared with DistributedDataParallel instead of a bare loop.
    """
    with temporary_folder() as folder:
        file = folder / "rounds"
        run = f"{node.python} {SCRIPT} {load.width} {load.batch} {load.rounds} {load.steps} {file}"
        run += " ddp" if against_ddp else ""
        env = {ENV_MAX_GLOBAL_BATCH: str(load.batch)} if noise else {}
        with Job(node, folder.name, run, env=env) as job:
            job.start(1, world_size=world_size, ranks=range(world_size), live=True)
            job.until("the steps", file.exists)
        return compare(json.loads(file.read_text(encoding="utf-8")), mean=noise)


def compare_all(node: Node, load: Load) -> dict[str, float]:
    """Return the figures of one network."""
    alone, alone_noise = (measure(node, load, world_size=1, noise=noise) for noise in (False, True))
    result = {
        "step_time_ratio_alone": alone.ratio,
        "step_time_ratio_alone_noise": alone_noise.ratio,
        "spread_alone": alone.spread,
        "plain_step_alone_s": alone.plain_step_s,
    }
    if len(node.host.slots) > 1:
        two, two_noise = (measure(node, load, world_size=2, noise=noise) for noise in (False, True))
        result |= {
            "step_time_ratio": two.ratio,
            "step_time_ratio_noise": two_noise.ratio,
            "spread": two.spread,
            "spread_noise": two_noise.spread,
            "step_s": two.step_s,
            "plain_step_s": two.plain_step_s,
        }
    return {key: round(value, 4) for key, value in sorted(result.items(), reverse=True)}


def table(loads: dict[str, dict[str, float]]) -> str:
    """Return a table with the figures of all networks."""
    keys = next(iter(loads.values()))
    lines = ["".join([f"{'':30}", *(f"{name:>10}" for name in loads)])]
    lines += ["".join([f"{key:30}", *(f"{one[key]:>10.4f}" for one in loads.values())]) for key in keys]
    return "\n".join(lines)


def main() -> None:
    parser = benchmark_parser(__doc__, quick="a small network for a moment")
    arguments = parser.parse_args()
    slots = find_slots(2)
    if slots[0].device_kind == DEVICE_CPU and gpu_slots():
        slots = find_slots(1)
        sys.stderr.write("two ranks need two GPUs, but this machine has one: measuring one rank only\n")
    loads = QUICK if arguments.quick else LOADS
    with temporary_folder() as folder, Node(folder, slots) as node:
        found = {name: compare_all(node, load) for name, load in loads.items()}
    if not arguments.json:
        print(table(found))
        return
    print(json.dumps({**found.pop("short"), **found, "device": slots[0].device_kind}))


if __name__ == "__main__":
    run_benchmark(main)
