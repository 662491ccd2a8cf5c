"""Changes of size in frameworks with their own training loop, against the library's own loop, over gloo on the CPU.

    python -m benchmarks.frameworks --json

A small Llama with AdamW trains on one slot and on two in turns: in the library's own loop, in Hugging Face's Trainer, with
LoRA adapters of PEFT in the Trainer, in TRL's SFTTrainer, in a loop of Accelerate, and in Lightning. A pause is the time from
the end of the last step on one slot to the end of the first on two, less one normal step on two.

`worst_pause_ratio`: largest median pause of a framework, over that of the library's own loop with the same model.
`loss_error`: largest difference of a loss from that of a run of the framework on one slot, over the first loss.
`worst_changed_lines`: most lines that one of the recipes in `examples/frameworks` changes.
`pause_s`, `library_pause_s`, `changed_lines`: the figures of each framework or recipe.

The recipe of FSDP2 trains in the library's own loop, so only its lines count.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import stamps
from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from benchmarks.node import Job, Node
from benchmarks.resize import Live
from headway.contract.agents import DEVICE_CPU, SlotInfo
from tools.changed_lines import changed_lines

SCRIPT = Path(__file__).parent / "scripts" / "framing.py"
RECIPES = Path(__file__).parents[1] / "examples" / "frameworks"
LIBRARY = "library"
STEPS = 5
"""Steps before each change and after the last."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Size of the model, changes in each direction, and the frameworks."""

    size: str
    changes: int
    frameworks: tuple[str, ...]


FULL = Effort("16M", 5, ("trainer", "lora", "sft", "accelerate", "lightning"))
QUICK = Effort("1M", 1, ("accelerate",))


@dataclass(frozen=True, slots=True)
class Step:
    """A step as rank 0 writes it down: see `scripts/framing.py`."""

    at_s: float
    world_size: int
    loss: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Median pause of a growth, and the largest relative difference of a loss."""

    pause_s: float
    loss_error: float


def read(file: Path) -> list[Step]:
    """Return the complete lines of the file."""
    return [Step(**json.loads(line)) for line in stamps.complete_lines(file)]


def has_taken(file: Path, count: int, world_size: int) -> Callable[[], bool]:
    """Return a condition that is true once the last `count` steps were all of this size."""
    return lambda: stamps.ends_with(read(file), count, world_size)


def measure(node: Node, framework: str, effort: Effort) -> Figures:
    """Return the figures of one framework."""
    with temporary_folder() as folder:
        changed, undisturbed = folder / "changed", folder / "undisturbed"
        run = f"python {SCRIPT} {framework} {effort.size}"
        with Job(node, f"changed-{framework}", f"{run} {changed}") as job:
            live = Live(job)
            job.until("the first steps", has_taken(changed, STEPS, 1))
            for _ in range(effort.changes):
                live.grow()
                job.until("steps of two ranks", has_taken(changed, STEPS, 2))
                live.shrink()
                job.until("steps of one rank", has_taken(changed, STEPS, 1))
        steps = read(changed)
        with Job(node, f"undisturbed-{framework}", f"{run} {undisturbed}") as job:
            job.start(1, world_size=1, ranks=[0])
            job.until("as many steps", lambda: len(read(undisturbed)) >= len(steps))
        expected = read(undisturbed)
    found = stamps.pauses([stamps.Stamp(one.at_s, one.world_size) for one in steps])
    errors = [abs(one.loss - other.loss) for one, other in zip(steps, expected, strict=False)]
    pause_s = statistics.median(one.pause_s for one in found if one.grows)
    return Figures(pause_s, max(errors) / expected[0].loss)


def lines_of_recipes() -> dict[str, int]:
    """Return the changed lines of each recipe."""
    befores = {file.name.removesuffix("_before.py"): file for file in RECIPES.glob("*_before.py")}
    return {
        name: changed_lines(before, RECIPES / f"{name}_after.py") for name, before in sorted(befores.items())
    }


def main() -> None:
    parser = benchmark_parser(__doc__, quick="1 M parameters, Accelerate only, one change each way")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else FULL
    slots = [SlotInfo(index=index, device_kind=DEVICE_CPU) for index in range(2)]
    with temporary_folder() as folder, Node(folder, slots) as node:
        library = measure(node, LIBRARY, effort)
        figures = {name: measure(node, name, effort) for name in effort.frameworks}
    lines = lines_of_recipes()
    result = {
        "worst_changed_lines": max(lines.values()),
        "worst_pause_ratio": max(one.pause_s for one in figures.values()) / library.pause_s,
        "loss_error": max(one.loss_error for one in figures.values()),
        "library_pause_s": library.pause_s,
        "pause_s": {name: one.pause_s for name, one in figures.items()},
        "changed_lines": lines,
        "parameters": effort.size,
    }
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
