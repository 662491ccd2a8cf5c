"""Progress of steps in units of the job's own batch, and the progress at which training ends. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from headway.train.gradients.clock import Clock

Until: TypeAlias = Literal["progress", "epochs"]
"""Measure of the end of training: progress in reference samples, or epochs as read."""
_ROUNDING = 1e-9
"""Relative shortfall of the progress that counts as rounding."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Progress of one step: reference samples, and steps of the job's own batch."""

    samples: float
    steps: float


def gain_of(batch: range, reference_batch: int, efficiency: float) -> Gain:
    """Return the gain of a step over `batch`, a range of positions in an epoch, at this statistical efficiency.

    The steps are those of `reference_batch` that begin in the range, so an epoch at efficiency 1 has as many as with
    that batch, its short last step included.
    """
    begun = -(-batch.stop // reference_batch) + (-batch.start // reference_batch)
    return Gain(len(batch) * efficiency, begun * efficiency)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingGoal:
    """The end of training: `epochs` epochs, by progress or as read, or `total_steps` steps where `epochs` is None.

    `total_samples` and `total_steps` are those to the end with the job's own batch. `dataset_samples` is the length of
    an epoch; None: the data have no epochs.
    """

    total_samples: int
    total_steps: int
    by_progress: bool
    epochs: int | None = None
    dataset_samples: int | None = None

    @classmethod
    def of_epochs(cls, epochs: int, dataset_samples: int, batch: int, *, by_progress: bool) -> TrainingGoal:
        """Return the goal of `epochs` epochs with steps of `batch` samples."""
        return cls(
            total_samples=epochs * dataset_samples,
            total_steps=epochs * -(-dataset_samples // batch),
            by_progress=by_progress,
            epochs=epochs,
            dataset_samples=dataset_samples,
        )

    @classmethod
    def of_steps(
        cls, steps: int, dataset_samples: int | None, batch: int, *, by_progress: bool
    ) -> TrainingGoal:
        """Return the goal of `steps` steps of `batch` samples; the last step of an epoch takes the rest of it."""
        samples = steps * batch
        if dataset_samples is not None:
            epochs, rest = divmod(steps, -(-dataset_samples // batch))
            samples = epochs * dataset_samples + min(rest * batch, dataset_samples)
        return cls(
            total_samples=samples,
            total_steps=steps,
            by_progress=by_progress,
            dataset_samples=dataset_samples,
        )

    @property
    def counts_steps(self) -> bool:
        """True if training ends after a number of steps instead of epochs."""
        return self.epochs is None

    def reached(self, epoch: int, progress: float, reference_steps: float) -> bool:
        """Return True if training is over, in `epoch`, at `progress` reference samples or `reference_steps`."""
        if self.epochs is None:
            return reference_steps >= self.total_steps * (1.0 - _ROUNDING)
        if not self.by_progress:
            return epoch >= self.epochs
        return progress >= self.total_samples * (1.0 - _ROUNDING)

    def clock(
        self, steps: int, reference_steps: float, samples: int, progress: float, *, within_step: bool = False
    ) -> Clock:
        """Return the clock of learning-rate schedules, which end with training although its last step may go beyond."""
        if self.by_progress:
            reference_steps = min(reference_steps, float(self.total_steps))
            progress = min(progress, float(self.total_samples))
        return Clock(steps, reference_steps, samples, progress, within_step)


def ends_by_progress(until: Until | None, *, adaptive: bool) -> bool:
    """Return True if training ends by progress: it does in a job whose batch may change, unless `until` is `epochs`.

    Raises:
        ValueError: `until` is neither "progress" nor "epochs".
    """
    if until is not None and until not in get_args(Until):
        raise ValueError(f'until is {until!r}; it must be "progress" or "epochs"')
    return adaptive and until != "epochs"
