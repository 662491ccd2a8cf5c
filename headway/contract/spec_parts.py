"""Parts of the job file that `spec` puts together."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from headway.contract.values.balance import OFF, BalanceRule
from headway.contract.values.quantities import Seconds, SizeBytes
from headway.contract.values.text import GivenText


class SpecPart(BaseModel):
    """A part of the spec. An unknown field is an error: a typo must not be ignored silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Balance(SpecPart):
    """Limits of uneven local batches; shares are relative to an even division (`contract.values.balance`)."""

    dead_band: Annotated[
        float, Field(ge=0, lt=1, description="Share of a step's time that a change must be expected to save.")
    ] = 0.05
    min_share: Annotated[
        float,
        Field(ge=0, le=1, description="Least samples of a rank in a step, relative to an even division."),
    ] = 0.0
    max_share: Annotated[
        float | None,
        Field(ge=1, description="Most samples of a rank in a step, relative to an even division."),
    ] = None

    @property
    def text(self) -> str | None:
        """The rule as ranks read it; None for the default."""
        return None if self == Balance() else str(BalanceRule(**self.model_dump(exclude_none=True)))


class PartialBackprop(SpecPart):
    """Structured partial back-propagation: ranks compute the gradients of the last layers only, in turn.

    One rank of every step computes all of them.
    """

    min_depth: Annotated[
        float,
        Field(gt=0, lt=1, description="Smallest share of the layers that a rank back-propagates through."),
    ]


def _inner_folder(value: str) -> str:
    """Return the folder as a plain relative path; `.` stands for the working folder."""
    parts = [part for part in value.split("/") if part not in {"", "."}]
    if value.startswith("/") or ".." in parts:
        raise ValueError(f"{value!r} leaves the working folder; give a path inside of it, or `.`")
    return "/".join(parts) or "."


class OutputFolder(SpecPart):
    """The folder that is the same on every node of the job.

    `dir` is relative to the working folder, and `.` is the working folder itself. None is a separate folder
    outside of it.
    """

    dir: Annotated[GivenText, Field(min_length=1, max_length=512), AfterValidator(_inner_folder)] | None = (
        None
    )
    as_cwd: bool = False
    """Start ranks with this folder as their working folder."""
    every: Annotated[Seconds, Field(ge=1, le=7 * 86400)] = 300.0
    max_size: Annotated[SizeBytes, Field(gt=0)] = 100 * 2**30


def off_of(value: Any) -> Any:
    """Return `off` for false: this is how YAML reads a plain `off`."""
    return OFF if value is False else value
