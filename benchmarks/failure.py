"""Recovery time of a job after one of its two ranks is killed, on a complete local cluster as `headway up` starts it.

    python -m benchmarks.failure --json

A job trains on both slots of a node. One of its ranks gets SIGKILL, rank 1 and rank 0 in turns. The other rank continues
alone, and the job grows back before the next kill. The figures are medians of `--repeats` kills, from the survivor's log of
its steps:

`recovery_s`: from the survivor's last step before the kill to its first step alone.
`lost_steps`: largest number of steps that were repeated after a kill.
`grow_back_s`: from the kill until the job trains on two slots again.

The recovery consists of these parts, one after the other:

`detection_s`: until the launcher has reaped the rank. `report_s`: until the service has decided which ranks continue.
`order_s`: until the order is on the survivor's disk. `rebuild_s`: until the survivor is a member of the new generation.
`first_step_s`: until the survivor has taken a step.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arguments import benchmark_parser, run_benchmark, shared_folder, show, temporary_folder
from benchmarks.node import until
from headway.client.client import Client
from headway.contract import rank_lines, runtime
from headway.contract.orders import ORDER_FILE, member_id
from headway.contract.runtime import Switched
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, EventView, JobState
from headway.local.stack import LocalStack

SCRIPT = Path(__file__).parent / "scripts" / "losing.py"
STEPS = 50
"""Steps of two ranks before each kill."""
_POLL_S = 0.2
"""Seconds between two requests to the service; more frequent ones would slow the job."""
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Step of one process."""

    at_s: float
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class Process:
    """Process of a rank, with the folder of its run and its rank at the start."""

    pid: int
    run_folder: Path
    born_rank: int

    @property
    def id(self) -> str:
        return member_id(int(self.run_folder.name), self.born_rank)

    def switched(self) -> list[Switched]:
        lines = (self.run_folder / "control" / runtime.message_file(self.born_rank)).read_text(
            encoding="utf-8"
        )
        messages = [
            rank_lines.from_line(line) for line in lines.splitlines(keepends=True) if line.endswith("\n")
        ]
        return [one for one in messages if isinstance(one, Switched)]


