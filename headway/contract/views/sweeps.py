"""Sweeps as the API shows them."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from headway.contract.spec_parameters import ParameterValue
from headway.contract.spec_sweep import Sweep
from headway.contract.views.jobs import JobState, Reason


class TrialView(BaseModel):
    """A trial: one job of a sweep.

    `value` is the best one of the sweep's metric so far; None if the job has not reported it. `metrics` has the latest
    value of each metric.
    """

    number: int
    job_id: str
    name: str
    state: JobState
    reason: Reason
    message: str
    parameters: dict[str, ParameterValue]
    value: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    started_at: datetime | None = None
    finished_at: datetime | None = None


class SweepSummary(BaseModel):
    """A sweep in a listing. `states` counts its trials by their states."""

    id: str
    name: str
    project: str
    owner: str
    submitted_at: datetime
    sweep: Sweep
    states: dict[JobState, int]


class SweepView(SweepSummary):
    """A sweep with its trials, by number. `best` is the number of the best one; None as long as there is no value."""

    best: int | None = None
    trials: list[TrialView]
