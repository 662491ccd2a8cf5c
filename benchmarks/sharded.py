"""Changes of size of a sharded network (FSDP2) in place, over gloo on the CPU.

    python -m benchmarks.sharded --json

A network with AdamW trains on 2, 3, 2, 1 and 2 slots. Its state consists of the parameters and two averages of each.

`pause_s`: median pause of rank 0, from the end of a step to the start of the next, with the transfer between them.
`restart_s`: the same script is stopped on 2 slots, saves a checkpoint, starts on 3 and loads it: from the last step before to
the end of the first step after.
`broadcast_s`: torch alone broadcasts the whole state to one process.
`bytes_over_least`: bytes that the ranks received when they grew from 2 to 3, over the least possible.
`peak_ratio`: peak of rank 0's memory in a change, over that in the steps before.
`loss_error`: largest difference of a loss from that of a run on 2 slots without changes, over the first loss.
`bit_equal`: true if the checksum of the whole state after each change is that before.
`redundancy_step_ratio`: median step time on 2 slots with `elastic.redundancy: neighbour`, over that without, at a global batch
of `redundancy_batch` samples. `redundancy_step_s`: the latter.
`lost_steps`: most steps that survivors repeated after SIGKILL of a rank, with redundancy. `loss_pause_s`: their pause.

The keys at the top are those of 34 M parameters. `sizes` has those of the other sizes.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import stamps
from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from benchmarks.node import Job, Node
from benchmarks.redundancy import measure_redundancy
from benchmarks.resize import measure_broadcast
from benchmarks.scripts.networks import network
from headway.contract.agents import DEVICE_CPU, SlotInfo
from headway.contract.orders import member_id
from headway.contract.runtime import Ready, Switched
from headway.contract.values.meshes import MeshShape
from headway.train.sharding.boxes import Box, ShardLayout
from headway.train.sharding.plan import Planner
from service.domain.jobs.shard_order import new_ranks

SCRIPTS = Path(__file__).parent / "scripts"
MAIN = "34M"
STATE = 3
"""Tensors of the state for each parameter."""
SIZES = (3, 2, 1, 2)
"""Slots after each change. The first start has 2."""
STEPS = 3
"""Steps before each change and after the last."""
CYCLES = {"34M": 3, "100M": 1}
QUICK = {"1M": 1}
REDUNDANCY_BATCH = 512
REDUNDANCY_STEPS = 15


@dataclass(frozen=True, slots=True)
class Step:
    """A step as rank 0 writes it down: see `scripts/sharding.py`."""

    at_s: float
    world_size: int
    loss: float
    before: int
    after: int
    peak_between: int
    peak_within: int


def read(file: Path) -> list[Step]:
    """Return the complete lines of the file."""
    return [Step(**json.loads(line)) for line in stamps.complete_lines(file)]


def has_taken(file: Path, count: int, world_size: int) -> Callable[[], bool]:
    """Return a condition that is true once the last `count` steps were all of this size."""
    return lambda: stamps.ends_with(read(file), count, world_size)


class Live:
    """Job whose rank 0 stays while other ranks join and leave."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._generation = 1
        self._members = [member_id(1, rank) for rank in range(2)]
        job.start(1, world_size=2, ranks=range(2), live=True)

    def change(self, size: int) -> list[Switched]:
        """Change to this size, and return what the members of the new generation reported."""
        self._generation += 1
        generation = self._generation
        if size > len(self._members):
            kept = dict(zip(new_numbers(len(self._members), size), self._members, strict=True))
            new = [rank for rank in range(size) if rank not in kept]
            self._job.start(generation, world_size=size, ranks=new, live=True, store_of=1)
            for rank in new:
                self._job.until(
                    "a new rank",
                    lambda rank=rank: self._job.messages(generation, rank, Ready),  # type: ignore[misc]
                )
            self._members = [kept.get(rank, member_id(generation, rank)) for rank in range(size)]
        else:
            self._members = self._members[:size]
        ranks = {member: rank for rank, member in enumerate(self._members)}
        self._job.order(generation, ranks, store_of=1)
        return [self._switched(member, generation) for member in self._members]

    def _switched(self, member: str, generation: int) -> Switched:
        born, rank = map(int, member.split("."))

        def found() -> Switched | None:
            said = self._job.messages(born, rank, Switched)
            return next((one for one in said if one.generation == generation), None)

        return self._job.until("the switch", found)


def new_numbers(old: int, new: int) -> list[int]:
    """Return the ranks of `old` survivors among `new` ranks that divide the parameters."""
    return new_ranks(range(old), MeshShape(fsdp=old), MeshShape(fsdp=new))


