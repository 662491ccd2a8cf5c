"""Final loss and time of training with an adaptive batch, against the constant batch at equal progress.

    python -m benchmarks.progress --json

Three tasks train on two slots: the examples `digits` and `gpt_char` (AdamW, rule `sqrt`), and a linear regression on data of
known noise (SGD, rule `adascale`). Each is measured at several batches in turn first. Then it trains with its own batch to the
end. Then it trains as an adaptive job to the same progress: the service's models choose its batch from these
measurements and from the gradient noise that the ranks report, and the batch changes in place.

`loss_ratio`: final loss with the adaptive batch over that with the constant one, on the same data, the mean of all seeds;
of the three tasks, the one furthest from 1.
`speedup_error`: largest error of the promised speedup, abs(measured / promised - 1). The models promise it at each report,
for the progress until the next one.

`tasks` has the figures of each task: `loss`, `constant_loss`, `speedup`, `promised`, `epochs_read`, `largest_batch`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from benchmarks.node import Job as Ranks
from benchmarks.node import Node
from headway.contract import runtime
from headway.contract.agents import DEVICE_CPU, SlotInfo
from headway.contract.orders import member_id
from headway.contract.runtime import Completed, Metrics, Progress, Switched
from headway.contract.spec import JobSpec
from service.domain.cluster.snapshot import Measurement
from service.domain.perf.batch_plan import Cells, best_batch, goodput_of
from service.domain.perf.efficiency import noise_scale
from service.domain.perf.learned import learn
from service.domain.shared.arrays import FloatArray
from service.usecases.jobs.planned import planned

SCRIPT = Path(__file__).parent / "scripts" / "progressing.py"
RANKS = 2
"""With two ranks the noise is measured without bias; a rank alone with one batch overestimates it by far under Adam."""
FIRST_STEPS = 100
"""Steps after which the gradient noise counts, as in the service."""
ENDLESS = 100_000
CYCLES = 4
"""Turns of the batches in the measurement of their speeds, so that a machine that changes its speed changes all of them."""
POLL_S = 0.05
"""Seconds between two looks at the messages, few enough to leave the processor to the rank."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the script `progressing.py`, with its batches and the rule of its learning rate."""

    name: str
    epochs: int
    batch: int
    most: int
    rule: str
    seeds: int = 3
    calibration_steps: int = 800


TASKS = (
    Task("digits", 24, 16, 128, "sqrt"),
    Task("gpt_char", 4, 16, 128, "sqrt", calibration_steps=200),
    Task("regression", 16, 16, 128, "adascale"),
)
QUICK = tuple(replace(task, epochs=2, seeds=1, calibration_steps=40) for task in (TASKS[0], TASKS[2]))


