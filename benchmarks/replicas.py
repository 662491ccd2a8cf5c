"""Ranks with whole replicas that come, go and are killed: whether their states stay equal, and what memory they take.

Part of `benchmarks.gpu`.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import stamps
from benchmarks.node import Job, Node
from benchmarks.resize import Live

SCRIPT = Path(__file__).parent / "scripts" / "replicas.py"
RANKS = 2
MB = 1e6
_STEPS_ALONE = 4
"""Steps of one rank after each change to it."""
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Step:
    """A step as a rank writes it down: see `scripts/replicas.py`."""

    at_s: float
    world_size: int
    step: int
    digest: int
    device_bytes: int
    resident_bytes: int


def read(file: Path) -> list[Step]:
    """Return the complete lines of the file."""
    return [Step(**json.loads(line)) for line in stamps.complete_lines(file)]


def compare(ranks: Sequence[Sequence[Step]]) -> tuple[int, bool]:
    """Return the number of steps that two processes took together, and whether their states were always equal."""
    digests: dict[int, list[int]] = {}
    for one in itertools.chain.from_iterable(ranks):
        if one.world_size == RANKS:
            digests.setdefault(one.step, []).append(one.digest)
    pairs = [found for found in digests.values() if len(found) == RANKS]
    return len(pairs), all(len(set(found)) == 1 for found in pairs)


def growth_mb(steps: Sequence[Step]) -> dict[str, float]:
    """Return the growth of memory in use from the first return to one rank until the last.

    That of the GPU counts if there is one. What a process allocates once, it has at the first return.
    """
    returns = list(_returns(steps))
    first, last = returns[0], returns[-1]
    host_mb = (last.resident_bytes - first.resident_bytes) / MB
    device_mb = (last.device_bytes - first.device_bytes) / MB
    return {"memory_growth_mb": device_mb if last.device_bytes else host_mb, "host_memory_growth_mb": host_mb}


def recoveries_s(steps: Sequence[Step]) -> list[float]:
    """Return the time from the last step of two ranks to the first of one, for each change to one rank."""
    return [
        after.at_s - before.at_s
        for before, after in itertools.pairwise(steps)
        if (before.world_size, after.world_size) == (RANKS, 1)
    ]


def measure_replicas(
    node: Node, folder: Path, size: str, *, cycles: int, steps: int, kills: int
) -> dict[str, Any]:
    """Return the figures of so many changes to two ranks and back, with so many steps of two ranks, and then of kills."""
    notes = folder / "replicas"
    notes.mkdir()
    with Job(node, "replicas", f"{node.python} {SCRIPT} {size} {notes}") as job:
        live = Live(job)
        job.until("the first rank", lambda: list(notes.glob("0-*")))
        (kept,) = notes.glob("0-*")

        def await_steps(count: int, world_size: int) -> None:
            job.until(
                f"steps of {world_size}",
                lambda: stamps.ends_with(read(kept), count, world_size),
                every_s=_POLL_S,
            )

        def await_end(processes: Sequence[int]) -> None:
            """Wait until these have ended, and for later steps: the memory of the GPU is that of all processes."""
            job.until("the end of rank 1", lambda: not any(map(is_running, processes)), every_s=_POLL_S)
            before = len(read(kept))
            job.until("later steps", lambda: len(read(kept)) >= before + _STEPS_ALONE, every_s=_POLL_S)

        await_steps(_STEPS_ALONE, 1)
        for _ in range(cycles):
            live.grow()
            await_steps(steps, RANKS)
            leaving = [process_of(one) for one in notes.iterdir() if one != kept]
            live.shrink()
            await_end(leaving)
            await_steps(_STEPS_ALONE, 1)
        undisturbed = read(kept)
        for _ in range(kills):
            live.grow()
            await_steps(steps, RANKS)
            live.lose()
            await_steps(_STEPS_ALONE, 1)
    compared, equal = compare([read(file) for file in notes.iterdir()])
    if compared < cycles * (steps - 1):
        raise RuntimeError(f"only {compared} steps of two ranks can be compared")
    return {
        "replicas_equal": equal,
        "compared_steps": compared,
        "changes": 2 * cycles,
        "recovery_s": statistics.median(recoveries_s(read(kept))[cycles:]),
        "kills": kills,
        **growth_mb(undisturbed),
    }


def process_of(file: Path) -> int:
    """Return the process id in the name of a rank's notes."""
    return int(file.name.rpartition("-")[2])


def is_running(process: int) -> bool:
    """Return True if this process exists and has not ended; its memory is free afterwards."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def _returns(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield the last step of each stretch of one rank that follows one of two."""
    for number, (size, group) in enumerate(itertools.groupby(steps, key=lambda one: one.world_size)):
        *_, last = group
        if number and size == 1:
            yield last