class Victim:
    """Job on two slots whose ranks are killed.

    Args:
        client: client of the stack.
        data: folder of the stack.
        notes: folder that the ranks write their steps to, whichever user they run as.
    """

    def __init__(self, client: Client, data: Path, notes: Path) -> None:
        self._client = client
        self._data = data
        self._notes = notes
        spec = {
            "name": "failure",
            "workdir": str(SCRIPT.parent),
            "run": f"python {SCRIPT.name} {self._notes}",
            "elastic": {"min": 1, "max": 2},
            "checkpoint": {"every": "1h"},
        }
        self._job = client.submit(JobSpec.model_validate(spec)).id
        client.resize(self._job, 2)

    def wait_until_two_train(self) -> list[Process]:
        """Wait until two ranks train together according to the service, and return their processes by rank."""
        until("two ranks", self._together, self._must_live, every_s=_POLL_S)
        until("the job to run", self._runs_on_two, self._must_live, every_s=_POLL_S)
        found = {self._read(pid)[-1].rank: pid for pid in self._alive()}
        return [self._process(found[rank]) for rank in (0, 1)]

    def kill(self, rank: int) -> dict[str, float]:
        """Kill one of the two ranks, and return the times of the recovery."""
        processes = self.wait_until_two_train()
        victim, survivor = processes[rank], processes[1 - rank]
        killed_s = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        until(
            "the survivor",
            lambda: self._read(survivor.pid)[-1].world_size == 1,
            lambda: self._must_survive(survivor),
            every_s=0.02,
        )
        # An order to grow may soon replace the first order after the kill, so read its time now.
        ordered_s = (survivor.run_folder / "control" / ORDER_FILE).stat().st_mtime
        exited_s = (victim.run_folder / f"rank-{victim.born_rank}.exit").stat().st_mtime
        switched = next(one for one in survivor.switched() if one.at_s > killed_s)
        event = until("the event", lambda: self._lost_after(killed_s), self._must_live, every_s=_POLL_S)
        decided_s = event.at.timestamp()
        notes = self._read(survivor.pid)
        first = next(
            number for number, note in enumerate(notes) if note.at_s > killed_s and note.world_size == 1
        )
        before, after = notes[first - 1], notes[first]
        self.wait_until_two_train()
        return {
            "recovery_s": after.at_s - before.at_s,
            "detection_s": exited_s - killed_s,
            "report_s": decided_s - exited_s,
            "order_s": ordered_s - decided_s,
            "rebuild_s": switched.at_s - ordered_s,
            "first_step_s": after.at_s - switched.at_s,
            "grow_back_s": time.time() - killed_s,
            "lost_steps": switched.lost_steps,
        }

    def _together(self) -> bool:
        """Return True if the last steps of two processes were taken together."""
        last = [self._read(pid)[-STEPS:] for pid in self._alive()]
        return len(last) == 2 and all(
            len(notes) == STEPS and all(note.world_size == 2 for note in notes) for notes in last
        )

    def _runs_on_two(self) -> bool:
        job = self._client.job(self._job)
        return job.state is JobState.RUNNING and job.size == 2

    def _lost_after(self, at_s: float) -> EventView | None:
        return next(
            (
                event
                for event in self._client.events(self._job)
                if event.state is JobState.RECOVERING and event.at.timestamp() > at_s
            ),
            None,
        )

    def _must_survive(self, process: Process) -> None:
        if process.pid not in self._alive():
            events = "\n".join(
                f"{one.at} {one.kind}: {one.message}" for one in self._client.events(self._job)
            )
            raise RuntimeError(f"the survivor, process {process.id}, has ended too:\n{events}")

    def _must_live(self) -> None:
        job = self._client.job(self._job)
        if job.state in TERMINAL_STATES:
            raise RuntimeError(f"the job ended {job.state}: {job.message}")

    def _alive(self) -> list[int]:
        """Return the processes that have begun to train and have not ended."""
        pids = [int(file.name) for file in self._notes.iterdir()]
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    def _read(self, pid: int) -> list[StepRecord]:
        """Return the last steps of a process."""
        with (self._notes / str(pid)).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_BYTES))
            lines = file.read().splitlines(keepends=True)[1:]  # the first one may be a part
        fields = [line.decode().split() for line in lines if line.endswith(b"\n")]
        return [StepRecord(float(at_s), int(rank), int(world_size)) for at_s, rank, world_size in fields]

    def _process(self, pid: int) -> Process:
        for file in self._data.glob(f"agents/*/runs/{self._job}/*/rank-*.pid"):
            if json.loads(file.read_text(encoding="utf-8"))["pid"] == pid:
                return Process(pid, file.parent, int(file.stem.removeprefix("rank-")))
        raise RuntimeError(f"no agent knows the rank with process id {pid}")


def summary(kills: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure, and the maximum of lost steps."""
    medians = {key: statistics.median(kill[key] for kill in kills) for key in kills[0]}
    medians["lost_steps"] = max(kill["lost_steps"] for kill in kills)
    medians["slowest_s"] = max(kill["recovery_s"] for kill in kills)
    return {key: round(value, 4) for key, value in medians.items()} | {"kills": len(kills)}


def main() -> None:
    parser = benchmark_parser(__doc__, quick="two kills")
    parser.add_argument("--repeats", type=int, default=8)
    arguments = parser.parse_args()
    with (
        temporary_folder() as folder,
        LocalStack(folder / "stack", agents=1, slots=2) as stack,
        stack.client() as client,
    ):
        victim = Victim(client, stack.data, shared_folder(folder))
        kills = [victim.kill(1 - number % 2) for number in range(2 if arguments.quick else arguments.repeats)]
    result = summary(kills)
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