class Trainer:
    """Live ranks that train a task, whose global batch may be changed."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._generation = 1
        ranks.start(1, world_size=RANKS, ranks=range(RANKS), live=True)

    def messages(self, kind: type[Any]) -> list[Any]:
        """Return the messages of rank 0 of this type."""
        return self._ranks.messages(1, 0, kind)

    def change_batch(self, batch: int) -> None:
        """Order a batch, and wait until the ranks train with it or have ended."""
        self._generation += 1
        members = {member_id(1, rank): rank for rank in range(RANKS)}
        self._ranks.order(self._generation, members, store_of=1, batch=batch)
        self.until("the batch", lambda: self._switched() or bool(self.messages(Completed)))

    def has_taken(self, steps: int, batch: int) -> bool:
        """Return True once as many steps of a batch are reported."""
        return self.steps_of(batch) >= steps

    def steps_of(self, batch: int) -> int:
        """Return the number of reported steps of a batch."""
        return sum(one.steps for one in _settled(self.messages(Progress)).get(batch, ()))

    def has_reported(self, count: int) -> bool:
        """Return True after more than `count` reports of progress."""
        return len(self.messages(Progress)) > count

    def until(self, what: str, condition: Any) -> None:
        """Wait until the condition is true."""
        self._ranks.until(what, condition, every_s=POLL_S)

    def stop(self) -> None:
        """End the ranks and wait until they are gone."""
        self._ranks.terminate(1)
        self._ranks.wait_until_gone(1)

    def _switched(self) -> bool:
        return any(one.generation == self._generation for one in self.messages(Switched))


class Promise:
    """The service's models of a task, from measurements of its batches."""

    def __init__(self, task: Task, measured: Sequence[Measurement]) -> None:
        batch = {"policy": "adaptive", "global": task.batch, "max_global": task.most}
        spec = JobSpec.model_validate({"name": task.name.replace("_", "-"), "run": "true", "batch": batch})
        job = planned(spec, datetime.now(UTC))
        self._task = task
        self._model = learn([job], [DEVICE_CPU], {job.id: tuple(measured)}, {}).models.throughput[:, 0]

    def best_batch(self, present: int, noise: float) -> int:
        """Return the batch that the service would choose at this noise scale."""
        batch, _ = best_batch(self._cells(present, noise))
        return int(batch[0, 0])

    def speedup(self, batch: int, noise: float) -> float:
        """Return the goodput with a batch, relative to that with the task's own."""
        cells = self._cells(batch, noise)
        with_it, own = (goodput_of(cells, _one(size))[0, 0] for size in (batch, self._task.batch))
        return float(with_it / own)

    def _cells(self, present: int, noise: float) -> Cells:
        return Cells(
            model=self._model,
            slots=_one(RANKS),
            nodes=np.ones((1, 1)),
            noise_scale=_one(noise),
            reference=_one(self._task.batch),
            present=_one(present),
            least=_one(self._task.batch),
            most=_one(self._task.most),
            max_local=_one(np.inf),
        )


