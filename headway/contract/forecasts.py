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


class SearchPhase(StrEnum):
    """Where the search for a job's configuration is: it tries sizes, has chosen, or cannot be made at all."""

    VISITING = "visiting"
    SETTLED = "settled"
    OFF = "off"


class SearchView(BaseModel):
    """The search for a job's best configuration (`goal.search`), and what it has cost so far.

    `time_s` and `cost_usd` are those of all visits, in which training went on. `overhead_s` and `overhead_usd` are what
    they took beyond the same work on what is now held for the best; where nothing has a price, slot-hours stand for
    dollars. `overhead_share` is that share of the run, of time or cost, whichever the goal is about, which may not exceed
    `bound`.
    """

    mode: str
    phase: SearchPhase
    device_kind: str | None = None
    """The kind and slots that it is to have now: a visit, or its choice."""
    slots: int | None = None
    place: str = ""
    """The same with the market, for people: `2 a100 (spot) slots`."""
    visited: int = 0
    visits: int = 0
    """How many sizes it wants to see in all."""
    skipped: int = 0
    """Of these, those that would have cost more than the bound allows."""
    time_s: float = 0.0
    cost_usd: float = 0.0
    overhead_s: float = 0.0
    overhead_usd: float = 0.0
    overhead_share: float | None = None
    """None while it is not known how long the job runs."""
    bound: float
    reason: str


class KeptForecast(BaseModel):
    """A forecast that was kept when `share` of the job's work was done, and at its end what came of it.

    Time is that of training from then on, without waits for slots; cost at the prices of then. None: not known then, or
    the job has not ended.
    """

    share: float
    at: datetime
    samples: int
    device_kind: str
    slots: int
    time_s: float
    time_p90_s: float
    cost_usd: float | None
    cost_p90_usd: float | None
    usd_per_slot_h: dict[str, float] = Field(default_factory=dict)
    """By device kind."""
    took_s: float | None = None
    cost_was_usd: float | None = None

    @property
    def time_ratio(self) -> float | None:
        """Predicted / measured."""
        return self.time_s / self.took_s if self.took_s else None

    @property
    def cost_ratio(self) -> float | None:
        """Predicted / measured; None where nothing had a price."""
        return self.cost_usd / self.cost_was_usd if self.cost_usd and self.cost_was_usd else None


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
    kept: list[KeptForecast] = Field(default_factory=list)
    """What was forecast when it was submitted and after a tenth of its work, against what happened."""
    search: SearchView | None = None


class PlanView(BaseModel):
    """What a job would take if it was submitted. Nothing is stored."""

    name: str
    at: datetime
    job_class: str
    """Jobs of this class are what the expectations rest on."""
    work: Work
    configurations: list[ConfigurationForecast]
    warnings: list[str]
