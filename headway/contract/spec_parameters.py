"""The part `parameters` of the job file: values that a script reads from its environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BeforeValidator, Field

from headway.contract.values.text import GivenText

PARAMETER_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"
MOST_PARAMETERS: Final = 20
MOST_VALUE_CHARACTERS: Final = 1000
_MOST_WHOLE: Final = 2**63 - 1
PREFIX: Final = "HEADWAY_PARAM_"
"""Prefix of the environment variables of parameters."""


def _refuse_misread(value: Any) -> Any:
    if isinstance(value, bool):
        word = str(value).lower()
        raise ValueError(f'must be a number or text, not {word}; write "{word}" in quotes')  # noqa: TRY004 - Pydantic reports it
    if isinstance(value, int) and abs(value) > _MOST_WHOLE:
        raise ValueError("must be a whole number from -2^63 to 2^63; write a larger one in quotes")
    return value


ParameterName: TypeAlias = Annotated[str, Field(pattern=PARAMETER_PATTERN)]
ParameterValue: TypeAlias = Annotated[
    Annotated[int, Field(strict=True)]
    | Annotated[float, Field(strict=True)]
    | Annotated[GivenText, Field(max_length=MOST_VALUE_CHARACTERS)],
    BeforeValidator(_refuse_misread),
]
"""A number or a text. A text stays a text, also `1e-3`, which YAML reads as one: the script gets it as it stands."""
Parameters: TypeAlias = Annotated[dict[ParameterName, ParameterValue], Field(max_length=MOST_PARAMETERS)]


def variable_of(name: str) -> str:
    """Return the environment variable of a parameter: `HEADWAY_PARAM_LR` for `lr`."""
    return f"{PREFIX}{name.upper()}"


def variables_of(parameters: Mapping[str, int | float | str]) -> dict[str, str]:
    """Return the environment variables of parameters. A float has as many digits as it needs to be read back exactly."""
    return {variable_of(name): str(value) for name, value in parameters.items()}


def check_distinct(names: Iterable[str]) -> None:
    """Raise ValueError if two names have the same environment variable."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(variable_of(name), name)
        if other != name:
            raise ValueError(f"{other} and {name} would both be {variable_of(name)}; rename one of them")
