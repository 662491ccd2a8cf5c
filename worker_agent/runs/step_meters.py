"""Progress and speed of scripts without the library, computed from their steps as messages of the library."""

from __future__ import annotations

from dataclasses import dataclass

from headway.contract.agents import RunCommand
from headway.contract.runtime import FirstStep, Message, Metrics, Progress, Stepped
from worker_agent.runs.records import Run


@dataclass(frozen=True, slots=True)
class Unit:
    """Batch sizes of a step.

    Attributes:
        samples: size of one step in the unit of progress.
        global_batch: samples in a step of all ranks; 0 if unknown.
        local_batch: samples in a step of one rank; 0 if unknown.
        name: what is counted; None: samples.
    """

    samples: int
    global_batch: int
    local_batch: int
    name: str | None = None

    @classmethod
    def of(cls, command: RunCommand) -> Unit:
        """Return the batch sizes of a run.

        A step is the job file's global batch, or one batch per rank with `per-rank` batches, or one step of unknown size.
        """
        if command.progress_batch == "per-rank":
            return cls(command.world_size, command.world_size, 1, "batches")
        batch = command.global_batch
        if batch is None:
            return cls(1, 0, 0, "steps")
        return cls(batch, batch, max(1, batch // command.world_size))


class StepMeters:
    """Last reported step of each run, from which the time of the next steps is measured."""

    def __init__(self) -> None:
        self._latest: dict[str, Stepped] = {}

    def take(self, run: Run, stepped: Stepped) -> list[Message]:
        """Return the library's messages for this step. If the run uses the library, return only the values.

        The time before the first step of a run is not measured, because it includes imports and compilation.
        A step below the last one starts a new measurement, because the script then counts from the beginning.
        """
        if stepped.rank != 0:
            return []
        unit = Unit.of(run.command)
        samples = stepped.step * unit.samples
        generation, at_s = stepped.generation, stepped.at_s
        messages: list[Message] = []
        if not run.library:
            if not run.stepped:
                messages.append(
                    FirstStep(rank=0, generation=generation, at_s=at_s, samples=samples, plain=True)
                )
            messages.append(self._progress(run, stepped, unit))
        if stepped.values:
            values = stepped.values
            messages.append(
                Metrics(rank=0, generation=generation, at_s=at_s, epoch=0, samples=samples, values=values)
            )
        return messages

    def forget(self, run: Run) -> None:
        """Forget the last step of a finished run."""
        self._latest.pop(run.name, None)

    def _progress(self, run: Run, stepped: Stepped, unit: Unit) -> Progress:
        before = self._latest.get(run.name)
        self._latest[run.name] = stepped
        total = run.command.progress_total or stepped.total
        steps, took_s = 0, 0.0
        if before is not None and stepped.step > before.step and stepped.at_s > before.at_s:
            steps, took_s = stepped.step - before.step, stepped.at_s - before.at_s
        return Progress(
            rank=0,
            generation=stepped.generation,
            at_s=stepped.at_s,
            epoch=0,
            samples=stepped.step * unit.samples,
            total_samples=None if total is None else total * unit.samples,
            steps=steps,
            step_s_sum=took_s,
            step_s_squares=took_s * took_s / steps if steps else 0.0,
            global_batch=unit.global_batch,
            local_batch=unit.local_batch,
            accumulation=1,
            unit=unit.name,
        )
