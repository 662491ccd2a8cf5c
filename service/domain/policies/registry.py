"""Registry of the policies by name, with their parameters."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from service.domain import policies
from service.domain.cluster.snapshot import PolicySetting
from service.domain.policies.framework.checked import CheckedPolicy, PolicyFailed
from service.domain.policies.framework.parameter import Meaning, meaning
from service.domain.policies.framework.policy import Policy
from service.domain.shared.errors import InvalidField

DEFAULT = PolicySetting().name

_Result = TypeVar("_Result")

_TOO_LARGE = 1e18
"""Bound on the numbers in a request: a JSON integer can exceed the range of floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterDescription:
    """Description of a parameter for users. `interval` states the accepted values in words."""

    name: str
    default: Any
    """Default value: a number or a tuple of numbers."""
    meaning: str
    interval: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDescription:
    """Description of a policy for users."""

    name: str
    sentence: str
    parameters: tuple[ParameterDescription, ...]


class Policies(Mapping[str, type[Policy]]):
    """The policies that a cluster may choose, by name, with the default first."""

    def __init__(self, kinds: Mapping[str, type[Policy]]) -> None:
        self._kinds = {name: kinds[name] for name in sorted(kinds, key=lambda name: (name != DEFAULT, name))}

    def __getitem__(self, name: str) -> type[Policy]:
        """Return the class of a policy."""
        return self._kinds[name]

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the names, with the default first."""
        return iter(self._kinds)

    def __len__(self) -> int:
        """Return the number of policies."""
        return len(self._kinds)

    def policy(self, name: str, parameters: Mapping[str, Any] | None = None) -> Policy:
        """Return the policy of this name, with these parameters in place of its defaults.

        Raises:
            InvalidField: the name or a parameter does not exist, or a value is out of range.
        """
        if name not in self:
            raise InvalidField("policy", f"no policy is called {name!r}; there are {', '.join(self)}")
        known = {field.name: field for field in _fields(self[name])}
        values = {}
        for key, value in (parameters or {}).items():
            if key not in known:
                has = ", ".join(known) or "none"
                raise InvalidField(
                    f"parameters.{key}", f"the policy {name} has no parameter {key!r}; it has {has}"
                )
            values[key] = _checked(key, value, known[key])
        return self[name](**values)

    def of_setting(self, setting: PolicySetting) -> Policy:
        """Return the policy of the cluster, or the default if the stored setting is unknown here."""
        try:
            return self.policy(setting.name, setting.parameters)
        except InvalidField:
            return self.policy(DEFAULT)

    def run(
        self, setting: PolicySetting, work: Callable[[PolicySetting, Policy], _Result]
    ) -> tuple[_Result, PolicyFailed | None]:
        """Return the result of `work` under the cluster's policy, and None. If that policy fails, return the
        result under the default policy, and the failure.
        """
        try:
            return work(setting, CheckedPolicy(self.of_setting(setting))), None
        except PolicyFailed as failure:
            return work(PolicySetting(), self.policy(DEFAULT)), failure

    def describe(self) -> tuple[PolicyDescription, ...]:
        """Return descriptions of all policies, for documentation and the command line."""
        return tuple(
            PolicyDescription(
                name=name,
                sentence=(inspect.getdoc(kind) or name).split("\n\n")[0].replace("\n", " "),
                parameters=tuple(
                    ParameterDescription(
                        name=field.name,
                        default=field.default,
                        meaning=meaning(field.metadata).text,
                        interval=meaning(field.metadata).interval(),
                    )
                    for field in _fields(kind)
                ),
            )
            for name, kind in self.items()
        )


def problem_of(kind: object) -> str:
    """Return the reason why an object is not a policy class; empty if it is one."""
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return "it is not a dataclass"
    if not isinstance(getattr(kind, "name", None), str) or not callable(getattr(kind, "choose", None)):
        return "it has no `name` or no method `choose`"
    for field in dataclasses.fields(kind):
        default = field.default if isinstance(field.default, tuple) else (field.default,)
        if not meaning(field.metadata).text or not all(isinstance(one, int | float) for one in default):
            return f"its field {field.name!r} is not declared with `parameter`, a default and a text"
    return ""


def _built_in() -> Iterator[tuple[str, type[Policy]]]:
    """Yield name and class of the policies of this package, each in a module of its own."""
    for found in iter_modules(policies.__path__, f"{policies.__name__}."):
        if found.ispkg or found.name == __name__:
            continue
        for kind in vars(import_module(found.name)).values():
            if getattr(kind, "__module__", "") == found.name and hasattr(kind, "choose"):
                assert not problem_of(kind), f"{kind}: {problem_of(kind)}"
                yield kind.name, kind


POLICIES = Policies(dict(_built_in()))
"""The built-in policies: every module of this package adds its own."""
policy = POLICIES.policy


def _fields(kind: type[Policy]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)  # type: ignore[arg-type]  # the protocol cannot say that policies are dataclasses


def _checked(key: str, value: object, field: dataclasses.Field[Any]) -> float | tuple[float, ...]:
    """Return the value in the type of the field's default."""
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
