"""Forecasts of a job's time and cost at every size that it could have."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, Field


class Confidence(StrEnum):
    """Confidence in a forecast, by the distance of the speed's P90 from its median: small, moderate or large."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Mark(StrEnum):
    """Distinctions of a feasible configuration.

    `front`: no other configuration is both faster and cheaper. `knee`: the configuration of the front beyond
    which more speed starts to cost much more.
    """

    PRESENT = "present"
    FRONT = "front"
    KNEE = "knee"
    SMALLEST = "smallest"
    FASTEST = "fastest"


class WorkSource(StrEnum):
    """Source of the estimate of the remaining work."""

    SCRIPT = "script"
    CLASS = "class"
    TARGET = "target"
    UNKNOWN = "unknown"


class ConfigurationForecast(BaseModel):
    """The forecast of one configuration.

    Goodput is progress in samples per second, counted at the batch of the job file, or in the job's unit; the batches are 0
    where the script does not say how large they are. It lies between `low` and
    `high` with a probability of 80 %. Times and costs are those to the job's end. They stay within P90 with a
    probability of 90 %. A value is None if neither the job nor its class was ever measured. Times and costs
    are also None while the remaining work is unknown.
    """

    device_kind: str
    slots: int
    nodes: int
    goodput: float | None
    goodput_low: float | None
    goodput_high: float | None
    speedup: float
    """Goodput divided by the smallest configuration's goodput per slot."""
    one_slot_measured: bool = True
    """True if the job or its class was measured on one slot; otherwise the speedup is an assumption."""
    confidence: Confidence
    global_batch: int
    local_batch: int
    accumulation: int
    """Forward and backward passes of a slot in one step."""
    time_s: float | None
    time_p90_s: float | None
    cost_usd: float | None
    cost_p90_usd: float | None
    usd_per_h: float
    depth: float | None = None
    """Mean share of the layers through which ranks back-propagate, with partial back-propagation."""
    why_not_now: str = ""
    """Reason why the job cannot have the configuration now; empty where it could, or has it."""
    marks: list[Mark] = Field(default_factory=list)


class Work(BaseModel):
    """The remaining work in samples, or in the `unit` of the job; None where it is unknown."""

    samples: float | None
    samples_p90: float | None
    source: WorkSource
    reason: str
    unit: str = "samples"


class ScoredPrediction(BaseModel):
    """A round's prediction for one generation and the measurement, in samples per second."""

    generation: int
    device_kind: str
    slots: int
    predicted: float
    low: float
    high: float
    measured: float


class PredictionScore(BaseModel):
    """Accuracy of the predictions so far; None before anything was measured.

    `median_ratio` is predicted / measured. `coverage` is the share of measurements between `low` and `high`;
    0.8 means that the intervals are calibrated.
    """

    count: int
    median_ratio: float | None
    median_error: float | None
    p90_error: float | None
    coverage: float | None


class SearchPhase(StrEnum):
    """Phase of the search for a job's configuration: visiting sizes, settled on one, or impossible."""

    VISITING = "visiting"
    SETTLED = "settled"
    OFF = "off"


class SearchView(BaseModel):
    """The search for a job's best configuration (`goal.search`), and its cost so far.

    `time_s` and `cost_usd` are totals of all visits, during which training continued. `overhead_s` and
    `overhead_usd` are the excess over the same work on the best configuration known now. Where slots have no
    price, slot-hours replace dollars. `overhead_share` is the overhead as a share of the run, in time or cost
    as the goal demands. It may not exceed `bound`.
    """

    mode: str
    phase: SearchPhase
    device_kind: str | None = None
    """Device kind of the configuration that the search wants now: the next visit, or its choice."""
    slots: int | None = None
    """Slots of that configuration."""
    global_batch: int | None = None
    """Global batch of that configuration; None for a job that does not adapt its batch."""
    place: str = ""
    """Display text of that configuration, with its market: `2 a100 (spot) slots`."""
    visited: int = 0
    visits: int = 0
    """Number of configurations that the search intends to visit."""
    shown: int = 0
    """Number of these not visited because earlier jobs of the class have measured them."""
    skipped: int = 0
    """Number of these skipped because their visit would exceed the bound."""
    time_s: float = 0.0
    cost_usd: float = 0.0
    overhead_s: float = 0.0
    overhead_usd: float = 0.0
    overhead_share: float | None = None
    """Overhead as a share of the run; None while the length of the run is unknown."""
    bound: float
    reason: str


