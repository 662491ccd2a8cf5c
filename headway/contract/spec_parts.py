"""Parts of the job file that `spec` puts together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from headway.contract.values.balance import OFF, BalanceRule
from headway.contract.values.quantities import Seconds, SizeBytes
from headway.contract.values.text import GivenText


class SpecPart(BaseModel):
    """A part of the spec. An unknown field is an error: a typo must not be ignored silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _plain_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse values of number fields that Pydantic would take for other numbers than the user meant."""
        if info.field_name in _number_fields(cls):
            if isinstance(value, dict):
                _refuse_truth_values(value)
            else:
                for one in value if isinstance(value, list | tuple) else [value]:
                    _refuse_odd_number(one)
            return _whole(value) if isinstance(value, str) else value
        return value


_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE]\+?\d{1,2}")
_PADDED = re.compile(r"[+-]?0\d")
_GROUPED = re.compile(r"[+-]?\d[\d.]*(_\d+)+")


def _refuse_truth_values(value: dict[Any, Any]) -> None:
    for name, one in value.items():
        if isinstance(one, bool):
            raise ValueError(f"{name}: {_not_a_number(one)}")  # noqa: TRY004 - Pydantic reports it


def _whole(value: str) -> str:
    """Return a whole number with an exponent, which YAML 1.1 reads as text, in digits: 1e6. Other texts stay."""
    found = _EXPONENT.fullmatch(value.strip())
    return str(int(number)) if found and (number := float(value)).is_integer() else value


def _refuse_odd_number(value: Any) -> None:
    if isinstance(value, bool):
        raise ValueError(_not_a_number(value))  # noqa: TRY004 - Pydantic reports it
    if not isinstance(value, str):
        return
    if _PADDED.match(value.strip()):
        raise ValueError(f"{value!r} begins with 0; write it without: {_unpadded(value)}")
    if _GROUPED.match(value.strip()):
        raise ValueError(f"{value!r} holds _; write the number without: {value.replace('_', '')}")


def _not_a_number(value: bool) -> str:  # noqa: FBT001 - the value of a field
    return f"must be a number, not {str(value).lower()}; YAML reads yes and no, on and off as true and false"


def _unpadded(value: str) -> str:
    return re.sub(r"^([+-]?)0+(?=\d)", r"\1", value.strip())


@lru_cache(maxsize=64)
def _number_fields(part: type[SpecPart]) -> frozenset[str]:
    """Return the fields that take numbers but no truth values."""
    kinds = {name: set(leaf_types(info.annotation)) for name, info in part.model_fields.items()}
    return frozenset(name for name, found in kinds.items() if found & {int, float} and bool not in found)


def leaf_types(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation is made of, without containers, unions and metadata."""
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        parts = parts[:1]
    if not parts:
        yield annotation
    for part in parts:
        yield from leaf_types(part)


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


class Parallel(SpecPart):
    """Division of a sharded model: `pp` stages have parts of the layers, `tp` ranks share the computation of a stage.

    `fsdp` such pipelines of `pp * tp` ranks share the parameters. With `fsdp: auto` the scheduler divides the parameters over as
    few pipelines as memory allows. The other pipelines hold replicas, if the script has a dimension for them. The default says
    nothing about the script's model.
    """

    pp: Annotated[
        int, Field(ge=1, le=64, description="Stages of a pipeline, which have parts of the layers.")
    ] = 1
    tp: Annotated[
        int, Field(ge=1, le=64, description="Ranks of a tensor-parallel group, which take the same samples.")
    ] = 1
    fsdp: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = "auto"

    @property
    def pipeline(self) -> int:
        """Number of ranks that take the same samples."""
        return self.pp * self.tp

    @property
    def unit(self) -> int:
        """Number of slots of which every size is a multiple."""
        return self.pipeline if self.fsdp == "auto" else self.pipeline * self.fsdp


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


def _inner_file(value: str) -> str:
    """Return the file as a plain relative path."""
    if (path := _inner_folder(value)) == ".":
        raise ValueError(f"{value!r} is no file; give the path of a file in the working folder")
    return path


InnerFile = Annotated[GivenText, Field(min_length=1, max_length=512), AfterValidator(_inner_file)]
"""Path of a file, relative to the working folder."""


class PythonEnvironment(SpecPart):
    """The Python packages of the job's ranks, described by one file of the working folder; without, those of the host.

    `requirements` is a requirements file or a `pyproject.toml`, `lock` a `uv.lock` with its `pyproject.toml` beside it.
    """

    requirements: InnerFile | None = None
    lock: InnerFile | None = None

    @property
    def file(self) -> str | None:
        """The file that the job names, or None."""
        return self.requirements or self.lock

    @model_validator(mode="after")
    def _one_file(self) -> Self:
        if self.requirements is not None and self.lock is not None:
            raise ValueError(
                "name one file: {requirements: requirements.txt}, {requirements: pyproject.toml} or {lock: uv.lock}"
            )
        if self.lock is not None and self.lock.rpartition("/")[2] != "uv.lock":
            raise ValueError(
                f"{self.lock!r} is no lock file of uv; it is named uv.lock. Other files are `requirements`"
            )
        return self


def off_of(value: Any) -> Any:
    """Return `off` for false: this is how YAML reads a plain `off`."""
    return OFF if value is False else value


@lru_cache(maxsize=4096)
def sizes_between(low: int, high: int, sizes: str | tuple[int, ...], unit: int) -> tuple[int, ...]:
    """Return the allowed sizes, from a cache because a round asks several times for every job."""
    if sizes == "any":
        return tuple(range(-(-low // unit) * unit, high + 1, unit))
    if sizes == "pow2":
        sizes = (low, high, *(2**exponent for exponent in range(high.bit_length())))
    found = {size for size in sizes if isinstance(size, int) and low <= size <= high and size % unit == 0}
    return tuple(sorted(found))


def _one_complaint(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Replace the union's errors, which come once per alternative under internal names, by one message."""
    try:
        return validate(value)
    except ValidationError as error:
        raise ValueError("write auto, never, or a duration from 1s to 7d, such as 30m") from error


HungAfter = Annotated[
    Literal["auto", "never"] | Annotated[Seconds, Field(ge=1, le=7 * 86400)], WrapValidator(_one_complaint)
]
"""Seconds without a step after which the ranks of a job count as hung."""


RESERVED_ENV = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
        "CUDA_VISIBLE_DEVICES",
    }
)
"""Environment variables that only Headway may set for a rank (torchrun's environment)."""
