"""The part `goal` of the job file."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from headway.contract.spec_parts import SpecPart
from headway.contract.values.targets import target_problem, target_rule
from headway.contract.values.text import GivenText

_DATE_AND_TIME = re.compile(r"\s*\d{4}-\d\d-\d\d[Tt ]", re.ASCII)

OnBudget = Literal["shrink", "pause", "stop"]
"""Action when the job's budget is exhausted: use the cheapest slots, or stop after a checkpoint.

`pause` allows the job to be resumed; `stop` ends it for good.
"""


class Goal(SpecPart):
    """The user's objective and limits for time and money.

    With `search`, the scheduler looks for the best configuration for the objective within both limits while
    the job trains, and then runs the job there. `full` visits every allowed size for a short time. `partial`
    visits only the sizes that the models need. `none` uses only measurements of earlier jobs of its class.
    Without `search`, the cluster's policy decides.
    """

    objective: Literal["time", "cost", "balanced"] = "balanced"
    search: Literal["full", "partial", "none"] | None = None
    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    on_budget: OnBudget = "shrink"
    deadline: datetime | None = None
    admit: Literal["try", "reject"] = "try"
    """Handling of a job whose deadline cannot be met at its submit: try anyway, or refuse the job.

    The deadline of a job that was accepted with `reject` precedes those of other jobs.
    """
    target: dict[str, float | GivenText] | None = None
    """Metric and value at which the job ends: `{loss: 1.5}`, or `{accuracy: ">= 0.95"}` with the direction."""

    @field_validator("target")
    @classmethod
    def _one_metric(cls, value: dict[str, float | str] | None) -> dict[str, float | str] | None:
        if value is not None:
            rule = target_rule(value)
            return {rule.metric: rule.value} if rule.falls is None and not target_problem(value) else value
        return value

    @field_validator("deadline", mode="before")
    @classmethod
    def _no_number(cls, value: Any) -> Any:
        """Refuse numbers, which Pydantic takes for seconds since 1970, and other texts than dates."""
        if value is None or isinstance(value, datetime):
            return value
        if isinstance(value, str) and _DATE_AND_TIME.match(value):
            return value
        raise ValueError(
            f"{str(value)!r} is no date and time; write one with a time zone, such as 2026-12-01T18:00:00Z or "
            "2026-12-01T18:00:00+02:00, and no duration"
        )

    @field_validator("deadline")
    @classmethod
    def _aware(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("the deadline needs a time zone, for example 2026-12-01T00:00:00Z")
        return value

    @model_validator(mode="after")
    def _admits_by_deadline(self) -> Self:
        if self.admit == "reject" and self.deadline is None:
            raise ValueError("admit: reject needs a deadline; add goal.deadline, or leave admit out")
        return self
