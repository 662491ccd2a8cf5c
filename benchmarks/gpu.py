"""Elastic training on GPUs over NCCL: equal replicas, pauses, recovery, step time, saves and memory.

    python -m benchmarks.gpu --json

With fewer GPUs than ranks, all ranks share the first GPU and talk over TCP (`ranks_share_gpu`): NCCL behaves as between GPUs,
but slower. Without CUDA nothing is measured, and one line says so. `--device cpu` measures over gloo.

`replicas_equal`: true if the whole state of two ranks is the same bit for bit after each of `compared_steps` steps that they
took together, among `changes` changes of size.
`grow_pause_s`, `shrink_pause_s`: pauses of live changes, as in `benchmarks.resize`.
`broadcast_s`: torch alone broadcasts the same bytes over the same transport. `grow_over_broadcast`: the first pause over it.
`recovery_s`: from the last step before SIGKILL of rank 1 to the next one, with an order that comes at once; the median of
`kills`.
`step_ratio_3ms`, `step_ratio_54ms`: step time of the library over that of `DistributedDataParallel` with one rank, as in
`benchmarks.overhead`, for steps of about so many milliseconds on an H100. `plain_step_3ms_s` and `plain_step_54ms_s` have their
actual time with `DistributedDataParallel`.
`save_blocks_s`: time in seconds for which a save of `saved_mb` of state on the device blocks training.
`save_blocks_ratio`: the same over the seconds until the save is complete.
`memory_growth_mb`: growth of the GPU's memory in use over the changes, after the first two, each time when rank 1 has ended. `host_memory_growth_mb`: the same
of rank 0's resident memory, which is both without a GPU.
`fsdp_bit_equal`: true if a change of size of a sharded network (FSDP2) keeps every bit of the state, as in `benchmarks.sharded`.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import checkpoint, overhead, replicas, resize, sharded
from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from benchmarks.node import Node
from benchmarks.overhead import Load
from headway.contract.agents import DEVICE_CPU, SlotInfo
from headway.storage.stores import open_storage
from worker_agent.devices.inventory import gpu_slots

SHARED = Path(__file__).parent / "scripts" / "on_one_gpu.py"
SHARDED_RANKS = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """Sizes and repetitions. `loads` has the networks by the milliseconds of their step on an H100."""

    size: str
    cycles: int
    steps: int
    kills: int
    repeats: int
    loads: dict[int, Load]
    saved_mb: int
    sharded_size: str


FULL = Effort(
    size="100M",
    cycles=25,
    steps=9,
    kills=3,
    repeats=5,
    loads={3: Load(512, 256, 30, 12), 54: Load(12_288, 768, 14, 7)},
    saved_mb=1500,
    sharded_size="34M",
)
QUICK = Effort(
    size="1M",
    cycles=2,
    steps=3,
    kills=1,
    repeats=1,
    loads={3: Load(64, 16, 4, 5), 54: Load(128, 32, 4, 5)},
    saved_mb=8,
    sharded_size="1M",
)


def make_node(folder: Path, ranks: int, *, cuda: bool) -> Node:
    """Return a node with a GPU for each rank, with one that all share, or with CPUs."""
    gpus = gpu_slots() if cuda else []
    if len(gpus) >= ranks:
        return Node(folder, gpus[:ranks])
    cpus = [SlotInfo(index=index, device_kind=DEVICE_CPU) for index in range(ranks)]
    return Node(folder, cpus, python=f"python {SHARED}" if cuda else "python")


def measure(effort: Effort, *, cuda: bool) -> dict[str, Any]:
    """Return all figures."""
    with temporary_folder() as folder:
        (folder / "two").mkdir()
        with make_node(folder / "two", replicas.RANKS, cuda=cuda) as node:
            result = replicas.measure_replicas(
                node, folder, effort.size, cycles=effort.cycles, steps=effort.steps, kills=effort.kills
            )
            live = resize.measure_live(node, folder, effort.size, effort.repeats)
            broadcast_s = statistics.median(resize.measure_broadcast(node, folder, effort.size)[1:])
            for name, load in effort.loads.items():
                found = overhead.measure(node, load, world_size=1, noise=False, against_ddp=True)
                result |= {f"step_ratio_{name}ms": found.ratio, f"plain_step_{name}ms_s": found.plain_step_s}
        (folder / "three").mkdir()
        with make_node(folder / "three", SHARDED_RANKS, cuda=cuda) as node:
            fsdp = sharded.measure_live(node, folder, effort.sharded_size, 1)
        storage = open_storage(str(folder / "saves"))
        saves = checkpoint.measure(storage, effort.saved_mb, effort.repeats, "cuda" if cuda else "cpu")
    result |= {
        "grow_pause_s": live["grow_pause_s"],
        "shrink_pause_s": live["shrink_pause_s"],
        "broadcast_s": broadcast_s,
        "grow_over_broadcast": live["grow_pause_s"] / broadcast_s,
        "save_blocks_s": saves["async_blocking_s"],
        "save_blocks_ratio": saves["ratio"],
        "fsdp_bit_equal": fsdp["bit_equal"],
        "parameters": effort.size,
        "saved_mb": effort.saved_mb,
    }
    return {key: round(one, 4) if isinstance(one, float) else one for key, one in result.items()}


def versions(*, cuda: bool) -> dict[str, Any]:
    """Return what the figures were measured on."""
    found: dict[str, Any] = {"device": "cpu", "transport": "gloo", "torch": torch.__version__}
    if cuda:
        import pynvml  # noqa: PLC0415  # it loads the driver's library

        pynvml.nvmlInit()
        found |= {
            "device": torch.cuda.get_device_name(0),
            "gpus": torch.cuda.device_count(),
            "ranks_share_gpu": torch.cuda.device_count() < replicas.RANKS,
            "transport": "nccl",
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
            "driver": pynvml.nvmlSystemGetDriverVersion(),
        }
        pynvml.nvmlShutdown()
    return found


def main() -> None:
    parser = benchmark_parser(__doc__, quick="1 M parameters, four changes, one kill")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    if cuda and not torch.cuda.is_available():
        sys.stderr.write("benchmarks.gpu skipped: torch finds no CUDA device here (--device cpu uses gloo)\n")
        return
    torch.set_num_threads(1)  # as in a rank that shares the host
    show({**measure(QUICK if arguments.quick else FULL, cuda=cuda), **versions(cuda=cuda)}, arguments)


if __name__ == "__main__":
    run_benchmark(main)
