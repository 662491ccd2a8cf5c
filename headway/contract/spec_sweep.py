"""The part `sweep` of the job file: one job for each combination of parameters."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from headway.contract.spec import JobSpec
from headway.contract.spec_parameters import (
    MOST_PARAMETERS,
    ParameterName,
    ParameterValue,
    check_distinct,
)
from headway.contract.spec_parts import SpecPart
from headway.contract.values.text import GivenText

MOST_TRIALS: Final = 500
"""Maximum number of trials of a sweep. One transaction stores them all."""
MOST_NAME: Final = 63 - len(f"-{MOST_TRIALS}")
"""Maximum length of the name of a sweep, in characters: its trials append their number."""
_MOST_VALUES: Final = MOST_TRIALS


class Range(SpecPart):
    """A range of numbers, both ends included. Whole ends give whole numbers. `log` draws their logarithm uniformly."""

    min: Annotated[int | float, Field(description="The smallest value that is drawn.")]
    max: Annotated[int | float, Field(description="The largest value that is drawn.")]
    log: Annotated[bool, Field(description="Whether to draw each decade equally often.")] = False

    @property
    def whole(self) -> bool:
        """True if only whole numbers are drawn."""
        return isinstance(self.min, int) and isinstance(self.max, int)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min >= self.max:
            raise ValueError(f"min ({self.min}) must be smaller than max ({self.max})")
        if self.log and self.min <= 0:
            raise ValueError(f"log needs a min above 0, not {self.min}; raise min, or leave log out")
        if not math.isfinite(float(self.max) - float(self.min)) or max(abs(self.min), abs(self.max)) > 2**53:
            raise ValueError("min and max must be numbers from -2^53 to 2^53")
        return self


Space = Annotated[tuple[ParameterValue, ...], Field(min_length=1, max_length=_MOST_VALUES)] | Range
"""Values of one parameter: a list of them, or a range."""


class Asha(SpecPart):
    """Asynchronous successive halving: trials are compared at rungs, and run on while they are among the best share.

    The first rung is at `min_progress`, each further one at `reduction` times the progress of the one before. A script
    without the library reports steps, or samples with `batch.global`; with `progress.batch: per-rank`, batches count as steps.
    """

    min_progress: Annotated[
        int, Field(ge=1, le=2**53, description="Progress at which trials are first compared.")
    ]
    unit: Annotated[
        Literal["epochs", "samples", "steps"],
        Field(description="Unit of min_progress, as the trials report it."),
    ] = "epochs"
    reduction: Annotated[
        int, Field(ge=2, le=10, description="Factor between two rungs; the best of this many trials runs on.")
    ] = 3


class EarlyStop(SpecPart):
    """The rule that ends trials early, by its name."""

    asha: Annotated[Asha, Field(description="Asynchronous successive halving.")]


class Sweep(SpecPart):
    """The search of a sweep: its parameters, the way to combine them, and the metric that compares the trials.

    `grid` tries every combination of lists. `random` draws `trials` combinations; the same `seed` draws the same ones.
    """

    parameters: Annotated[dict[ParameterName, Space], Field(min_length=1, max_length=MOST_PARAMETERS)]
    search: Literal["grid", "random"] = "grid"
    trials: Annotated[int, Field(ge=1, le=MOST_TRIALS)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None
    metric: Annotated[GivenText, Field(min_length=1, max_length=128)] | None = None
    goal: Literal["minimise", "maximise"] = "minimise"
    stop: EarlyStop | None = None

    @field_validator("parameters")
    @classmethod
    def _distinct(cls, value: dict[str, Space]) -> dict[str, Space]:
        check_distinct(value)
        for name, space in value.items():
            if isinstance(space, tuple) and len(set(map(str, space))) < len(space):
                raise ValueError(f"{name} lists a value twice; leave one of them out")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.stop is not None and self.metric is None:
            raise ValueError("stop needs metric, the value by which it compares the trials")
        if self.search == "random" and self.trials is None:
            raise ValueError("search: random needs trials, the number of combinations to draw")
        if self.search == "grid":
            ranges = [name for name, space in self.parameters.items() if isinstance(space, Range)]
            if ranges:
                raise ValueError(
                    f"parameters.{ranges[0]} is a range, which a grid cannot enumerate; list its values, or set search: random"
                )
            for field in ("trials", "seed"):
                if getattr(self, field) is not None:
                    raise ValueError(f"{field} needs search: random; a grid has every combination once")
        elif self.combinations is not None and (self.trials or 0) > self.combinations:
            raise ValueError(
                f"trials ({self.trials}) exceeds the {self.combinations} combinations of the lists; lower it, or set "
                "search: grid"
            )
        if self.count > MOST_TRIALS:
            raise ValueError(
                f"the grid has {self.count:,} combinations, and a sweep may have {MOST_TRIALS}; shorten the lists, or set "
                "search: random with trials"
            )
        return self

    @property
    def combinations(self) -> int | None:
        """Number of combinations of lists; None with a range."""
        sizes = [len(space) if isinstance(space, tuple) else None for space in self.parameters.values()]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    @property
    def count(self) -> int:
        """Number of trials that the sweep has from its submit on."""
        return self.trials or self.combinations or 0


class SweepSpec(JobSpec):
    """A job file with `sweep`: the other fields are those of every trial, and `name` begins its name."""

    sweep: Sweep

    @model_validator(mode="after")
    def _trials_are_jobs(self) -> Self:
        both = sorted(self.parameters.keys() & self.sweep.parameters.keys())
        if both:
            raise ValueError(f"{both[0]}: both in parameters and in sweep.parameters; leave one of them out")
        check_distinct([*self.parameters, *self.sweep.parameters])
        if len(self.parameters) + len(self.sweep.parameters) > MOST_PARAMETERS:
            raise ValueError(
                f"parameters and sweep.parameters may have {MOST_PARAMETERS} names together; leave some out"
            )
        if len(self.name) > MOST_NAME:
            raise ValueError(
                f"name may have {MOST_NAME} characters with sweep, since trials are called {self.name[:8]}…-1 and so on; "
                "shorten it"
            )
        stop = self.sweep.stop
        if stop is not None and self.progress.regex is not None:
            counted = "steps" if self.batch.global_ is None else "samples"
            if stop.asha.unit != counted:
                raise ValueError(
                    f"sweep.stop.asha.unit is {stop.asha.unit}, but with this progress the trials report {counted}; set unit: "
                    f"{counted}, and min_progress in {counted}"
                )
        if self.checkpoint.from_ is not None:
            raise ValueError(
                "checkpoint.from and sweep exclude each other; let the script load that checkpoint, or leave one of them out"
            )
        if self.goal.admit == "reject":
            raise ValueError(
                "goal.admit: reject and sweep exclude each other: trials share the slots that it would promise; leave one of "
                "them out"
            )
        return self