def least_bytes(size: str, old: int, new: int) -> int:
    """Return the bytes that must move when the ranks grow from `old` to `new`."""
    planner = Planner(new)
    kept = new_numbers(old, new)
    moved = 0
    for one in network(size).parameters():
        by_rank: list[Box | None] = [None] * new
        for rank, box in zip(kept, ShardLayout((old,), (0,)).boxes(one.shape), strict=True):
            by_rank[rank] = box
        plan = planner.transfers(0, by_rank, ShardLayout((new,), (0,)).boxes(one.shape), one.itemsize)
        moved += STATE * sum(part.nbytes for part in plan if part.source != part.receiver)
    return moved


def measure_live(node: Node, folder: Path, size: str, cycles: int) -> dict[str, Any]:
    """Return the figures of changes in place."""
    file, undisturbed = folder / "live", folder / "undisturbed"
    run = f"{node.python} {SCRIPTS / 'sharding.py'} {size}"
    grown_bytes: list[float] = []
    pauses = []
    with Job(node, f"live-{size}", f"{run} {file}") as job:
        live = Live(job)
        job.until("the first steps", has_taken(file, STEPS, 2))
        for before, world_size in itertools.pairwise([2, *SIZES * cycles]):
            switched = live.change(world_size)
            pauses.append(switched[0].pause_s)
            if (before, world_size) == (2, 3):
                grown_bytes.append(sum(one.sync_bytes for one in switched) / 2)  # each is sent and received
            job.until(f"steps of {world_size} ranks", has_taken(file, STEPS, world_size))
    noted = read(file)
    with Job(node, f"undisturbed-{size}", f"{run} {undisturbed}") as job:
        job.start(1, world_size=2, ranks=range(2))
        job.until("as many steps", lambda: len(read(undisturbed)) >= len(noted))
    changes = [
        (before, after)
        for before, after in itertools.pairwise(noted)
        if before.world_size != after.world_size
    ]
    return {
        "pause_s": statistics.median(pauses),
        "longest_pause_s": max(pauses),
        "bytes_over_least": statistics.median(grown_bytes) / least_bytes(size, 2, 3),
        "peak_ratio": max(after.peak_between / before.peak_within for before, after in changes),
        "loss_error": max(
            abs(one.loss - other.loss) for one, other in zip(noted, read(undisturbed), strict=False)
        )
        / noted[0].loss,
        "bit_equal": all(before.after == after.before for before, after in changes),
        "changes": len(changes),
    }


def measure_restart(node: Node, folder: Path, size: str) -> float:
    """Return the seconds without training of a restart with a checkpoint."""
    file = folder / "restart"
    run = f"{node.python} {SCRIPTS / 'sharding.py'} {size} {file}"
    with Job(node, f"restart-{size}", run, checkpoint_uri=(folder / "checkpoints").as_uri()) as job:
        for generation, world_size in enumerate((2, 3), start=1):
            job.start(generation, world_size=world_size, ranks=range(world_size))
            job.until(f"steps of {world_size} ranks", has_taken(file, STEPS, world_size))
            if generation == 1:
                job.terminate(generation)
                job.wait_until_gone(generation)
    noted = read(file)
    last = max(number for number, one in enumerate(noted) if one.world_size == 2)
    return noted[last + 1].at_s - noted[last].at_s


def measure(node: Node, size: str, cycles: int) -> dict[str, Any]:
    """Return all figures of one size."""
    with temporary_folder() as folder:
        result = measure_live(node, folder, size, cycles)
        result["restart_s"] = measure_restart(node, folder, size)
        result |= measure_redundancy(
            node, folder, size, batch=REDUNDANCY_BATCH, steps=REDUNDANCY_STEPS, repeats=cycles
        )
        result["broadcast_s"] = statistics.median(measure_broadcast(node, folder, size)[1:])
    result["restart_over_pause"] = result["restart_s"] / result["pause_s"]
    result["pause_over_broadcast"] = result["pause_s"] / result["broadcast_s"]
    return result


def main() -> None:
    parser = benchmark_parser(__doc__, quick="1 M parameters, each change once")
    arguments = parser.parse_args()
    slots = [SlotInfo(index=index, device_kind=DEVICE_CPU) for index in range(3)]
    cycles = QUICK if arguments.quick else CYCLES
    with temporary_folder() as folder, Node(folder, slots) as node:
        sizes = {size: measure(node, size, count) for size, count in cycles.items()}
    main_size = MAIN if MAIN in sizes else next(iter(sizes))
    others = {size: figures for size, figures in sizes.items() if size != main_size}
    show({**sizes[main_size], "parameters": main_size, "sizes": others}, arguments)


if __name__ == "__main__":
    run_benchmark(main)
