"""What local batches by speed give when one of two ranks has a quarter of the other's CPU.

    python -m benchmarks.uneven --json

Each rank has a core of its own. The slow one is stopped for three quarters of every period of 4 ms, which is
what a CPU quota does, and needs no privilege. `speeds` (samples/s) are those of both ranks training alone,
beside each other: what the machine really gives. `bound` follows from them: the sum of the speeds over N times
the slowest, the most that any division of the batch can gain. `speedup` is the step time with even local
batches over that with balanced ones, medians of the steps after the first ones. All three are measured `--repeats` times,
one after another; the result is the round whose share of the bound is the median.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.train.uneven import bound

SCRIPT = Path(__file__).parent / "scripts" / "uneven_rank.py"
GLOBAL_BATCH = 320
RUN_S, STOP_S = 0.001, 0.003
SETTLE_STEPS = 15
"""Steps that are left out: the first ones are slow, and balanced batches change after five and ten."""
MEASURED_STEPS = 20


class Slowed:
    """Keeps a process stopped for three quarters of the time."""

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
    """A rank. It has come to its first step when this returns its process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
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
    """What the ranks, each on a core of its own and the second one slowed, say of their steps."""
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
            process.kill()  # does nothing to one that has ended
            process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def speeds() -> list[float]:
    """Samples per second of each rank, training half of the batch without the other."""
    half = GLOBAL_BATCH // 2
    # Four times as many for the fast one, so that they end together.
    alone = [start(0, 1, 0, half, steps, "even") for steps in (4 * MEASURED_STEPS, MEASURED_STEPS)]
    return [half / statistics.median(one["step_s"][MEASURED_STEPS // 4 :]) for one in train(alone)]


def together(mode: str) -> tuple[float, list[int]]:
    """The time of a step of both ranks in seconds, and their last local batches."""
    port, steps = free_port(), SETTLE_STEPS + MEASURED_STEPS
    found = train([start(rank, 2, port, GLOBAL_BATCH, steps, mode) for rank in range(2)])
    step_s = statistics.median(found[0]["step_s"][SETTLE_STEPS:])
    return step_s, [int(one["local_batches"][-1]) for one in found]


def measured() -> dict[str, Any]:
    alone = speeds()
    even_s, _ = together("even")
    balanced_s, local_batches = together("balanced")
    most = bound(alone)
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("this benchmark needs two cores: one for each rank")
    rounds = sorted((measured() for _ in range(arguments.repeats)), key=lambda one: one["share_of_bound"])
    result = {
        **rounds[len(rounds) // 2],
        "shares_of_bound": [one["share_of_bound"] for one in rounds],
    }
    print(json.dumps(result) if arguments.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