def _one(value: float) -> FloatArray:
    return np.full((1, 1), float(value))


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished run: final loss, seconds of the loop, epochs read, promised speedup and largest batch."""

    loss: float
    took_s: float
    epochs_read: float
    promised: float = 1.0
    largest_batch: int = 0


def ranks_of(node: Node, folder: Path, task: Task, kind: str, seed: int, epochs: int) -> Ranks:
    """Return the ranks of one run; all but a constant one may change their batch."""
    env = {runtime.ENV_GLOBAL_BATCH: str(task.batch), runtime.ENV_LR_RULE: task.rule}
    if kind != "constant":
        env[runtime.ENV_MAX_GLOBAL_BATCH] = str(task.most)
    name = f"{folder.name}-{task.name}-{kind}-{seed}"
    return Ranks(node, name, f"python {SCRIPT} {task.name} {epochs} {seed}", env=env)


def calibrate(node: Node, folder: Path, task: Task) -> list[Measurement]:
    """Return the measured speed of the task's batches, each twice the one before."""
    with ranks_of(node, folder, task, "calibration", 0, ENDLESS) as ranks:
        trainer = Trainer(ranks)
        batches = [task.batch << doubled for doubled in range((task.most // task.batch).bit_length())]
        for turn, batch in enumerate(CYCLES * batches):
            if turn:
                trainer.change_batch(batch)
            enough = trainer.steps_of(batch) + task.calibration_steps // CYCLES
            trainer.until(f"steps of {batch} samples", partial(trainer.has_taken, enough, batch))
        reports: list[Progress] = trainer.messages(Progress)
        trainer.stop()
    return [_measurement(batch, ones) for batch, ones in sorted(_settled(reports).items())]


def _settled(reports: Sequence[Progress]) -> dict[int, list[Progress]]:
    """Return the reports by batch, without the first of the run, which has the steps that fill caches and memory."""
    by_batch: dict[int, list[Progress]] = {}
    for one in [one for one in reports if one.steps][1:]:
        by_batch.setdefault(one.global_batch, []).append(one)
    return by_batch


def _measurement(batch: int, reports: Sequence[Progress]) -> Measurement:
    steps = sum(one.steps for one in reports)
    step_s = sum(one.step_s_sum for one in reports) / steps
    return Measurement(
        DEVICE_CPU,
        RANKS,
        batch / step_s,
        steps,
        global_batch=batch,
        local_batch=batch // RANKS,
        step_s=step_s,
        sync_s=sum(one.sync_s_sum for one in reports) / steps,
    )


def train(node: Node, folder: Path, task: Task, seed: int, promise: Promise | None = None) -> Trained:
    """Train to the end, with the constant batch or with those that the service's models choose."""
    kind = "constant" if promise is None else "adaptive"
    with ranks_of(node, folder, task, kind, seed, task.epochs) as ranks:
        trainer = Trainer(ranks)
        present = task.batch
        while not trainer.messages(Completed):
            reports = trainer.messages(Progress)
            wanted = present if promise is None else _wanted(promise, reports, present)
            if wanted != present:
                trainer.change_batch(wanted)
                present = wanted
            trainer.until("a report", partial(trainer.has_reported, len(reports)))
        trainer.until("the final loss", lambda: trainer.messages(Metrics))
        reports, (final,) = trainer.messages(Progress), trainer.messages(Metrics)
    last = reports[-1]
    return Trained(
        loss=final.values["loss"],
        took_s=final.values["took_s"],
        epochs_read=last.samples / last.total_samples * task.epochs,
        promised=1.0 if promise is None else _promised(promise, reports),
        largest_batch=max(one.global_batch for one in reports),
    )


def _wanted(promise: Promise, reports: Sequence[Progress], present: int) -> int:
    if not reports or sum(one.steps for one in reports) < FIRST_STEPS:
        return present
    noise = _noise(reports[-1])
    return promise.best_batch(present, noise) if np.isfinite(noise) else present


def _noise(report: Progress) -> float:
    if report.gradient_sqr is None or report.gradient_var is None:
        return np.nan
    return float(noise_scale(report.gradient_sqr, report.gradient_var))


def _promised(promise: Promise, reports: Sequence[Progress]) -> float:
    """Return the promised speedup of the whole run: its progress over the promised time of each part."""
    took = before = 0.0
    noise = np.nan
    for one in reports:
        assert one.progress is not None, "an adaptive job reports its progress"
        took += (one.progress - before) / promise.speedup(one.global_batch, noise)
        before, noise = one.progress, _noise(one)
    return before / took


def compare(node: Node, folder: Path, task: Task) -> dict[str, float]:
    """Return the figures of one task."""
    promise = Promise(task, calibrate(node, folder, task))
    runs = [
        (train(node, folder, task, seed), train(node, folder, task, seed, promise))
        for seed in range(task.seeds)
    ]
    constant, adaptive = zip(*runs, strict=True)
    loss, constant_loss = (statistics.fmean(one.loss for one in ones) for ones in (adaptive, constant))
    took_s, constant_s = (sum(one.took_s for one in ones) for ones in (adaptive, constant))
    return {
        "loss_ratio": loss / constant_loss,
        "speedup_error": abs(constant_s / took_s / statistics.fmean(one.promised for one in adaptive) - 1.0),
        "loss": loss,
        "constant_loss": constant_loss,
        "speedup": constant_s / took_s,
        "promised": statistics.fmean(one.promised for one in adaptive),
        "epochs": task.epochs,
        "epochs_read": statistics.fmean(one.epochs_read for one in adaptive),
        "batch": task.batch,
        "largest_batch": max(one.largest_batch for one in adaptive),
        "constant_s": constant_s / task.seeds,
    }


def _slots() -> list[SlotInfo]:
    return [SlotInfo(index=index, device_kind=DEVICE_CPU) for index in range(RANKS)]


def main() -> None:
    parser = benchmark_parser(__doc__, quick="two epochs of two tasks")
    parser.add_argument("--task", choices=[task.name for task in TASKS], help="this task only")
    arguments = parser.parse_args()
    chosen = [task for task in (QUICK if arguments.quick else TASKS) if arguments.task in (None, task.name)]
    with temporary_folder() as folder, Node(folder, _slots()) as node:
        tasks = {task.name: compare(node, folder, task) for task in chosen}
    result = {
        "loss_ratio": max((one["loss_ratio"] for one in tasks.values()), key=lambda ratio: abs(ratio - 1.0)),
        "speedup_error": max(one["speedup_error"] for one in tasks.values()),
        "tasks": tasks,
    }
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
