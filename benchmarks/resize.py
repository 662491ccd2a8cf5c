"""Pause of training during a change of size: live, by a restart through the launcher, and by a restart with torchrun.

    python -m benchmarks.resize --json

A network with AdamW trains on one slot and on two in turns. A pause is the time from the end of the last step before the
change to the end of the first step after it, less one normal step of the new size, from rank 0's log of its steps. The
figures are medians of `repeats` changes in each direction.

`grow_pause_s`, `shrink_pause_s`: live changes of a script with `headway.init()`.
`newcomer_ready_s`: from the start of a new rank until it is ready to join, while training continues.
`restart_pause_s`: changes in both directions of a script without Headway, which saves, is stopped, is started at the other
size by the launcher, and loads.
`torchrun_restart_s`: the same script, stopped and started by torchrun.
`bare_broadcast_s`: torch alone broadcasts the state to a process that has received it before.
`first_broadcast_s`: the same to a process that receives it for the first time, such as a new rank.

The keys at the top are those of 17 M parameters. `sizes` has those of the other sizes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import stamps
from benchmarks.arguments import benchmark_parser, run_benchmark, temporary_folder
from benchmarks.node import Job, Node, find_slots, until
from headway.contract.agents import DEVICE_CPU, SlotInfo
from headway.contract.orders import member_id
from headway.contract.runtime import Ready, Switched
from headway.local.ports import free_port
from worker_agent.devices.inventory import gpu_slots

SCRIPTS = Path(__file__).parent / "scripts"
MAIN = "17M"
STEPS = 5
"""Steps between two changes."""
FIRST_STEPS = 10
BROADCASTS = 6


@dataclass(frozen=True, slots=True)
class Effort:
    """Number of changes of each kind at a size."""

    live: int
    restarts: int
    torchrun: int


EFFORTS = {"1M": Effort(7, 3, 1), "17M": Effort(5, 3, 2), "100M": Effort(3, 1, 1)}
QUICK = {"1M": Effort(1, 1, 1)}


def has_taken(file: Path, count: int, world_size: int) -> Callable[[], bool]:
    """Return a condition that is true once the last `count` steps were all of this size."""

    def condition() -> bool:
        last = stamps.read(file)[-count:]
        return len(last) == count and all(one.world_size == world_size for one in last)

    return condition


class Live:
    """Job whose rank 0 stays, while rank 1 joins, and leaves or is lost."""

    def __init__(self, job: Job) -> None:
        self.ready_s: list[float] = []
        self._job = job
        self._generation = 1
        job.start(1, world_size=1, ranks=[0], live=True)

    def grow(self) -> None:
        self._generation += 1
        newcomer = self._generation
        began = time.monotonic()
        self._job.start(newcomer, world_size=2, ranks=[1], live=True, store_of=1)
        self._job.until("the new rank", lambda: self._job.messages(newcomer, 1, Ready))
        self.ready_s.append(time.monotonic() - began)
        self._order({member_id(1, 0): 0, member_id(newcomer, 1): 1})

    def shrink(self) -> None:
        leaver = self._generation
        self._generation += 1
        self._order({member_id(1, 0): 0})
        self._job.wait_until_gone(leaver)

    def lose(self) -> None:
        """Kill rank 1, and let rank 0 go on alone."""
        self._job.kill_rank(self._generation, 1)
        self._generation += 1
        self._order({member_id(1, 0): 0}, lost=True)

    def _order(self, members: dict[str, int], *, lost: bool = False) -> None:
        self._job.order(self._generation, members, store_of=1, lost=lost)
        self._job.until("the switch", self._has_switched)

    def _has_switched(self) -> bool:
        return any(one.generation == self._generation for one in self._job.messages(1, 0, Switched))


def measure_live(node: Node, folder: Path, size: str, repeats: int) -> dict[str, float]:
    """Return the figures of live changes."""
    file = folder / "live-steps"
    run = f"{node.python} {SCRIPTS / 'resizing.py'} {size} {file}"
    with Job(node, f"live-{size}", run, checkpoint_uri=(folder / "checkpoints").as_uri()) as job:
        live = Live(job)
        job.until("the first steps", has_taken(file, FIRST_STEPS, 1))
        for _ in range(repeats):
            live.grow()
            job.until("steps of two ranks", has_taken(file, STEPS, 2))
            live.shrink()
            job.until("steps of one rank", has_taken(file, STEPS, 1))
    noted = stamps.read(file)
    found = stamps.pauses(noted)
    return {
        "grow_pause_s": statistics.median(one.pause_s for one in found if one.grows),
        "shrink_pause_s": statistics.median(one.pause_s for one in found if not one.grows),
        "longest_grow_pause_s": max(one.pause_s for one in found if one.grows),
        "longest_shrink_pause_s": max(one.pause_s for one in found if not one.grows),
        "newcomer_ready_s": statistics.median(live.ready_s),
        "step_s": stamps.step_s([one for one in noted if one.world_size == 1]),
        "step_of_two_s": stamps.step_s([one for one in noted if one.world_size == 2]),
    }


def measure_restarts(node: Node, folder: Path, size: str, repeats: int) -> float:
    """Return the median pause of restarts through the launcher."""
    file = folder / "restart-steps"
    run = f"{node.python} {SCRIPTS / 'restarting.py'} {size} {file} {folder / 'restart-checkpoint'}"
    with Job(node, f"restart-{size}", run) as job:
        for generation in range(1, repeats + 2):
            world_size = 2 - generation % 2
            job.start(generation, world_size=world_size, ranks=range(world_size))
            job.until(f"steps of {world_size} ranks", has_taken(file, STEPS, world_size))
            if generation <= repeats:
                job.terminate(generation)
                job.wait_until_gone(generation)
    return statistics.median(one.pause_s for one in stamps.pauses(stamps.read(file)))


def measure_torchrun(folder: Path, size: str, slots: Sequence[SlotInfo], repeats: int) -> float:
    """Return the median pause of restarts with torchrun."""
    file = folder / "torchrun-steps"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if slots[0].device_kind == DEVICE_CPU:
        env["CUDA_VISIBLE_DEVICES"] = ""
    for number in range(repeats + 1):
        world_size = 1 + number % 2
        argv = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={world_size}"]
        argv += [f"--master-port={free_port()}", str(SCRIPTS / "restarting.py"), size, str(file)]
        with (folder / "torchrun.log").open("a") as log:
            process = subprocess.Popen(
                [*argv, str(folder / "torchrun-checkpoint")], env=env, stdout=log, stderr=log
            )
        try:
            until(
                f"steps of {world_size} ranks under torchrun",
                has_taken(file, STEPS, world_size),
                lambda process=process: _must_run(process, folder / "torchrun.log"),  # type: ignore[misc]
            )
        finally:
            process.terminate()  # it passes the signal on to the ranks, and waits for them
            process.wait()
    return statistics.median(one.pause_s for one in stamps.pauses(stamps.read(file)))


def _must_run(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.poll() is not None:
        raise RuntimeError(
            f"torchrun ended with {process.returncode}:\n{log.read_text(encoding='utf-8')[-2000:]}"
        )


def measure_broadcast(node: Node, folder: Path, size: str) -> list[float]:
    """Return the seconds of repeated broadcasts of the state by torch."""
    file = folder / "broadcast-times"
    run = f"{node.python} {SCRIPTS / 'broadcasting.py'} {size} {file} {BROADCASTS}"
    with Job(node, f"broadcast-{size}", run) as job:
        job.start(1, world_size=2, ranks=range(2))
        job.until("broadcasts", file.exists)
    taken: list[float] = json.loads(file.read_text(encoding="utf-8"))
    return taken


def measure(node: Node, size: str, effort: Effort) -> dict[str, float]:
    """Return all figures of one size."""
    with temporary_folder() as folder:
        result = measure_live(node, folder, size, effort.live)
        result["restart_pause_s"] = measure_restarts(node, folder, size, effort.restarts)
        result["torchrun_restart_s"] = measure_torchrun(folder, size, node.host.slots, effort.torchrun)
        first, *others = measure_broadcast(node, folder, size)
    bare_s = statistics.median(others)
    result |= {
        "bare_broadcast_s": bare_s,
        "first_broadcast_s": first,
        "grow_over_broadcast": result["grow_pause_s"] / bare_s,
        "torchrun_over_live": result["torchrun_restart_s"] / result["grow_pause_s"],
        "torchrun_over_restart": result["torchrun_restart_s"] / result["restart_pause_s"],
    }
    return {key: round(value, 4) for key, value in result.items()} | {"repeats": effort.live}


def table(sizes: dict[str, dict[str, float]]) -> str:
    """Return a table with the figures of all sizes."""
    keys = next(iter(sizes.values()))
    lines = ["".join([f"{'':24}", *(f"{size:>10}" for size in sizes)])]
    lines += ["".join([f"{key:24}", *(f"{one[key]:>10.4g}" for one in sizes.values())]) for key in keys]
    return "\n".join(lines)


def main() -> None:
    parser = benchmark_parser(__doc__, quick="1 M parameters, once each way")
    arguments = parser.parse_args()
    slots = find_slots(2)
    if slots[0].device_kind == DEVICE_CPU and gpu_slots():
        sys.stderr.write("live resize needs two GPUs, but this machine has one: measuring on the CPU\n")
    efforts = QUICK if arguments.quick else EFFORTS
    with temporary_folder() as folder, Node(folder, slots) as node:
        sizes = {size: measure(node, size, effort) for size, effort in efforts.items()}
    main_size = MAIN if MAIN in sizes else next(iter(sizes))
    others = {size: figures for size, figures in sizes.items() if size != main_size}
    result = {**sizes[main_size], "parameters": main_size, "device": slots[0].device_kind, "sizes": others}
    print(json.dumps(result) if arguments.json else table(sizes))


if __name__ == "__main__":
    run_benchmark(main)
