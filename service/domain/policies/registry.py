"""The policies by name, and what a person may set of them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from service.domain.errors import InvalidField
from service.domain.policies.budget import Budget
from service.domain.policies.elastic_dp import ElasticDp
from service.domain.policies.fair import Fair
from service.domain.policies.fifo import Fifo
from service.domain.policies.gavel import Gavel
from service.domain.policies.goodput import Goodput
from service.domain.policies.idle_fill import IdleFill
from service.domain.policies.las import Las
from service.domain.policies.ones import Ones
from service.domain.policies.parameter import Meaning, meaning
from service.domain.policies.policy import Policy
from service.domain.policies.pollux import Pollux
from service.domain.policies.sia import Sia
from service.domain.policies.srtf import Srtf

POLICIES: Mapping[str, type[Policy]] = MappingProxyType(
    {
        one.name: one
        for one in (Goodput, Budget, ElasticDp, IdleFill, Ones, Pollux, Sia, Gavel, Fifo, Las, Srtf, Fair)
    }
)
"""Every policy that a cluster may choose, the default first."""

DEFAULT = Goodput.name

_TOO_LARGE = 1e18
"""Integers of a request may be larger than any float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter as people see it: `interval` says in words which values are accepted."""

    name: str
    default: Any
    """A number or a tuple of numbers."""
    meaning: str
    interval: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A policy as people see it."""

    name: str
    sentence: str
    parameters: tuple[Parameter, ...]


def policy(name: str, parameters: Mapping[str, Any] | None = None) -> Policy:
    """The policy of this name, with these parameters in place of its defaults.

    Raises `InvalidField` for a name or parameter that does not exist, and for a value that makes no sense.
    """
    if name not in POLICIES:
        raise InvalidField("policy", f"no policy is called {name!r}; there are {', '.join(POLICIES)}")
    known = {field.name: field for field in _fields(POLICIES[name])}
    values = {}
    for key, value in (parameters or {}).items():
        if key not in known:
            has = ", ".join(known) or "none"
            raise InvalidField(
                f"parameters.{key}", f"the policy {name} has no parameter {key!r}; it has {has}"
            )
        values[key] = _checked(key, value, known[key])
    return POLICIES[name](**values)


def describe() -> tuple[Description, ...]:
    """All policies, for documentation and the command line."""
    return tuple(
        Description(
            name=name,
            sentence=(inspect.getdoc(kind) or name).split("\n\n")[0].replace("\n", " "),
            parameters=tuple(
                Parameter(
                    name=field.name,
                    default=field.default,
                    meaning=meaning(field.metadata).text,
                    interval=meaning(field.metadata).interval(),
                )
                for field in _fields(kind)
            ),
        )
        for name, kind in POLICIES.items()
    )


def _fields(kind: type[Policy]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)  # type: ignore[arg-type]  # the protocol cannot say that policies are dataclasses


def _checked(key: str, value: object, field: dataclasses.Field[Any]) -> float | tuple[float, ...]:
    """The value in the type of the field's default."""
    allowed = meaning(field.metadata)
    if not isinstance(field.default, tuple):
        return _number(key, value, allowed)
    if not isinstance(value, list | tuple):
        raise InvalidField(f"parameters.{key}", f"{key} is a list of numbers, not {value!r}")
    numbers = tuple(_number(key, one, allowed) for one in value)
    if not numbers or sorted(set(numbers)) != list(numbers):
        raise InvalidField(
            f"parameters.{key}", f"{key} is a list of at least one number, ascending, not {value!r}"
        )
    return numbers


def _number(key: str, value: object, allowed: Meaning) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidField(f"parameters.{key}", f"{key} is a number, not {value!r}")
    if not abs(value) < _TOO_LARGE or not allowed.holds(value):
        limits = allowed.interval() or "finite"
        raise InvalidField(f"parameters.{key}", f"{key} must be {limits}, not {value!r}")
    return float(value)
