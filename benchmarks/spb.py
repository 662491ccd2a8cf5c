"""Step time and accuracy with structured partial back-propagation, compared with whole gradients.

    python -m benchmarks.spb --json

Two ranks, each on its own core, train three tasks for equally many steps: with `elastic.partial_backprop: {min_depth: 0.5}` and
without. The tasks are `digits` and `gpt_char` of the examples, and a regression of Friedman's function.

`step_time_ratio`: step time with partial gradients, divided by that with whole ones; the geometric mean over the tasks.
`accuracy_gap`: share of the accuracy that is lost, in the worst task. It is negative if no task loses any.
`tasks`: the same for each task, with the step times in seconds and the mean accuracy of the seeds. `seed_spread` is half the difference between
the best and the worst seed with whole gradients, relative to the mean: smaller gaps say nothing. `traffic_ratio` compares the bytes
on the loopback interface, including those of other programs.

Step times are medians without the first third, in which batches and costs settle.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from headway.contract.runtime import ENV_MIN_DEPTH
from headway.local.guard import MARK
from headway.local.ports import free_port

SCRIPT = Path(__file__).parent / "scripts" / "spb_rank.py"
ROOT = Path(__file__).parents[1]
MIN_DEPTH = 0.5
STEPS = {"digits": 440, "gpt_char": 800, "friedman": 570}
QUICK_STEPS = {"digits": 30, "gpt_char": 6, "friedman": 30}
_LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")


@dataclass(frozen=True, slots=True)
class Training:
    """Result of one training."""

    step_s: float
    quality: float
    sent_bytes: int


def train(task: str, steps: int, seed: int, min_depth: float | None, folder: Path) -> Training:
    """Train a task with two ranks, and return its figures.

    Raises:
        RuntimeError: a rank failed.
    """
    file, port = folder / "result.json", free_port()
    before = _sent_bytes()
    ranks = [_start(rank, port, min_depth, task, steps, seed, file) for rank in range(2)]
    try:
        for process, core in zip(ranks, sorted(os.sched_getaffinity(0)), strict=False):
            os.sched_setaffinity(process.pid, {core})
        codes = [process.wait() for process in ranks]
    finally:
        for process in ranks:
            process.kill()  # does nothing if the process has ended
            process.wait()
    if any(codes):
        raise RuntimeError(f"a rank ended with {max(codes, key=abs)}; see its output above")
    found = json.loads(file.read_text(encoding="utf-8"))
    step_s = statistics.median(found["step_s"][len(found["step_s"]) // 3 :])
    return Training(step_s, found["quality"], _sent_bytes() - before)


def _start(rank: int, port: int, min_depth: float | None, *arguments: object) -> subprocess.Popen[bytes]:
    kept = {
        name: value for name, value in os.environ.items() if name == MARK or not name.startswith("HEADWAY_")
    }
    environment = {
        **kept,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **({} if min_depth is None else {ENV_MIN_DEPTH: str(min_depth)}),
    }
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)], env=environment, stdout=subprocess.DEVNULL
    )


def _sent_bytes() -> int:
    return int(_LOOPBACK.read_text(encoding="utf-8")) if _LOOPBACK.exists() else 0


def compare(task: str, steps: int, seeds: int, folder: Path) -> dict[str, Any]:
    """Train one task both ways with every seed, in turns, and return its figures."""
    pairs = [
        [train(task, steps, seed, depth, folder) for depth in (None, MIN_DEPTH)] for seed in range(seeds)
    ]
    whole, partial = zip(*pairs, strict=True)
    accuracy, with_partial = (statistics.fmean(one.quality for one in runs) for runs in (whole, partial))
    qualities = [one.quality for one in whole]
    sent = sum(one.sent_bytes for one in whole)
    return {
        "step_time_ratio": round(statistics.median(part.step_s / one.step_s for one, part in pairs), 3),
        "accuracy_gap": round((accuracy - with_partial) / accuracy, 4),
        "seed_spread": round((max(qualities) - min(qualities)) / 2 / accuracy, 4),
        "traffic_ratio": round(sum(one.sent_bytes for one in partial) / sent, 3) if sent else None,
        "step_s": round(statistics.median(one.step_s for one in whole), 5),
        "partial_step_s": round(statistics.median(one.step_s for one in partial), 5),
        "accuracy": round(accuracy, 4),
        "partial_accuracy": round(with_partial, 4),
        "steps": steps,
    }


def main() -> None:
    parser = benchmark_parser(__doc__, quick="a few steps with one seed")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise RuntimeError("this benchmark needs two cores, one for each rank")
    steps, seeds = (QUICK_STEPS, 1) if arguments.quick else (STEPS, arguments.seeds)
    with temporary_folder() as folder:
        tasks = {task: compare(task, count, seeds, folder) for task, count in steps.items()}
    ratios = [one["step_time_ratio"] for one in tasks.values()]
    result = {
        "step_time_ratio": round(statistics.geometric_mean(ratios), 3),
        "accuracy_gap": max(one["accuracy_gap"] for one in tasks.values()),
        "min_depth": MIN_DEPTH,
        "tasks": tasks,
    }
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
