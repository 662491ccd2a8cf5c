"""The cost of copies of shards (`elastic.redundancy: neighbour`) in each step, and that of a lost rank with them.

Part of `benchmarks.sharded`.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.node import Job, Node
from benchmarks.stamps import complete_lines
from headway.contract import runtime
from headway.contract.orders import member_id
from headway.contract.runtime import Switched

SCRIPT = Path(__file__).parent / "scripts" / "redundancy.py"
RANKS = 2
WARM_UP = 3
"""First steps of a run, which create state and buffers."""


def measure_redundancy(
    node: Node, folder: Path, size: str, *, batch: int, steps: int, repeats: int
) -> dict[str, Any]:
    """Return the figures of a size at a global batch: medians of so many pairs of runs of so many steps."""
    ratios, without_s, losses = [], [], []
    for number in range(repeats):
        plain = _run(node, folder, f"plain-{size}-{batch}-{number}", size, batch, steps, redundant=False)
        copied = _run(node, folder, f"copied-{size}-{batch}-{number}", size, batch, steps, redundant=True)
        ratios.append(copied[0] / plain[0])
        without_s.append(plain[0])
        losses.append(copied[1])
    return {
        "redundancy_step_ratio": statistics.median(ratios),
        "redundancy_step_s": statistics.median(without_s),
        "redundancy_batch": batch,
        "lost_steps": max(lost.lost_steps for lost in itertools.chain.from_iterable(losses)),
        "loss_pause_s": statistics.median(lost.pause_s for lost in itertools.chain.from_iterable(losses)),
    }


def _run(
    node: Node, folder: Path, name: str, size: str, batch: int, steps: int, *, redundant: bool
) -> tuple[float, list[Switched]]:
    """Return the median seconds of a step, and the reports of the survivors of a loss if the job survives one."""
    file = folder / name
    env = {runtime.ENV_REDUNDANCY: "neighbour"} if redundant else {}
    with Job(node, name, f"{node.python} {SCRIPT} {size} {batch} {file}", env=env) as job:
        job.start(1, world_size=RANKS, ranks=range(RANKS), live=True)
        for number in range(1, WARM_UP + steps + 1):  # each step has the whole patience
            job.until(f"step {number}", lambda number=number: len(_times(file)) >= number)  # type: ignore[misc]
        step_s = statistics.median(_times(file)[WARM_UP:])
        return step_s, _lose_a_rank(job) if redundant else []


def _lose_a_rank(job: Job) -> list[Switched]:
    """Kill the last rank, order the others to go on, and return their reports."""
    job.kill_rank(1, RANKS - 1)
    members = {member_id(1, rank): rank for rank in range(RANKS - 1)}
    job.order(2, members, store_of=1, lost=True)
    return [job.until("the switch", _switch_of(job, rank)) for rank in range(RANKS - 1)]


def _switch_of(job: Job, rank: int) -> Callable[[], Switched | None]:
    return lambda: next((one for one in job.messages(1, rank, Switched) if one.generation == 2), None)


def _times(file: Path) -> list[float]:
    """Return the times in the complete lines of a file."""
    return [float(line) for line in complete_lines(file)]