class TargetProgress(BaseModel):
    """Position of a job on the way to `goal.target`. The job ends when two of its last three values reach it.

    `falls` is True if the metric falls to the value, and False if it rises. Where the job file does not say, the
    first value shows it; None before.
    """

    metric: str
    value: float
    falls: bool | None = None
    recent: list[float] = Field(default_factory=list)
    """The last three reported values, oldest first."""
    present: float | None = None
    """Median of these values; None for fewer than three."""
    points: list[list[float]] = Field(default_factory=list)
    """Pairs of work and median, to which the forecast fits a curve."""
    expected_work: float | None = None
    """Work at which the metric is expected to reach the value, P50; None if its curve does not show it.

    Work is reference samples for a job that ends by progress, else samples.
    """
    expected_work_p90: float | None = None
    reached_samples: int | None = None
    """Samples at which the metric reached the value; None before."""


class KeptForecast(BaseModel):
    """A stored forecast, made when `share` of the job's work was done, and the actual result.

    Time is training time from that moment, without waits for slots. Cost is at the prices of that moment.
    None: unknown at that moment, or the job has not ended.
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
    """Prices at that moment, by device kind."""
    took_s: float | None = None
    cost_was_usd: float | None = None

    @property
    def time_ratio(self) -> float | None:
        """Predicted time divided by measured time."""
        return self.time_s / self.took_s if self.took_s else None

    @property
    def cost_ratio(self) -> float | None:
        """Predicted cost divided by actual cost; None where nothing had a price."""
        return self.cost_usd / self.cost_was_usd if self.cost_usd and self.cost_was_usd else None


class ForecastView(BaseModel):
    """Forecast of a job at each size, and the accuracy of its forecasts so far."""

    job_id: str
    name: str
    at: datetime
    work: Work
    configurations: list[ConfigurationForecast]
    score: PredictionScore
    predictions: list[ScoredPrediction]
    """Latest predictions, newest first."""
    kept: list[KeptForecast] = Field(default_factory=list)
    """Forecasts made at submit and after a tenth of the work, against the actual result."""
    search: SearchView | None = None
    goal_target: TargetProgress | None = None


class DeadlineVerdict(StrEnum):
    """Outlook of a job on its deadline.

    `feasible`: slots for it can be guaranteed now. `feasible_from`: they can from a later time on.
    `infeasible`: the P90 finish of no size is in time beside the jobs that come first. `unknown`: no forecast.
    """

    FEASIBLE = "feasible"
    FEASIBLE_FROM = "feasible_from"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


class DeadlineOutlook(BaseModel):
    """Outlook of a job on its deadline.

    For a feasible deadline, `slots` of `device_kind` from `starts_at` on end it by `finish_p90_at` with 90 %.
    For an infeasible one, `nearest_deadline` is the earliest P90 finish, and `nearest_slots` the smallest size
    beyond `elastic.max` that would meet it.
    """

    verdict: DeadlineVerdict
    deadline: datetime
    device_kind: str | None = None
    slots: int | None = None
    starts_at: datetime | None = None
    finish_p90_at: datetime | None = None
    nearest_deadline: datetime | None = None
    nearest_slots: int | None = None
    message: str


class PlanView(BaseModel):
    """Forecast of a job that is not submitted. Nothing is stored."""

    name: str
    at: datetime
    job_class: str
    """Class of jobs whose measurements the forecast uses."""
    work: Work
    configurations: list[ConfigurationForecast]
    warnings: list[str]
    deadline: DeadlineOutlook | None = None
    """Outlook on `goal.deadline`; None without one."""
