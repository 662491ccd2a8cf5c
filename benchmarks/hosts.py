"""Faults of the network between hosts: time until they are named, pauses of training, and anything that is lost.

    python -m benchmarks.hosts --json

Hosts are network namespaces with a slot each, behind a bridge. It needs root. Jobs count how often each sample was trained
on (`benchmarks/faulting/scripts/counted.py`).

`named_s`: from the submit of a job for two hosts that do not reach each other until the service names the pair. The longest
of a cut in both directions and one in each; `named` has all.
`bad_growth_pause_s`: longest pause of a job while it is to grow onto a host that it does not reach.
`standstill_s`: duration of a cut between the two hosts of a job. `standstill_after_healing_s`: from its end to the next step.
`partition_recovery_s`: from the moment at which one of the two hosts of a job vanishes to the next step.
`pause_ratio`: median pause of growing from one host to two at 1 Gbit/s, over the time that parameters and optimizer state
need at that rate. `parameters` is the size of the model, `grow_pause_s` the pause.
`slow_link_detected_steps`: from the moment at which the link of one of three hosts has a tenth of its rate, until its host
is named or the job has left it; null if neither happens within `--steps` steps.
`false_alarms`: hosts that were named as slow without cause.
`lost_jobs`, `lost_samples`: jobs that did not succeed; samples that final weights have not seen exactly once.
`double_slots`: pairs of processes alive on one slot at the same time.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.arguments import benchmark_parser, run_benchmark, shared_folder, show, temporary_folder
from benchmarks.networking.lab import HostLab, host_lab
from benchmarks.networking.namespaces import why_not
from benchmarks.networking.trials import (
    Way,
    bad_growth_s,
    name_s,
    partition_s,
    resize_pauses,
    slow_link_steps,
    standstill_s,
)
from benchmarks.scripts.networks import SIZES

MBIT_PER_S = 1000.0
FULL, QUICK = "17M", "1M"
WAYS: tuple[Way, ...] = ("both", "from_one", "from_other")


def state_bytes(size: str) -> int:
    """Return the bytes of the weights and biases of a network, and of their two moments in AdamW."""
    width, layers = SIZES[size]
    return 3 * 4 * layers * (width * width + width)


def measure(lab: HostLab, folder: Path, *, quick: bool, cut_s: float, most_steps: int) -> dict[str, Any]:
    size = QUICK if quick else FULL
    hosts = one, other = lab.add_host("host-a"), lab.add_host("host-b")
    named = {way: name_s(lab, one, other, way) for way in WAYS[: 1 if quick else None]}
    bad_growth = bad_growth_s(lab, one, other, watch_s=5.0 if quick else 45.0)
    after_healing = standstill_s(lab, one, other, cut_s)
    recovery = partition_s(lab, other)
    pauses = resize_pauses(lab, hosts, size, folder, mbit_per_s=MBIT_PER_S, times=1 if quick else 3)
    alarms = sum(len(lab.stragglers(job.id)) for job in lab.client.jobs())
    three = (*hosts, lab.add_host("host-c"))
    steps, wrong = slow_link_steps(lab, three, folder, mbit_per_s=MBIT_PER_S, most_steps=most_steps)
    pause_s = statistics.median(pauses)
    return {
        "named_s": round(max(named.values()), 2),
        "named": {way: round(seconds, 2) for way, seconds in named.items()},
        "bad_growth_pause_s": round(bad_growth, 2),
        "standstill_after_healing_s": round(after_healing, 2),
        "standstill_s": cut_s,
        "partition_recovery_s": round(recovery, 2),
        "pause_ratio": round(pause_s * MBIT_PER_S * 1e6 / (8 * state_bytes(size)), 3),
        "grow_pause_s": round(pause_s, 3),
        "parameters": size,
        "slow_link_detected_steps": steps,
        "false_alarms": alarms + wrong,
        **lab.verdict(),
    }


def main() -> None:
    parser = benchmark_parser(__doc__, quick="a cut of ten seconds, and a small model")
    parser.add_argument("--cut-s", type=float, default=120.0, help="duration of the cut between two hosts")
    parser.add_argument(
        "--steps", type=int, default=100, help="steps within which a slow link is to be found"
    )
    arguments = parser.parse_args()
    missing = why_not()
    if missing is not None:
        raise RuntimeError(missing)
    cut_s, steps = (10.0, 60) if arguments.quick else (arguments.cut_s, arguments.steps)
    with temporary_folder() as folder:
        shared = shared_folder(folder)
        with host_lab(folder) as lab:
            result = measure(lab, shared, quick=arguments.quick, cut_s=cut_s, most_steps=steps)
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
