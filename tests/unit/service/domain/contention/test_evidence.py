"""Evidence before preemption: which unmeasured sizes wait, and for what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.contention.evidence import unproven
from tests.unit.service.domain.contention.scenes import Rival, Scene, running, scenes, totals, waiting


def waits(scene: Scene, job: int = 0) -> list[int]:
    """The sizes that wait, of a job."""
    mask = unproven(scene.given, scene.evidence, scene.tenure, scene.seats)
    return scene.marked(mask, job)


def explorer(holds: int = 1, **fields: object) -> Rival:
    """A running job that was measured at the size that it holds only."""
    return running(holds, **{"known": (holds,), **fields})


@pytest.mark.parametrize(
    ("rival", "capacity", "sizes"),
    [
        # Free slots are there for every size.
        (explorer(), 4, []),
        # Three more slots are needed, and two are free. No size may be tried as long as the largest does not fit.
        (explorer(), 3, [4]),
        (explorer(2), 3, [4]),
        # A measured size needs no free slots.
        (explorer(known=(1, 2, 4)), 1, []),
        (explorer(known=(1, 4)), 1, [2]),
        # A size below the present one, or the smallest one, needs no evidence.
        (explorer(4, known=()), 4, []),
        (waiting(known=()), 1, [2, 4]),
        (waiting(known=(), sizes=(2, 4)), 2, [4]),
    ],
)
def test_a_lone_job_tries_sizes_on_free_slots_only(rival: Rival, capacity: int, sizes: list[int]) -> None:
    assert waits(Scene(rivals=[rival], capacity=(capacity,))) == sizes


@pytest.mark.parametrize("field", ["exempt", "entitled"])
def test_exempt_and_entitled_jobs_need_no_evidence(field: str) -> None:
    assert waits(Scene(rivals=[explorer()], capacity=(1,))) == [2, 4]
    assert waits(Scene(rivals=[explorer(**{field: True})], capacity=(1,))) == []


def test_a_size_of_another_kind_is_unmeasured_too() -> None:
    """The job holds two slots of kind 0, and may try one or two of kind 1 only if they are free."""
    rival = running(2, sizes=(1, 2), known=())
    full = Scene(rivals=[rival, running(4, kind=1, sizes=(4,))], capacity=(2, 4), nodes=(1, 1))
    mask = unproven(full.given, full.evidence, full.tenure, full.seats)
    assert full.kinds[mask[0]].tolist() == [1]
    assert full.marked(mask) == [2], "the smallest size needs no evidence on any kind"


def test_waiting_minimums_are_not_free_slots() -> None:
    alone, beside = explorer(sizes=(1, 2)), [explorer(sizes=(1, 2)), waiting(sizes=(1,))]
    assert waits(Scene(rivals=[alone], capacity=(2,))) == []
    assert waits(Scene(rivals=beside, capacity=(2,))) == [2]
    assert waits(Scene(rivals=beside, capacity=(3,))) == []


def test_one_job_per_node_explores_at_a_time_the_largest_gain_first() -> None:
    rivals = [explorer(sizes=(1, 2), scaling=scaling) for scaling in (0.5, 0.9, 0.7)]
    for nodes, exploring in ((0, []), (1, [1]), (2, [1, 2]), (3, [0, 1, 2])):
        scene = Scene(rivals=rivals, capacity=(8,), nodes=(nodes,))
        assert [job for job in range(3) if not waits(scene, job)] == exploring


def test_the_gain_is_relative_to_the_present_speed() -> None:
    """From 2 to 4 slots at 2 ** 0.9 = 1.87 times the speed, and from 1 to 2 at 2 ** 0.95 = 1.93 times."""
    rivals = [explorer(2, sizes=(2, 4), scaling=0.9), explorer(sizes=(1, 2), scaling=0.95)]
    scene = Scene(rivals=rivals, capacity=(8,), nodes=(1,))
    assert [waits(scene, job) for job in range(2)] == [[4], []]


def test_weight_counts_as_much_as_gain() -> None:
    """2 ** 0.5 * 2 = 2.83 exceeds 2 ** 0.9 = 1.87."""
    rivals = [explorer(sizes=(1, 2), scaling=0.5, weight=2.0), explorer(sizes=(1, 2), scaling=0.9)]
    scene = Scene(rivals=rivals, capacity=(8,), nodes=(1,))
    assert [waits(scene, job) for job in range(2)] == [[], [2]]


def test_a_job_that_runs_at_an_unmeasured_size_uses_up_a_node() -> None:
    rivals = [running(2, sizes=(1, 2), known=()), explorer(sizes=(1, 2))]
    assert waits(Scene(rivals=rivals, capacity=(8,), nodes=(1,)), 1) == [2]
    assert waits(Scene(rivals=rivals, capacity=(8,), nodes=(2,)), 1) == []
    for quiet in ({"known": (2,)}, {"sizes": (2, 4), "known": ()}, {"known": (), "exempt": True}):
        rivals = [running(2, **quiet), explorer(sizes=(1, 2), weight=9.0)]
        assert waits(Scene(rivals=rivals, capacity=(8,), nodes=(1,)), 1) == [], quiet


def test_the_explorers_of_a_round_together_fit_the_free_slots() -> None:
    """Each needs three more slots; seven are free."""
    rivals = [explorer(sizes=(1, 4), scaling=scaling) for scaling in (0.9, 0.8, 0.7)]
    scene = Scene(rivals=rivals, capacity=(10,), nodes=(9,), sizes=(1, 4))
    assert [waits(scene, job) for job in range(3)] == [[], [], [4]]


def test_a_job_of_an_unknown_class_takes_no_minimum_of_a_running_job() -> None:
    rivals = [running(4, sizes=(4,)), waiting(sizes=(2, 4), known=())]
    assert waits(Scene(rivals=rivals), 1) == [2, 4]
    assert waits(Scene(rivals=[rivals[0], waiting(sizes=(2, 4))]), 1) == [], "its class was measured"


@pytest.mark.parametrize(
    "fields", [{"exempt": True}, {"entitled": True}, {"priority": 60}, {"waited_s": 2000.0}]
)
def test_a_newcomer_with_a_claim_of_its_own_may_displace(fields: dict[str, object]) -> None:
    rivals = [running(4, sizes=(4,)), waiting(sizes=(4,), known=(), **fields)]
    assert waits(Scene(rivals=rivals), 1) == []


def test_a_newcomer_starts_on_free_slots_while_another_minimum_does_not_fit() -> None:
    rivals = [running(2, sizes=(2,)), waiting(sizes=(2,), known=()), waiting(sizes=(4,))]
    scene = Scene(rivals=rivals)
    assert not scene.seats.fit
    assert waits(scene, 1) == []


def test_no_job_grows_while_a_minimum_could_use_the_free_slots() -> None:
    """Two slots are free. The second waiting job could start on them, so the first job does not take them."""
    grows = running(2, sizes=(1, 2, 4), priority=50)
    big = waiting(sizes=(4,))
    assert waits(Scene(rivals=[grows, big, waiting(sizes=(2,))])) == [4]
    assert waits(Scene(rivals=[grows, big])) == [], "no waiting job fits the free slots"
    assert waits(Scene(rivals=[grows, big], capacity=(3,))) == [4], "its growth does not fit them either"


def test_exempt_jobs_grow_while_minimums_wait() -> None:
    rivals = [running(2, exempt=True), waiting(sizes=(4,)), waiting(sizes=(2,))]
    assert waits(Scene(rivals=rivals)) == []


@drawn(scenes())
@settings(max_examples=25)
def test_a_job_may_always_keep_shrink_or_take_its_smallest_size(scene: Scene) -> None:
    mask = unproven(scene.given, scene.evidence, scene.tenure, scene.seats)
    assert not (mask & ~scene.given.allowed).any()
    for job, rival in enumerate(scene.rivals):
        if rival.holds:
            own = (scene.kinds == rival.kind) & (scene.slots <= rival.holds)
            assert not mask[job, own].any()
        if rival.entitled or (rival.exempt and scene.seats.fit):
            assert not mask[job].any()
        elif rival.exempt:  # it may start, but have no more than its minimum in the place of a running job
            least = scene.seats.smallest[job]
            assert not mask[job, scene.slots <= scene.slots[least]].any()


@drawn(scenes(kinds=1))
@settings(max_examples=25)
def test_all_explorations_together_fit_the_free_slots(scene: Scene) -> None:
    """Every job that may explore takes its largest unmeasured size at once."""
    given, found = scene.given, scene.seats
    mask = unproven(given, scene.evidence, scene.tenure, found)
    base = np.where(given.current == NOTHING, found.columns, given.current)
    exploring = base.copy()
    for job, rival in enumerate(scene.rivals):
        if rival.exempt or rival.entitled:
            continue
        least = min(rival.sizes)
        tries = given.allowed[job] & ~mask[job] & ~scene.evidence.known[job]
        tries &= scene.slots > max(rival.holds, least)
        if tries.any():
            exploring[job] = int(np.flatnonzero(tries)[-1])
    grown = exploring != base
    if totals(given, base)[0] <= scene.capacity[0] and grown.any():
        assert totals(given, exploring)[0] <= scene.capacity[0]


@drawn(scenes())
@settings(max_examples=20)
def test_more_evidence_never_makes_a_job_wait_in_an_uncontended_round(scene: Scene) -> None:
    if not scene.seats.fit:
        return
    everything = replace(scene.evidence, known=np.ones_like(scene.evidence.known))
    assert not unproven(scene.given, everything, scene.tenure, scene.seats).any()


@pytest.mark.parametrize(
    ("others", "sizes"),
    [
        # The running job fits beside the minimum of the newcomer, whose surplus would stop it.
        ((running(1, sizes=(1,), priority=50), waiting(sizes=(2,), priority=50)), [4]),
        # The running job must leave anyway: nobody else could use the surplus.
        ((running(4, sizes=(4,), priority=50),), []),
    ],
)
def test_a_newcomer_takes_no_surplus_from_a_running_minimum(
    others: tuple[Rival, ...], sizes: list[int]
) -> None:
    newcomer = waiting(sizes=(3, 4), priority=70, exempt=True, rigid=True)
    assert waits(Scene(rivals=[newcomer, *others], sizes=(1, 2, 3, 4))) == sizes


@pytest.mark.parametrize("known", [(), (3,), (3, 6)])
def test_a_running_job_takes_no_surplus_from_a_running_minimum(known: tuple[int, ...]) -> None:
    """One slot is free. A second waiting job of two slots does not make those of the running one free for growth."""
    grows = running(3, sizes=(3, 4, 6), known=known, exempt=not known, priority=50)
    rivals = [grows, running(2, sizes=(2,), priority=30), waiting(sizes=(2,), priority=30)]
    assert waits(Scene(rivals=rivals, capacity=(6,), sizes=(2, 3, 4, 6))) == [6]


@drawn(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2), st.booleans())
@settings(max_examples=60)
def test_no_growth_of_a_higher_priority_stops_a_running_job_while_another_minimum_waits(
    least: int, running_size: int, waiting_size: int, free: int, exempt: bool
) -> None:
    sizes = tuple(range(1, 7))
    grower = running(
        least, sizes=tuple(range(least, 7)), known=() if exempt else sizes, exempt=exempt, priority=70
    )
    others = [
        running(running_size, sizes=(running_size,), priority=30),
        waiting(sizes=(waiting_size,), priority=30),
    ]
    scene = Scene(rivals=[grower, *others], capacity=(least + running_size + free,), sizes=sizes)
    mask = unproven(scene.given, scene.evidence, scene.tenure, scene.seats)
    grows = scene.slots[scene.given.allowed[0] & ~mask[0]].max()
    assert scene.seats.fit or grows <= least + free
