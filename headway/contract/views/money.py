"""Budgets, and spending by job, project, market, node, category or day."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from headway.contract.spec import NAME_PATTERN
from headway.contract.views.decisions import RowPrice

MOST_USD = 1e9
"""Largest accepted budget: a larger amount is a typing error."""


class Category(StrEnum):
    """Category of the time of a paid slot.

    USEFUL is training that counts. UNKNOWN is the time of a script that does not report its progress and may
    have trained. RESIZE is starting, stopping with a checkpoint, and the pause of a membership change. LOST
    is training that had to be repeated, and the time from a failure until the job continued or held no slots.
    IDLE is time without a job.
    """

    USEFUL = "useful"
    UNKNOWN = "unknown"
    RESIZE = "resize"
    LOST = "lost"
    IDLE = "idle"


class Scope(StrEnum):
    """Spending that a budget covers: a project's is for slots of its jobs, the cluster's is everything paid."""

    CLUSTER = "cluster"
    PROJECT = "project"


class BudgetKind(StrEnum):
    """Kinds of budgets.

    HOURLY_CAP limits the dollars per hour of held slots at every moment. PERIOD is an amount for a day, a
    week or a month. LONG_RUN is an average in dollars per hour that the cluster keeps to in the long run.
    """

    HOURLY_CAP = "hourly_cap"
    PERIOD = "period"
    LONG_RUN = "long_run"


class Period(StrEnum):
    """Periods of a budget, in UTC; a week begins on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class BudgetRequest(BaseModel):
    """A new or changed budget. `usd` is per hour, except for PERIOD, where it is for the whole period."""

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
    """Project of the budget; None: the whole cluster."""
    hard: bool = False
    """Stop jobs at the limit; if false, only report that it was reached."""

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
    """A budget and its present state. `version` grows with every change and is the ETag."""

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
    """Time from which `spent_usd` counts: the start of the period; without one, the creation of the budget."""
    period_to: datetime | None
    spent_usd: float
    remaining_usd: float | None
    """Amount left until the end of the period, never below 0; None where there is no period."""
    usd_per_h: float
    """Present spending rate in its scope. For a long-run average see `average_usd_per_h`."""
    average_usd_per_h: float
    """Average spending rate since `period_from`."""
    forecast_usd: float | None
    """Expected spending at the end of the period, at the present rate."""
    exhausted_at: datetime | None
    """Time at which the budget is used up at the present rate; None if after the period, or never."""
    exhausted: bool
    over: bool
    """True if more was spent, or is being spent, than the budget allows."""
    usd_price: RowPrice | None = None
    """For an hourly cap: its limit in the latest round, with the utility of one more dollar per hour."""
    message: str
    """State of the budget in a sentence."""


class Usage(BaseModel):
    """Use of slots in a period and its cost. Slots without a price add no dollars."""

    usd: float
    slot_h: float
    unpriced_slot_h: float
    """Slot-hours without a price, included in `slot_h`."""
    useful_usd: float
    resize_usd: float
    lost_usd: float
    idle_usd: float
    useful_slot_h: float
    resize_slot_h: float
    lost_slot_h: float
    idle_slot_h: float
    unknown_usd: float
    """Cost of slots of scripts that do not report their progress."""
    unknown_slot_h: float


class UsageGroup(Usage):
    """The usage of one job, project, market, node, category or day; `key` is empty for slots without a job."""

    key: str
    label: str
    """Display name of the key: the name of a job or node."""


class GroupBy(StrEnum):
    """Ways to group usage."""

    JOB = "job"
    PROJECT = "project"
    MARKET = "market"
    NODE = "node"
    CATEGORY = "category"
    DAY = "day"


class LeaseBill(BaseModel):
    """A rented machine's bill by its provider, against the ledger's charges: the two must be equal."""

    machine_id: str
    instance_type: str
    market: str
    billed_from: datetime
    billed_to: datetime | None
    """End of the billing; None while it continues."""
    paid_s: float
    """Seconds billed so far: from `billed_from`, and at least the provider's minimum."""
    charged_s: float
    """Seconds charged in the ledger, per slot."""
    usd: float


class UsageView(BaseModel):
    """Spending in a range of time, by hours of the ledger; the groups add up to the total."""

    from_: datetime = Field(serialization_alias="from", validation_alias=AliasChoices("from", "from_"))
    to: datetime
    accrued_to: datetime | None
    """End of the ledger's entries; None before its first pass."""
    group_by: GroupBy
    total: Usage
    groups: list[UsageGroup]
    unpriced_kinds: list[str] = Field(default_factory=list)
    """Device kinds that were used and have no price."""
