"""Budgets, and what was spent: by whom, on which market, and what became of it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from headway.contract.decisions import RowPrice
from headway.contract.spec import NAME_PATTERN

MOST_USD = 1e9
"""No budget is larger: beyond that somebody has slipped."""


class Category(StrEnum):
    """What became of the time of a slot that is paid for.

    USEFUL is training that counts. RESIZE is starting, stopping with a checkpoint, and the pause of a change. LOST is
    training that had to be done again, and the time from a failure until the job went on or held nothing. IDLE had no job.
    """

    USEFUL = "useful"
    RESIZE = "resize"
    LOST = "lost"
    IDLE = "idle"


class Scope(StrEnum):
    """Whose dollars count: a project's are those of the slots that its jobs hold, the cluster's all that is paid for."""

    CLUSTER = "cluster"
    PROJECT = "project"


class BudgetKind(StrEnum):
    """HOURLY_CAP limits the dollars per hour of what is held, at every moment. PERIOD is an amount for a day, a week or a
    month. LONG_RUN is an average in dollars per hour that the cluster keeps to in the long run.
    """

    HOURLY_CAP = "hourly_cap"
    PERIOD = "period"
    LONG_RUN = "long_run"


class Period(StrEnum):
    """In UTC; a week begins on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class BudgetRequest(BaseModel):
    """A budget as it is to be. `usd` is per hour, but for PERIOD, where it is for the whole period."""

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        json_schema_extra={
            "examples": [
                {"kind": "period", "usd": 100, "period": "day", "project": "vision", "hard": True},
                {"kind": "hourly_cap", "usd": 12, "hard": True},
                {"kind": "long_run", "usd": 8},
            ]
        },
    )

    kind: BudgetKind = BudgetKind.PERIOD
    usd: Annotated[float, Field(ge=0, le=MOST_USD)]
    period: Period | None = None
    project: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """None: the budget of the whole cluster."""
    hard: bool = False
    """Whether jobs stop at the limit; else it is only said that it was reached."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind is BudgetKind.PERIOD and self.period is None:
            raise ValueError("a budget for a period needs period: day, week or month")
        if self.kind is not BudgetKind.PERIOD and self.period is not None:
            raise ValueError(f"kind: {self.kind} is in dollars per hour and takes no period")
        if self.kind is BudgetKind.LONG_RUN and self.project is not None:
            raise ValueError("a long-run average is the whole cluster's; leave project out")
        if self.kind is BudgetKind.LONG_RUN and self.hard:
            raise ValueError("a long-run average is steered to, and has no hard limit; leave hard out")
        return self


class BudgetView(BaseModel):
    """A budget and how it stands. `version` grows with every change; it is the ETag."""

    name: str
    scope: Scope
    project: str | None
    kind: BudgetKind
    usd: float
    period: Period | None
    hard: bool
    version: int
    created_at: datetime
    updated_at: datetime
    period_from: datetime
    """Since when `spent_usd` counts: the start of the period; for those without one, when the budget was set."""
    period_to: datetime | None
    spent_usd: float
    remaining_usd: float | None
    """Until the end of the period, never below 0; None where there is no period."""
    usd_per_h: float
    """What its scope spends at the moment. For a long-run average see `average_usd_per_h`."""
    average_usd_per_h: float
    """Since `period_from`."""
    forecast_usd: float | None
    """Spent at the end of the period if it goes on as now."""
    exhausted_at: datetime | None
    """When nothing is left if it goes on as now; None if that is after the period, or never."""
    exhausted: bool
    over: bool
    """Whether more was spent, or is being spent, than it allows."""
    usd_price: RowPrice | None = None
    """Of an hourly cap: the row of the latest round, with what one more dollar per hour was worth to it."""
    message: str
    """How it stands, in a sentence."""


class Usage(BaseModel):
    """What slots did in a time and what they cost. Dollars of slots without a price are not known, and not counted."""

    usd: float
    slot_h: float
    unpriced_slot_h: float
    """Of these, the slot-hours that nobody gave a price for."""
    useful_usd: float
    resize_usd: float
    lost_usd: float
    idle_usd: float
    useful_slot_h: float
    resize_slot_h: float
    lost_slot_h: float
    idle_slot_h: float


class UsageGroup(Usage):
    """The usage of one job, project, market, node, category or day; `key` is empty where nobody had the slots."""

    key: str
    label: str
    """The key for people: of a job and of a node its name."""


class GroupBy(StrEnum):
    """What usage can be added up by."""

    JOB = "job"
    PROJECT = "project"
    MARKET = "market"
    NODE = "node"
    CATEGORY = "category"
    DAY = "day"


class LeaseBill(BaseModel):
    """A rented machine's lease as its provider bills it, and what the ledger has of it: the two must be the same."""

    machine_id: str
    instance_type: str
    market: str
    billed_from: datetime
    billed_to: datetime | None
    """None while it is billed on."""
    paid_s: float
    """What is paid for so far: from `billed_from` on, and at least the provider's minimum."""
    charged_s: float
    """What the ledger's rows add up to, per slot."""
    usd: float


class UsageView(BaseModel):
    """What was spent from one moment to another, in hours of the ledger; the groups add up to the total."""

    from_: datetime = Field(serialization_alias="from", validation_alias=AliasChoices("from", "from_"))
    to: datetime
    accrued_to: datetime | None
    """How far the ledger is; None before its first pass."""
    group_by: GroupBy
    total: Usage
    groups: list[UsageGroup]
    unpriced_kinds: list[str] = Field(default_factory=list)
    """Device kinds that slots were used of, and that nobody gave a price for."""
