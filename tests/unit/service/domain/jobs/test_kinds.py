"""Device kinds and expected speeds of members."""

from __future__ import annotations

import pytest

from headway.contract.agents import Member
from headway.contract.values.devices import mix_name, slots_by_kind
from service.domain.jobs.kinds import kind_of_members, with_kinds


def member(rank: int, kind: str = "", speed: float = 1.0) -> Member:
    return Member(
        rank=rank, node_id="n", slot=rank, born_generation=1, born_rank=rank, device_kind=kind, speed=speed
    )


KINDS = ("a100", "t4", "t4")


def test_members_of_two_kinds_have_both() -> None:
    found = with_kinds(
        tuple(member(rank) for rank in range(3)), lambda one: KINDS[one.slot], {"a100": 4.0, "t4": 1.5}
    )
    assert [(one.device_kind, one.speed) for one in found] == [("a100", 4.0), ("t4", 1.5), ("t4", 1.5)]
    assert kind_of_members(found, "?") == "a100:1+t4:2"
    assert kind_of_members(found[1:], "?") == "t4"


def test_members_of_one_kind_have_neither() -> None:
    before = (member(0, "a100", 4.0), member(1, "a100", 4.0))
    found = with_kinds(before, lambda _: "a100", {"a100": 4.0, "t4": 1.5})
    assert found == (member(0), member(1))
    assert kind_of_members(found, "a100") == "a100"


def test_a_kind_without_an_expected_speed_counts_as_one() -> None:
    found = with_kinds((member(0), member(1)), lambda one: KINDS[one.slot], {})
    assert [one.speed for one in found] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("slots", "name"),
    [
        ({"a100": 4}, "a100"),
        ({"t4": 2, "a100": 2}, "a100:2+t4:2"),
        ({"t4": 0, "a100": 2}, "a100"),
        ({"rtx-6000.ada": 1, "a_b": 3}, "a_b:3+rtx-6000.ada:1"),
    ],
)
def test_the_name_of_a_mix_tells_its_slots(slots: dict[str, int], name: str) -> None:
    assert mix_name(slots) == name
    held = {kind: count for kind, count in slots.items() if count}
    assert slots_by_kind(name, sum(held.values())) == held
