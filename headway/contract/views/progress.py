"""Position of a job in its training, and the work that is left to its end."""

from __future__ import annotations

from pydantic import BaseModel, Field

from headway.contract.values.quantities import tenths
from headway.contract.views.forecasts import TargetProgress


class LossProgress(BaseModel):
    """Losses of a job whose script does not say how long it is."""

    recent: list[float] = Field(default_factory=list)
    """The last three reported values, oldest first."""
    points: list[list[float]] = Field(default_factory=list)
    """Pairs of work and median, to which a curve is fitted."""
    converged_work: float | None = None
    """Work at which an epoch lowers the loss by at most 1 % of the largest loss; None without a curve.

    The job may train far beyond it. Ended jobs show how far.
    """


UNITS = ("samples", "steps", "batches")
"""Units in which jobs count their samples: steps or batches of a rank where a script does not say how large they are."""


class WorkProgress(BaseModel):
    """Samples, progress and target of a job. Samples are committed samples since the job began."""

    epoch: int | None = None
    samples: int = 0
    unit: str = "samples"
    """Unit of `samples` and of all other work of the job: one of `UNITS`."""
    total_samples: int | None = None
    progress: float | None = None
    """Training progress in reference samples, those of steps of the job's own batch; None: it equals `samples`."""
    total_progress: float | None = None
    """Progress at which the job ends; None if it ends at `total_samples`, or does not say."""
    dataset_samples: int | None = None
    """Samples in an epoch; None until a script whose batch may change reports it."""
    train_step: int | None = None
    """Steps so far, of the job's own batch, of a script that counts steps; None for others."""
    train_steps: int | None = None
    """Steps at which such a script ends."""
    efficiency: float | None = None
    """Progress per sample read, as last reported; None where the batch does not change."""
    samples_per_s: float | None = None
    goal_target: TargetProgress | None = None
    """Progress to the target of the job file; None without one."""

    @property
    def work_done(self) -> float:
        """Work so far in the unit of `work_total`: reference samples if the job ends by progress, else samples."""
        return self.samples if self.total_progress is None or self.progress is None else self.progress

    @property
    def work_total(self) -> float | None:
        """Work at which the job ends; None if its script does not say."""
        return self.total_samples if self.total_progress is None else self.total_progress

    @property
    def work_end(self) -> float | None:
        """Work at which the job is expected to end: its total, or less if it reaches its target first."""
        expected = None if self.goal_target is None else self.goal_target.expected_work
        known = [float(one) for one in (self.work_total, expected) if one is not None]
        return max(min(known), float(self.work_done)) if known else None

    @property
    def work_share(self) -> float | None:
        """Share of the work that is done, from 0 to 1; None where the total is unknown."""
        return min(1.0, self.work_done / self.work_total) if self.work_total else None

    @property
    def position_text(self) -> str:
        """Position in steps or epochs, where samples do not say it; empty elsewhere.

        Steps: `step 740 of 1,000`. Epochs by progress and as read, where they differ: `epoch 7.4 of 10 (progress), 9.1 read`.
        """
        if self.train_step is not None and self.train_steps is not None:
            return f"step {min(self.train_step, self.train_steps):,} of {self.train_steps:,}"
        if self.unit in {"steps", "batches"} and self.total_samples:
            one = {"steps": "step", "batches": "batch"}[self.unit]
            return f"{one} {self.samples:,} of {self.total_samples:,}"
        if self.progress is None or not self.dataset_samples or self.progress == self.samples:
            return ""
        made, read = (tenths(one / self.dataset_samples) for one in (self.progress, self.samples))
        total = self.total_progress or self.total_samples
        of = f" of {round(total / self.dataset_samples)}" if total else ""
        return f"epoch {made}{of} (progress), {read} read"

    @property
    def time_left_s(self) -> float | None:
        """Seconds to the end at the present speed; None where the end or the speed is unknown."""
        worth = 1.0 if self.total_progress is None or self.efficiency is None else self.efficiency
        end = self.work_end
        if not end or not self.samples_per_s or not worth > 0.0:
            return None
        return max(0.0, end - self.work_done) / (self.samples_per_s * worth)
