"""Tests of the registry of policies: parameters of requests, stored settings, descriptions, and plug-ins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from service.domain.cluster.snapshot import PolicySetting
from service.domain.policies.fair import Fair
from service.domain.policies.fifo import Fifo
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.goodput import Goodput
from service.domain.policies.las import Las
from service.domain.policies.registry import DEFAULT, POLICIES, Policies, policy, problem_of
from service.domain.shared.errors import InvalidField

NAMES = [
    "budget", "elastic-dp", "fair", "fifo", "gavel", "goodput", "idle-fill", "las", "ones", "pollux", "sia", "srtf",
]  # fmt: skip


def test_every_policy_is_registered_with_the_default_first() -> None:
    assert next(iter(POLICIES)) == DEFAULT == "goodput"
    assert sorted(POLICIES) == NAMES
    assert len(POLICIES) == len(NAMES)
    assert list(POLICIES)[1:] == [name for name in NAMES if name != DEFAULT]


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_is_known_by_its_own_name_and_has_valid_defaults(name: str) -> None:
    assert POLICIES[name].name == name
    assert problem_of(POLICIES[name]) == ""
    description = next(one for one in POLICIES.describe() if one.name == name)
    defaults = {one.name: one.default for one in description.parameters}
    assert policy(name, defaults) == policy(name)


def test_a_policy_is_made_with_its_parameters() -> None:
    assert policy("goodput") == Goodput()
    assert policy("fair", {"p": -2}) == Fair(p=-2.0)
    assert policy("las", {"queue_limits_slot_s": [10, 20]}) == Las(queue_limits_slot_s=(10.0, 20.0))


def test_numbers_of_a_request_become_floats() -> None:
    made = policy("las", {"queue_limits_slot_s": [10], "promote_knob": 3})
    assert isinstance(made, Las)
    assert isinstance(made.promote_knob, float)
    assert [type(one) for one in made.queue_limits_slot_s] == [float]


def field_of_refusal(name: str, parameters: dict[str, Any] | None = None) -> str:
    with pytest.raises(InvalidField) as refusal:
        policy(name, parameters)
    return refusal.value.field


@pytest.mark.parametrize("name", ["", "Goodput", "drf", "goodput "])
def test_an_unknown_policy_is_refused(name: str) -> None:
    assert field_of_refusal(name) == "policy"


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        pytest.param("fifo", "p", 1, id="no parameters"),
        pytest.param("fair", "q", 1, id="another name"),
        pytest.param("fair", "name", "fifo", id="a class variable"),
        pytest.param("fair", "p", "-1", id="text"),
        pytest.param("fair", "p", None, id="nothing"),
        pytest.param("fair", "p", True, id="truth value"),
        pytest.param("fair", "p", [-1], id="list for a number"),
        pytest.param("fair", "p", 0, id="open end"),
        pytest.param("fair", "p", -8.1, id="beyond the closed end"),
        pytest.param("fair", "p", math.nan, id="NaN"),
        pytest.param("fair", "p", -math.inf, id="infinite"),
        pytest.param("budget", "usd_per_h", 10**400, id="larger than any float"),
        pytest.param("budget", "usd_per_h", 1e18, id="absurd"),
        pytest.param("las", "queue_limits_slot_s", 10, id="number for a list"),
        pytest.param("las", "queue_limits_slot_s", "10", id="text for a list"),
        pytest.param("las", "queue_limits_slot_s", [], id="empty list"),
        pytest.param("las", "queue_limits_slot_s", [20, 10], id="descending"),
        pytest.param("las", "queue_limits_slot_s", [10, 10], id="twice the same"),
        pytest.param("las", "queue_limits_slot_s", [10, "20"], id="text in a list"),
        pytest.param("las", "queue_limits_slot_s", [-1, 20], id="out of range in a list"),
    ],
)
def test_a_parameter_that_is_not_valid_is_refused(name: str, key: str, value: Any) -> None:
    assert field_of_refusal(name, {key: value}) == f"parameters.{key}"


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("fair", "p", -8),
        ("goodput", "p", 1),
        ("budget", "usd_per_h", -1),
        ("budget", "usd_per_h", 9.9e17),
        ("budget", "narrow_share", 1),
        ("ones", "limit_sizes", 0),
        ("las", "queue_limits_slot_s", (0, 5)),
    ],
)
def test_the_ends_of_an_interval_are_accepted(name: str, key: str, value: Any) -> None:
    found = getattr(policy(name, {key: value}), key)
    assert found == (tuple(float(one) for one in value) if isinstance(value, tuple) else float(value))


def test_the_first_wrong_parameter_is_named() -> None:
    assert field_of_refusal("goodput", {"p": 0.5, "patience_s": 0, "q": 1}) == "parameters.patience_s"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (PolicySetting(), Goodput()),
        (PolicySetting(name="fair", parameters={"p": -2.0}), Fair(p=-2.0)),
        (PolicySetting(name="of another version"), Goodput()),
        (PolicySetting(name="fair", parameters={"q": 1.0}), Goodput()),
        (PolicySetting(name="fair", parameters={"p": 1.0}), Goodput()),
    ],
)
def test_a_stored_setting_that_is_not_valid_here_gives_the_default(
    setting: PolicySetting, expected: object
) -> None:
    assert POLICIES.of_setting(setting) == expected


def test_descriptions_have_the_default_and_the_interval_of_every_parameter() -> None:
    described = {one.name: one for one in POLICIES.describe()}
    assert list(described) == list(POLICIES)
    (p,) = described["fair"].parameters
    assert (p.name, p.default, p.interval) == ("p", -1.0, "at least -8, below 0")
    limits, knob = described["las"].parameters
    assert (limits.default, limits.interval) == ((3250.0, 7200.0), "at least 0")
    assert (knob.default, knob.interval) == (8.0, "above 0")
    assert described["fifo"].parameters == ()


@pytest.mark.parametrize("description", POLICIES.describe(), ids=lambda one: one.name)
def test_a_description_is_one_sentence_on_one_line(description: Any) -> None:
    assert description.sentence.endswith(".")
    assert "\n" not in description.sentence
    assert all(one.meaning.endswith(".") for one in description.parameters)


@dataclass(frozen=True)
class Extra:
    name: ClassVar[str] = "extra"
    p: float = parameter(1.0, "Exponent.")

    def choose(self, *_: object) -> None:
        """Choose nothing."""


def test_a_registry_may_have_other_policies() -> None:
    more = Policies({**POLICIES, "extra": Extra})  # type: ignore[dict-item]
    assert next(iter(more)) == DEFAULT
    assert more.policy("extra", {"p": 2}) == Extra(p=2.0)
    assert "extra" not in POLICIES
    few = Policies({"fifo": Fifo})
    assert (list(few), len(few)) == (["fifo"], 1)
    with pytest.raises(InvalidField):
        few.policy("goodput")


def test_a_policy_without_a_docstring_is_described_by_its_name() -> None:
    bare = type("Bare", (Extra,), {"__doc__": "", "name": "bare"})
    (described,) = Policies({"bare": bare}).describe()
    assert described.sentence


class NotADataclass:
    name = "x"

    def choose(self) -> None: ...


@dataclass(frozen=True)
class WithoutName:
    def choose(self) -> None: ...


@dataclass(frozen=True)
class NameIsNoText:
    name: ClassVar[int] = 3

    def choose(self) -> None: ...


@dataclass(frozen=True)
class WithoutChoose:
    name: ClassVar[str] = "x"


@dataclass(frozen=True)
class PlainField:
    name: ClassVar[str] = "x"
    p: float = 1.0

    def choose(self) -> None: ...


@dataclass(frozen=True)
class TextDefault:
    name: ClassVar[str] = "x"
    p: str = parameter("a", "Text.")

    def choose(self) -> None: ...


@dataclass(frozen=True)
class ListOfTexts:
    name: ClassVar[str] = "x"
    p: tuple[str, ...] = parameter(("a",), "Texts.")

    def choose(self) -> None: ...


@dataclass(frozen=True)
class WithoutDefault:
    name: ClassVar[str] = "x"
    p: float

    def choose(self) -> None: ...


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (3, "dataclass"),
        (Fifo(), "dataclass"),
        (NotADataclass, "dataclass"),
        (WithoutName, "`name`"),
        (NameIsNoText, "`name`"),
        (WithoutChoose, "`choose`"),
        (PlainField, "'p'"),
        (TextDefault, "'p'"),
        (ListOfTexts, "'p'"),
        (WithoutDefault, "'p'"),
    ],
)
def test_an_object_that_is_no_policy_has_its_problem_named(kind: object, word: str) -> None:
    assert word in problem_of(kind)
