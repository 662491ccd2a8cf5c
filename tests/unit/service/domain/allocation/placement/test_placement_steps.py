"""Single requests and their placements as tables: who could stay, whose slots are taken, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from service.domain.allocation.placement.placement import (
    Placement,
    PlacementRequest,
    PlacementStep,
    PoolSlots,
    could_stay,
    describe_move,
    place_all,
)
from service.domain.jobs.job import Allocation

STAY, GO, WAIT, YIELD = PlacementStep
A, H = "a100", "h100"


def want(job: str = "x", slots: int = 0, *, kind: str = A, unit: int = 4, **fields: Any) -> PlacementRequest:
    held = fields.get("held") or fields.get("private")
    return PlacementRequest(
        job_id=job,
        kind=kind if slots else "",
        slots=slots,
        unit=unit,
        held_kind=fields.pop("held_kind", A if held else ""),
        **fields,
    )


def pools(node_slots: int = 4, **free: Allocation) -> dict[str, PoolSlots]:
    """Free slots of the pools `a100` and `h100`."""
    return {kind: PoolSlots(free=free.get(kind, {}), node_slots=node_slots) for kind in (A, H)}


def placed(*wants: PlacementRequest, **free: Allocation) -> dict[str, Placement]:
    return place_all(wants, pools(**free))


@pytest.mark.parametrize(
    ("request_", "stays"),
    [
        (want(slots=2, held={"n": (0, 1)}), True),
        (want(slots=3, held={"n": (0, 1)}), False),
        (want(slots=1, held={"n": (0, 1)}), False),
        (want(slots=2, kind=H, held={"n": (0, 1)}), False),
        (want(slots=2, held={"n": (0,)}, private={"c": (0,)}), True),
        (want(slots=1, held={"n": (0,)}, private={"c": (0,)}), False),
        (want(slots=1, private={"c": (0,)}), True),
        (want(slots=0, held={"n": (0,)}), False),
        (want(slots=0), True),
        (want(slots=1), False),
    ],
)
def test_a_job_could_stay_if_exactly_what_it_holds_was_chosen(
    request_: PlacementRequest, stays: bool
) -> None:
    assert could_stay(request_) is stays


@pytest.mark.parametrize(
    ("old", "new", "left", "entered"),
    [
        ({"a": (0,)}, {"b": (0,)}, "n1", "n2"),
        ({"a": (0,), "b": (0,)}, {"b": (0,), "c": (1,)}, "n1", "c"),
        ({"a": (0, 1)}, {"a": (0,), "b": (1,)}, "n1", "n1, n2"),
        ({"a": (0,), "b": (0,)}, {"c": (0, 1)}, "n1, n2", "c"),
    ],
)
def test_a_move_is_described_by_the_nodes_that_differ(
    old: Allocation, new: Allocation, left: str, entered: str
) -> None:
    names = {"a": "n1", "b": "n2"}
    assert describe_move(old, new, heir="", node_names=names).startswith(f"moves from {left} to {entered} ")
    assert " big," in describe_move(old, new, heir="big", node_names=names)


@pytest.mark.parametrize(
    ("request_", "free", "expected"),
    [
        (want(slots=2), {"n": (0, 1, 2)}, Placement(allocation={"n": (0, 1)}, step=GO)),
        (want(slots=2, held={"n": (1, 2)}), {"n": (0, 3)}, Placement(allocation={"n": (1, 2)}, step=STAY)),
        (want(slots=1, held={"n": (1, 2)}), {"n": (0,)}, Placement(allocation={"n": (1,)}, step=GO)),
        (want(slots=3, held={"n": (1, 2)}), {"n": (0,)}, Placement(allocation={"n": (0, 1, 2)}, step=GO)),
        (
            want(slots=3, held={"n": (1,)}, private={"c": (0, 1)}),
            {"n": (0,)},
            Placement(allocation={"c": (0, 1), "n": (1,)}, step=STAY),
        ),
        (
            want(slots=1, held={"n": (1,)}, private={"c": (0, 1)}),
            {"n": (0,)},
            Placement(allocation={"c": (0,)}, step=GO),
        ),
        (
            want(slots=4, held={"n": (1,)}, private={"c": (0, 1)}),
            {"n": (0,)},
            Placement(allocation={"c": (0, 1), "n": (0, 1)}, step=GO),
        ),
        (want(slots=2), {}, Placement(allocation={}, step=WAIT)),
        (want(slots=2, kind="t4"), {"n": (0, 1)}, Placement(allocation={}, step=WAIT)),
    ],
)
def test_a_job_alone(request_: PlacementRequest, free: Allocation, expected: Placement) -> None:
    assert placed(request_, a100=free) == {"x": expected}


def test_private_slots_of_the_pool_that_a_job_leaves_are_given_up() -> None:
    leaves = want(slots=2, kind=H, held={"n": (0,)}, private={"c": (0, 1)})
    assert placed(leaves, h100={"m": (0, 1)})["x"] == Placement(allocation={"m": (0, 1)}, step=GO)


def test_a_job_that_leaves_has_no_placement() -> None:
    assert placed(want(held={"n": (0, 1)}), a100={"n": (2,)}) == {}


def test_slots_that_others_still_hold_are_waited_for() -> None:
    found = placed(want("old", held={"n": (0, 1)}), want("new", 3), a100={"n": (2, 3)})
    assert found["new"] == Placement(allocation={"n": (0, 2, 3)}, step=WAIT, waits_for=("old",))


def test_several_holders_are_named_in_order() -> None:
    leaving = [want(job, held={"n": (slot,)}) for slot, job in enumerate(["c", "a", "b"])]
    found = placed(*leaving, want("new", 4), a100={"n": (3,)})
    assert found["new"].waits_for == ("a", "b", "c")


def test_a_moved_job_names_the_one_that_takes_most_of_its_slots() -> None:
    """Both newcomers take slots of node `a`, the larger one three of them."""
    moves = want("moves", 4, held={"a": (0, 1, 2, 3)}, unit=4)
    found = place_all(
        [moves, want("wide", 8, unit=8)],
        {A: PoolSlots(free={"a": (4, 5, 6, 7), "b": (0, 1, 2, 3)}, node_slots=8)},
    )
    assert found["moves"].allocation == {"b": (0, 1, 2, 3)}
    assert found["moves"].makes_room_for == "wide"
    assert found["wide"] == Placement(allocation={"a": tuple(range(8))}, step=WAIT, waits_for=("moves",))


def test_a_job_that_changes_anyway_makes_room_for_nobody() -> None:
    shrinks = want("shrinks", 1, held={"a": (0, 1)})
    found = placed(shrinks, want("new", 4), a100={"a": (2, 3), "b": (0,)})
    assert found["new"].waits_for == ("shrinks",)
    assert found["shrinks"].makes_room_for == ""


def two_parts(slots_a: int, slots_h: int, **held: Allocation) -> list[PlacementRequest]:
    """The requests of a job `x` in two pools."""
    return [
        want(slots=slots, kind=kind, held=held.get(kind, {}), held_kind=kind if held.get(kind) else "")
        for kind, slots in ((A, slots_a), (H, slots_h))
    ]


def test_the_parts_of_a_job_in_two_pools_are_one_placement() -> None:
    found = placed(*two_parts(1, 2), a100={"n": (0, 1)}, h100={"m": (0, 1)})
    assert found == {"x": Placement(allocation={"m": (0, 1), "n": (0,)}, step=GO)}


def test_a_job_stays_only_with_all_of_its_parts() -> None:
    held = {A: {"n": (0,)}, H: {"m": (0, 1)}}
    assert placed(*two_parts(1, 2, **held))["x"].step is STAY
    smaller = placed(*two_parts(1, 1, **held))["x"]
    assert (smaller.allocation, smaller.step) == ({"m": (0,), "n": (0,)}, GO)
    gone = placed(*two_parts(0, 2, **held))["x"]
    assert (gone.allocation, gone.step) == ({"m": (0, 1)}, GO)


def test_a_job_waits_if_one_of_its_parts_does() -> None:
    old = want("old", held={"m": (0, 1)}, held_kind=H)
    found = placed(old, *two_parts(1, 2), a100={"n": (0,)})
    assert found["x"] == Placement(allocation={"m": (0, 1), "n": (0,)}, step=WAIT, waits_for=("old",))


def test_a_job_with_too_little_room_in_one_pool_has_nothing() -> None:
    found = placed(*two_parts(1, 2), a100={"n": (0,)}, h100={"m": (0,)})
    assert found["x"] == Placement(allocation={}, step=WAIT)


@pytest.mark.parametrize("order", ["xyz", "zyx", "yxz"])
def test_in_a_cycle_over_three_pools_the_last_job_yields(order: str) -> None:
    kinds = {"x": ("k0", "k1"), "y": ("k1", "k2"), "z": ("k2", "k0")}
    wants = [
        want(job, 1, kind=kinds[job][1], held={f"node-{kinds[job][0]}": (0,)}, held_kind=kinds[job][0])
        for job in order
    ]
    found = place_all(wants, {f"k{index}": PoolSlots(free={}, node_slots=1) for index in range(3)})
    assert {job: one.step for job, one in found.items()} == {
        job: YIELD if job == order[-1] else WAIT for job in order
    }
    assert [found[job].waits_for for job in "xyz"] == [("y",), ("z",), ("x",)]


def test_nobody_yields_while_a_free_slot_opens_the_cycle() -> None:
    wants = [
        want("x", 1, kind=H, held={"n": (0,)}),
        want("y", 1, kind=A, held={"m": (0,)}, held_kind=H),
    ]
    found = placed(*wants, a100={"n": (1,)})
    assert (found["y"].step, found["x"].step) == (GO, WAIT)
