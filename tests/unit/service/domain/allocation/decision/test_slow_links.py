"""Placement with a host whose measured link is slow: last for jobs of several nodes, and left by them where that pays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.topology import SLOW_LINK, placed_labels
from service.domain.allocation.decision.plan import Action, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Measurement, Node, Snapshot
from service.domain.jobs.job import class_of
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, decisions, elastic_job

SAID = "n1 sends at 100 Mbit/s, its peers do at 1,000 with others"


def host(name: str, *, slow: bool = False, slots: int = 1, rack: str = "") -> Node:
    said = SAID if slow else ""
    labels = placed_labels({"rack": rack} if rack else {}, name, said)
    return node_of(name, slots, labels=labels, slow_link=said)


def measured(*, slow: float | None, usual: float | None = 250.0) -> tuple[Measurement, ...]:
    """Speeds on one slot, and on three nodes without a slow link and with it."""
    places = [(1, 1, 100.0, ""), (3, 3, usual, ""), (3, 3, slow, SLOW_LINK)]
    return tuple(
        Measurement(
            "cpu", slots, speed, 5000, nodes=nodes, global_batch=96, local_batch=96 // slots, crossed=crossed
        )
        for slots, nodes, speed, crossed in places
        if speed is not None
    )


def spanning(*found: Measurement, low: int = 3, spare: bool = True) -> Snapshot:
    """A job on three hosts, of which `n1` has a slow link; a fourth is free if `spare`."""
    nodes = [host("n0"), host("n1", slow=True), host("n2"), *([host("n3")] if spare else [])]
    job = elastic_job(state=RUNNING, low=low, high=3, live=True)
    return snapshot_of(nodes, [job], {"j": [("n0", 0), ("n1", 0), ("n2", 0)]}, {"j": found})


def test_a_new_job_of_several_nodes_gets_the_slow_host_last() -> None:
    nodes = [host("n0"), host("n1", slow=True), host("n2"), host("n3")]
    found = decisions(snapshot_of(nodes, [elastic_job(low=3, high=3)], {}, {}))["j"]
    assert set(found.allocation) == {"n0", "n2", "n3"}


def test_a_slow_link_outweighs_a_rack() -> None:
    nodes = [host("n0", rack="a"), host("n1", slow=True, rack="a"), host("n2", rack="b")]
    found = decisions(snapshot_of(nodes, [elastic_job(low=2, high=2)], {}, {}))["j"]
    assert set(found.allocation) == {"n0", "n2"}


def test_where_no_other_host_is_left_a_job_starts_on_the_slow_one_and_says_so() -> None:
    nodes = [host("n0"), host("n1", slow=True)]
    found = decisions(snapshot_of(nodes, [elastic_job(low=2, high=2)], {}, {}))["j"]
    assert set(found.allocation) == {"n0", "n1"}
    assert f"across a slow link ({SAID})" in found.message


@pytest.mark.parametrize(("slow", "moves"), [(60.0, True), (249.0, False)])
def test_a_running_job_leaves_the_slow_host_if_that_pays(slow: float, *, moves: bool) -> None:
    found = decisions(spanning(*measured(slow=slow)))["j"]
    assert (found.action is Action.CHANGE) == moves
    assert ("n1" in found.allocation) != moves
    assert (f"to leave a slow link ({SAID})" in found.message) == moves


@pytest.mark.parametrize(
    "found", [measured(slow=None), measured(slow=60.0, usual=None)], ids=["not with it", "not without it"]
)
def test_a_running_job_stays_until_its_steps_were_measured_with_the_link_and_without(
    found: tuple[Measurement, ...],
) -> None:
    decided = decisions(spanning(*found))["j"]
    assert decided.action is Action.KEEP
    assert "n1" in decided.allocation


@pytest.mark.parametrize(
    ("own", "of_class", "moves"),
    [
        (None, (240.0, 250.0, 260.0), True),
        (None, (100.0, 105.0, 260.0), False),
        (102.0, (250.0, 250.0, 250.0), False),
    ],
    ids=["median of the class", "one fast job of the class", "own steps count first"],
)
def test_a_job_without_steps_off_the_link_is_compared_with_the_median_of_its_class(
    own: float | None, of_class: tuple[float, ...], *, moves: bool
) -> None:
    """It does 100 samples/s behind the link, and is one of its class."""
    snapshot = spanning(*measured(slow=100.0, usual=own))
    others = tuple(
        Measurement("cpu", 3, speed, 5000, nodes=3, global_batch=96, local_batch=32) for speed in of_class
    )
    name = class_of(snapshot.jobs["j"].spec)
    found = decisions(replace(snapshot, class_measurements={name: (*others, *snapshot.measurements["j"])}))[
        "j"
    ]
    assert (found.action is Action.CHANGE) == moves


@pytest.mark.parametrize("waiting", [0, 1])
@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize(("two", "three"), [(150.0, 142.0), (185.0, 175.0), (150.0, 160.0), (190.0, 280.0)])
def test_a_mark_alone_changes_no_running_job(two: float, three: float, *, spare: bool, waiting: int) -> None:
    """The job was measured on one to three hosts, before the link of one of them was marked."""
    found = tuple(
        Measurement("cpu", slots, speed, 5000, nodes=slots, global_batch=96, local_batch=96 // slots)
        for slots, speed in ((1, 100.0), (2, two), (3, three))
    )
    jobs = [
        elastic_job(state=RUNNING, low=1, high=4, live=True),
        *(elastic_job(f"w{number}", low=1, high=3) for number in range(waiting)),
    ]
    held = {"j": [("n0", 0), ("n1", 0), ("n2", 0)]}
    chosen = []
    for slow in (False, True):
        nodes = [host("n0"), host("n1", slow=slow), host("n2"), *([host("n3")] if spare else [])]
        one = decisions(snapshot_of(nodes, jobs, held, {"j": found}))["j"]
        chosen.append((one.action, sum(map(len, one.allocation.values()))))
    assert chosen[0] == chosen[1]


def test_without_a_free_host_a_job_shrinks_off_the_slow_one() -> None:
    found = decisions(spanning(*measured(slow=60.0), low=1, spare=False))["j"]
    assert found.action is Action.CHANGE
    assert set(found.allocation) == {"n0", "n2"}


@given(st.integers(2, 7), st.data(), st.lists(st.integers(1, 4), min_size=8, max_size=8))
def test_no_job_of_several_nodes_spans_a_slow_link_while_other_hosts_hold_it(
    count: int, data: st.DataObject, slots: list[int]
) -> None:
    slow = data.draw(st.sets(st.integers(0, count - 1), max_size=count))
    nodes = [host(f"n{one}", slow=one in slow, slots=slots[0]) for one in range(count)]
    size = data.draw(st.integers(1, count * slots[0]))
    job = elastic_job(low=size, high=size)
    found = {
        one.job_id: one
        for one in decide(build_round(snapshot_of(nodes, [job], {}, {})), Goodput(), solve).decisions
    }["j"]
    across = len(found.allocation) > 1 and any(f"n{one}" in found.allocation for one in slow)
    assert across == (size > max((count - len(slow)) * slots[0], slots[0]))
