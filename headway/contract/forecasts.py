"""What a job is expected to take, in time and money, at every size that it could have."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, Field


class Confidence(StrEnum):
    """How far an expectation is to be believed: measured on this very configuration or near it, somewhere, or nowhere."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Mark(StrEnum):
    """What is special about a configuration, of those that are feasible at all.

    `front`: none is both faster and cheaper. `knee`: the one of the front from which more speed begins to cost much.
    """

    PRESENT = "present"
    FRONT = "front"
    KNEE = "knee"
    SMALLEST = "smallest"
    FASTEST = "fastest"


class WorkSource(StrEnum):
    """Where the remaining work is known from."""

    SCRIPT = "script"
    CLASS = "class"
    UNKNOWN = "unknown"


class ConfigurationForecast(BaseModel):
    """One configuration. Goodput is progress in samples per second, counted at the batch that the job file asks for;
    with 80 % it lies between `low` and `high`. Times and costs are to the job's end; with 90 % they are not above P90.
    None: the job and its class were never measured, or, of times and costs, it is not known how much is left to do.
    """

    device_kind: str
    slots: int
    nodes: int
    goodput: float | None
    goodput_low: float | None
    goodput_high: float | None
    speedup: float
    """Against one slot's share of the smallest configuration."""
    confidence: Confidence
    global_batch: int
    local_batch: int
    accumulation: int
    """Passes of a slot in one step."""
    time_s: float | None
    time_p90_s: float | None
    cost_usd: float | None
    cost_p90_usd: float | None
    usd_per_h: float
    why_not_now: str = ""
    """Why the job cannot have it now; empty where it could, or has it."""
    marks: list[Mark] = Field(default_factory=list)


class Work(BaseModel):
    """What is left to do, in samples; None where nobody knows."""

    samples: float | None
    samples_p90: float | None
    source: WorkSource
    reason: str


class ScoredPrediction(BaseModel):
    """What a round expected of one generation, and what was measured of it, in samples per second."""

    generation: int
    device_kind: str
    slots: int
    predicted: float
    low: float
    high: float
    measured: float


class PredictionScore(BaseModel):
    """What predictions were worth. `median_ratio` is predicted / measured, `coverage` the share of measurements between
    `low` and `high`: 0.8 is honest. None before anything was measured.
    """

    count: int
    median_ratio: float | None
    median_error: float | None
    p90_error: float | None
    coverage: float | None


class ForecastView(BaseModel):
    """What a job would take at each size, and how well it was foretold so far."""

    job_id: str
    name: str
    at: datetime
    work: Work
    configurations: list[ConfigurationForecast]
    score: PredictionScore
    predictions: list[ScoredPrediction]
    """The latest ones, newest first."""


class PlanView(BaseModel):
    """What a job would take if it was submitted. Nothing is stored."""

    name: str
    at: datetime
    job_class: str
    """Jobs of this class are what the expectations rest on."""
    work: Work
    configurations: list[ConfigurationForecast]
    warnings: list[str]
