"""Speedup from balanced local batches when one of two ranks has a quarter of the other's CPU.

    python -m benchmarks.uneven --json

Each rank has its own core. The slow rank is stopped for three quarters of every period of 4 ms, as by a CPU quota, but
without privileges.

`speeds`: samples per second of both ranks when each trains alone, at the same time.
`bound`: sum of the speeds, divided by N times the slowest speed. No division of the batch gains more.
`speedup`: step time with even local batches, divided by that with balanced ones. Both are medians without the first steps.

The benchmark measures all three in each of `--repeats` rounds. The result is the round with the median share of the bound.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import benchmark_parser, run_benchmark, show
from headway.local.guard import MARK
from headway.local.ports import free_port

SCRIPT = Path(__file__).parent / "scripts" / "uneven_rank.py"
GLOBAL_BATCH = 320
RUN_S, STOP_S = 0.001, 0.003
SETTLE_STEPS = 15
"""Steps that are left out: the first ones are slow, and balanced batches change after steps 5 and 10."""
MEASURED_STEPS = 20
QUICK_STEPS = (2, 4)


class Slowed:
    """Thread that keeps a process stopped for three quarters of the time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._stop_and_go)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _stop_and_go(self) -> None:
        while not self._ended.wait(RUN_S):
            self._process.send_signal(signal.SIGSTOP)
            self._ended.wait(STOP_S)
            self._process.send_signal(signal.SIGCONT)


def start(rank: int, world_size: int, port: int, *arguments: object) -> subprocess.Popen[str]:
    """Start a rank, and return its process."""
    environment = {
        name: value for name, value in os.environ.items() if name == MARK or not name.startswith("HEADWAY_")
    }
    if world_size > 1:
        environment |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def train(processes: Sequence[subprocess.Popen[str]]) -> list[dict[str, list[float]]]:
    """Run the ranks, each on its own core and the second one slowed, and return the figures that they print."""
    try:
        for process, core in zip(processes, sorted(os.sched_getaffinity(0)), strict=False):
            os.sched_setaffinity(process.pid, {core})
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "begin\n":
                raise RuntimeError(
                    f"a rank ended with {process.wait()} before its first step; see its output above"
                )
        with Slowed(processes[1]):
            outputs = [process.communicate()[0] for process in processes]
        return [json.loads(output.splitlines()[-1]) for output in outputs]
    finally:
        for process in processes:
            process.kill()  # does nothing if the process has ended
            process.wait()


def speeds(steps: int) -> list[float]:
    """Return the samples per second of each rank when it trains half of the batch alone for `steps` steps."""
    half = GLOBAL_BATCH // 2
    # The fast rank takes four times as many steps, so that both end at the same time.
    alone = [start(0, 1, 0, half, count, "even") for count in (4 * steps, steps)]
    return [half / statistics.median(one["step_s"][steps // 4 :]) for one in train(alone)]


def together(mode: str, settle: int, steps: int) -> tuple[float, list[int]]:
    """Return the seconds of a step of both ranks together, and their last local batches."""
    port = free_port()
    found = train([start(rank, 2, port, GLOBAL_BATCH, settle + steps, mode) for rank in range(2)])
    step_s = statistics.median(found[0]["step_s"][settle:])
    return step_s, [int(one["local_batches"][-1]) for one in found]


def measure(settle: int, steps: int) -> dict[str, Any]:
    alone = speeds(steps)
    even_s, _ = together("even", settle, steps)
    balanced_s, local_batches = together("balanced", settle, steps)
    most = sum(alone) / (len(alone) * min(alone))  # upper bound of the speedup over even local batches
    return {
        "speedup": round(even_s / balanced_s, 3),
        "bound": round(most, 3),
        "share_of_bound": round(even_s / balanced_s / most, 3),
        "even_step_s": round(even_s, 4),
        "balanced_step_s": round(balanced_s, 4),
        "speeds": [round(speed, 1) for speed in alone],
        "local_batches": local_batches,
    }


def main() -> None:
    parser = benchmark_parser(__doc__, quick="one round of few steps")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise RuntimeError("this benchmark needs two cores, one for each rank")
    steps, repeats = (
        (QUICK_STEPS, 1) if arguments.quick else ((SETTLE_STEPS, MEASURED_STEPS), arguments.repeats)
    )
    rounds = sorted(
        (measure(*steps) for _ in range(repeats)),
        key=lambda one: one["share_of_bound"],
    )
    result = {
        **rounds[len(rounds) // 2],
        "shares_of_bound": [one["share_of_bound"] for one in rounds],
    }
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
