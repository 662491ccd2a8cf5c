"""Tests of allocations, of the class of a job, and of what its job file and its state permit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.jobs.job import Allocation, Switch, class_of, minus, size_of
from tests.unit.service.builders import NOW, job_of, spec_of

allocations = st.dictionaries(
    st.sampled_from(["n1", "n2", "n3"]),
    st.sets(st.integers(0, 3), min_size=1).map(lambda slots: tuple(sorted(slots))),
)


@pytest.mark.parametrize(
    ("allocation", "other", "rest", "size"),
    [
        ({}, {}, {}, 0),
        ({"n1": (0, 1)}, {}, {"n1": (0, 1)}, 2),
        ({"n1": (0, 1)}, {"n1": (1,)}, {"n1": (0,)}, 1),
        ({"n1": (0, 1)}, {"n1": (0, 1)}, {}, 0),
        ({"n1": (0, 1)}, {"n2": (0, 1)}, {"n1": (0, 1)}, 2),
        ({"n1": (0,), "n2": (3,)}, {"n1": (0,), "n3": (1,)}, {"n2": (3,)}, 1),
    ],
)
def test_the_slots_of_one_allocation_without_another(
    allocation: Allocation, other: Allocation, rest: Allocation, size: int
) -> None:
    assert minus(allocation, other) == rest
    assert size_of(rest) == size


@settings(max_examples=50)
@given(allocations, allocations)
def test_what_is_taken_away_and_what_is_left_are_the_whole(one: Allocation, other: Allocation) -> None:
    left = minus(one, other)
    common = minus(one, left)
    assert size_of(left) + size_of(common) == size_of(one)
    assert minus(left, other) == left
    assert minus(common, other) == {}
    assert all(left.values()), "no node without slots"
    assert all(list(slots) == sorted(slots) for slots in left.values())


@pytest.mark.parametrize(
    ("name", "of_class"),
    [
        ("gpt-small-17", "gpt-small"),
        ("gpt-small", "gpt-small"),
        ("gpt-small-1-2-3", "gpt-small"),
        ("gpt2", "gpt"),
        ("gpt-2x", "gpt-2x"),
        ("17", "17"),
        ("1-2", "1-2"),
        ("run-007", "run"),
    ],
)
def test_the_class_of_a_job_is_its_name_without_the_number_of_the_run(name: str, of_class: str) -> None:
    assert class_of(spec_of(name)) == f"default/{of_class}"
    assert class_of(spec_of(name, project="team")) == f"team/{of_class}"


@pytest.mark.parametrize(
    ("elastic", "pinned", "sizes"),
    [
        ({"min": 1, "max": 4}, None, (1, 2, 3, 4)),
        ({"min": 1, "max": 8, "sizes": "pow2"}, None, (1, 2, 4, 8)),
        ({"min": 1, "max": 4}, 3, (3,)),
        ({"min": 1, "max": 4}, 7, (7,)),
        ({"min": 2, "max": 2}, None, (2,)),
    ],
)
def test_the_sizes_that_a_job_may_have(
    elastic: dict[str, Any], pinned: int | None, sizes: tuple[int, ...]
) -> None:
    job = job_of(spec=spec_of(elastic=elastic), pinned_size=pinned)
    assert tuple(job.sizes) == sizes


ADAPTIVE = {"global": 64, "policy": "adaptive", "max_global": 128}


@pytest.mark.parametrize(
    ("resize", "batch", "follows", "adapts"),
    [
        ("live", {}, True, False),
        ("live", ADAPTIVE, True, True),
        ("restart", ADAPTIVE, False, False),
        ("never", ADAPTIVE, False, False),
        ("restart", {}, False, False),
    ],
)
def test_only_a_live_job_follows_orders_and_adapts(
    resize: str, batch: dict[str, Any], *, follows: bool, adapts: bool
) -> None:
    job = job_of(spec=spec_of(elastic={"min": 1, "max": 4, "resize": resize}, batch=batch))
    assert (job.follows_orders, job.adapts) == (follows, adapts)


def test_a_job_that_is_being_stopped_does_not_go_on_from_its_change() -> None:
    change = Switch(generation=2, began_at=NOW, deadline=NOW)
    assert job_of().switching is None
    assert job_of(switch=change).switching is change
    assert job_of(switch=Switch(generation=2, began_at=NOW, deadline=NOW, stopping=True)).switching is None


def test_the_name_of_a_job_is_that_of_its_file() -> None:
    assert job_of("id-1", spec=spec_of("gpt")).name == "gpt"
