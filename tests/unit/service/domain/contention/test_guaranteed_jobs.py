"""Seats: which jobs must have slots in a round, and by when a waiting job has its turn."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings

from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.allocation.knapsack.solver import solve
from service.domain.contention.guaranteed_jobs import guaranteed_jobs_of, latest_turn_s, smallest_columns
from service.domain.policies.registry import policy
from tests.unit.service.domain.contention.scenes import Rival, Scene, keeps_rows, running, scenes, waiting


def seats(scene: Scene) -> list[int]:
    """The sizes of the seats of all jobs, 0 without one."""
    return scene.sizes_of(scene.seats.columns)


@pytest.mark.parametrize(
    ("sizes", "holds", "kind", "smallest"),
    [
        ((1, 2, 4), 0, 0, (1, 0)),
        ((2, 4), 0, 0, (2, 0)),
        ((1, 2), 2, 0, (1, 0)),
        ((1, 2), 2, 1, (1, 1)),
        ((4,), 4, 1, (4, 1)),
    ],
)
def test_the_smallest_configuration_is_on_the_kind_that_the_job_holds(
    sizes: tuple[int, ...], holds: int, kind: int, smallest: tuple[int, int]
) -> None:
    scene = Scene(rivals=[Rival(sizes=sizes, holds=holds, kind=kind)], capacity=(4, 4))
    assert smallest_columns(scene.given).tolist() == [scene.column(*smallest)]


def test_a_smaller_size_of_another_kind_comes_before_the_own_kind() -> None:
    scene = Scene(rivals=[running(2, sizes=(1, 2))], capacity=(4, 4))
    only_there = scene.given.allowed.copy()
    only_there[0, scene.column(1, 0)] = False
    assert smallest_columns(replace(scene.given, allowed=only_there)).tolist() == [scene.column(1, 1)]


def test_among_equal_sizes_the_held_column_comes_first() -> None:
    """Two columns of one size and kind differ in their nodes; the job holds the second."""
    scene = Scene(rivals=[running(2, sizes=(1, 2))], sizes=(1, 2))
    slots = np.array([2, 2])
    configurations = replace(scene.given.configurations, slots=slots)
    given = replace(scene.given, configurations=configurations, current=np.array([1]))
    assert smallest_columns(given).tolist() == [1]


def test_a_job_without_an_allowed_configuration_or_without_speed_has_no_smallest() -> None:
    scene = Scene(rivals=[waiting(sizes=()), waiting()])
    still = replace(scene.given, goodput=np.zeros_like(scene.given.goodput))
    assert smallest_columns(scene.given).tolist() == [NOTHING, 0]
    assert smallest_columns(still).tolist() == [NOTHING, NOTHING]


def test_while_the_minimums_fit_every_job_has_a_seat_of_its_smallest_size() -> None:
    scene = Scene(rivals=[running(4), waiting(), waiting(sizes=(2, 4))])
    assert seats(scene) == [1, 1, 2]
    assert scene.seats.fit
    assert scene.seats.reserving is None


def test_exactly_full_fits_and_one_more_does_not() -> None:
    assert Scene(rivals=[waiting()] * 4).seats.fit
    assert not Scene(rivals=[waiting()] * 5).seats.fit


def test_while_they_do_not_fit_only_protected_jobs_have_seats() -> None:
    new, old = running(2, run_s=10.0, sizes=(2,)), running(2, run_s=600.0, sizes=(2,))
    scene = Scene(rivals=[old, new, waiting(sizes=(2,))])
    assert seats(scene) == [0, 2, 0]
    assert scene.seats.firm.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("fields", "firm"),
    [
        ({"run_s": 59.9}, True),
        ({"run_s": 60.0}, False),
        ({"run_s": 600.0, "pinned": True}, True),
        ({"run_s": 10.0, "forced": True}, False),
        ({"run_s": 600.0, "pinned": True, "forced": True}, False),
        ({"run_s": 100.0, "min_run_s": 120.0}, True),
    ],
)
def test_a_running_job_is_firm_during_its_minimum_run_time_or_at_a_fixed_size(
    fields: dict[str, object], firm: bool
) -> None:
    scene = Scene(rivals=[running(4, sizes=(4,), **fields), waiting(sizes=(4,))])
    assert scene.seats.firm.tolist() == [firm, False]
    assert seats(scene) == [4 if firm else 0, 0]


@pytest.mark.parametrize(("waiter", "firm"), [(40, True), (50, True), (60, False)])
def test_a_waiting_job_of_a_higher_priority_removes_the_protection(waiter: int, firm: bool) -> None:
    scene = Scene(rivals=[running(4, sizes=(4,), run_s=2.0), waiting(sizes=(4,), priority=waiter, age_s=1.0)])
    assert scene.seats.firm[0] == firm


def test_a_job_that_could_never_start_removes_no_protection() -> None:
    """Its project may have one slot, and the job needs four."""
    quota = Row(
        name="quota/p", capacity=1.0, demand=np.array([1.0, 2.0, 4.0]), jobs=np.array([False, True, False])
    )
    first = waiting(sizes=(4,), priority=100, age_s=1.0)
    rivals = [running(4, sizes=(4,), run_s=2.0), first, waiting(sizes=(4,))]
    scene = Scene(rivals=rivals, rows=(quota,))
    assert scene.seats.firm[0]
    assert not Scene(rivals=rivals).seats.firm[0]


@pytest.mark.parametrize(("waited_s", "overdue"), [(1799.9, False), (1800.0, True), (9000.0, True)])
def test_a_job_has_its_turn_after_the_maximum_wait(waited_s: float, overdue: bool) -> None:
    scene = Scene(rivals=[running(4, sizes=(4,)), waiting(sizes=(4,), waited_s=waited_s)])
    assert seats(scene) == [0, 4 if overdue else 0]


def test_the_longest_wait_has_the_first_turn_and_a_higher_priority_comes_before_it() -> None:
    rivals = [waiting(sizes=(4,), waited_s=wait_s) for wait_s in (2000.0, 3000.0, 2500.0)]
    assert seats(Scene(rivals=rivals)) == [0, 4, 0]
    first = [*rivals, waiting(sizes=(4,), waited_s=1900.0, priority=60)]
    assert seats(Scene(rivals=first)) == [0, 0, 0, 4]


def test_among_equal_waits_the_job_submitted_first_has_its_turn() -> None:
    assert seats(Scene(rivals=[waiting(sizes=(4,), waited_s=2000.0)] * 3)) == [4, 0, 0]


def test_a_firm_job_weighs_more_than_all_turns() -> None:
    overdue = [waiting(sizes=(1,), waited_s=5000.0)] * 4
    assert seats(Scene(rivals=[running(4, sizes=(4,), run_s=1.0), *overdue])) == [4, 0, 0, 0, 0]


def test_slots_that_come_back_soon_count_as_enough_and_running_jobs_go_first() -> None:
    rivals = [running(2, sizes=(2,)), running(2, sizes=(2,)), waiting(sizes=(2,))]
    short, soon = Scene(rivals=rivals), Scene(rivals=rivals, coming=(2,))
    assert not short.seats.fit
    assert soon.seats.fit
    assert seats(soon) == [2, 2, 0]
    assert not Scene(rivals=rivals, coming=(1,)).seats.fit


def test_packing_rows_do_not_count_for_slots_that_come_back() -> None:
    rivals = [running(2, sizes=(2,)), running(2, sizes=(2,)), waiting(sizes=(2,))]
    packing = Row(name="packing/kind-0/2", capacity=4.0, demand=np.array([0.0, 2.0, 4.0]))
    other = replace(packing, name="budget/all")
    assert Scene(rivals=rivals, coming=(2,), rows=(packing,)).seats.fit
    assert not Scene(rivals=rivals, coming=(2,), rows=(other,)).seats.fit


def test_slots_are_kept_for_the_first_overdue_job_that_does_not_fit_yet() -> None:
    busy = running(4, sizes=(4,), run_s=1.0)
    rivals = [busy, waiting(sizes=(2,), waited_s=1900.0), waiting(sizes=(4,), waited_s=2000.0)]
    assert Scene(rivals=rivals).seats.reserving == 2
    assert Scene(rivals=[busy, waiting(sizes=(4,), waited_s=100.0)]).seats.reserving is None


def test_no_slots_are_kept_for_a_job_that_does_not_fit_beside_fixed_sizes() -> None:
    fixed = running(2, sizes=(2,), pinned=True)
    late = [waiting(sizes=(4,), waited_s=3000.0), waiting(sizes=(2,), waited_s=2000.0)]
    scene = Scene(rivals=[fixed, running(2, sizes=(2,), run_s=1.0), *late])
    assert scene.seats.reserving == 3


def test_jobs_beyond_their_projects_quota_are_not_counted() -> None:
    quota = Row(
        name="quota/p",
        capacity=2.0,
        demand=np.array([1.0, 2.0, 4.0]),
        jobs=np.array([True, True, True, False]),
    )
    rivals = [running(1), waiting(), waiting(), waiting(sizes=(2,))]
    scene = Scene(rivals=rivals, rows=(quota,))
    assert scene.seats.fit
    assert seats(scene) in ([1, 1, 0, 2], [1, 0, 1, 2])


@pytest.mark.parametrize(
    ("rivals", "bounds_s"),
    [
        # No job waits.
        ([running(4)], [0.0]),
        # 1800 s of waiting, then the turn of the running job and one more for itself: 1 + ceil(2 * 4 / 4) = 3.
        ([running(4), waiting(sizes=(4,))], [0.0, 1800.0 + 3 * 60.0]),
        # Half of the wait is over, and the second in the queue has two jobs before it: 1 + ceil(2 * 8 / 4) = 5.
        (
            [waiting(sizes=(4,), waited_s=900.0), waiting(sizes=(4,), waited_s=800.0)],
            [900.0 + 3 * 60.0, 1000.0 + 5 * 60.0],
        ),
        # An overdue job has no time left to wait; the longest minimum run time counts: 1 + ceil(2 * 1 / 4) = 2.
        ([running(4, min_run_s=300.0), waiting(waited_s=5000.0)], [0.0, 2 * 300.0]),
        # A fixed size of three slots leaves one, too few for a job of two.
        ([running(2, pinned=True), running(1, pinned=True), waiting(sizes=(2,))], [0.0, 0.0, np.inf]),
        # A job that never changes may come first and stay: the other has no bound.
        ([waiting(sizes=(4,), rigid=True), waiting()], [1800.0 + 3 * 60.0, np.inf]),
    ],
)
def test_the_latest_turn_by_hand(rivals: list[Rival], bounds_s: list[float]) -> None:
    scene = Scene(rivals=rivals)
    assert latest_turn_s(scene.given, scene.tenure, scene.seats).tolist() == bounds_s


@drawn(scenes())
@settings(max_examples=25)
def test_seats_together_keep_every_row_and_are_smallest_configurations(scene: Scene) -> None:
    found = scene.seats
    assert keeps_rows(scene.given, found.columns)
    slots, smallest = scene.sizes_of(found.columns), scene.sizes_of(found.smallest)
    assert all(size in (0, least) for size, least in zip(slots, smallest, strict=True))


@drawn(scenes(kinds=1))
@settings(max_examples=25)
def test_minimums_fit_exactly_if_their_sum_does(scene: Scene) -> None:
    least = sum(min(one.sizes) for one in scene.rivals)
    assert scene.seats.fit == (least <= scene.capacity[0] + scene.tenure.coming[0])
    if least <= scene.capacity[0]:
        assert seats(scene) == [min(one.sizes) for one in scene.rivals]


@drawn(scenes(kinds=1))
@settings(max_examples=25)
def test_no_other_set_of_jobs_has_more_weight_than_the_seats(scene: Scene) -> None:
    """Compared with every subset: firm jobs first, then overdue ones."""
    found = scene.seats
    if found.fit:
        return
    least = [min(one.sizes) for one in scene.rivals]
    late = (scene.given.current == NOTHING) & (scene.given.waited_s >= scene.max_wait_s)
    most = 0.0
    weight = np.where(found.firm, 100.0, np.where(late, 1.0, 0.0))
    for chosen in itertools.product((False, True), repeat=len(least)):
        if sum(size for size, taken in zip(least, chosen, strict=True) if taken) <= scene.capacity[0]:
            most = max(most, float(weight[list(chosen)].sum()))
    firm_seats = float(weight[found.columns != NOTHING].sum())
    assert firm_seats // 100 == most // 100, "as many firm jobs as possible"
    if len(set(scene.tenure.priority.tolist())) == 1:
        assert (found.columns[(weight == 0)] == NOTHING).all()


@drawn(scenes())
@settings(max_examples=20)
def test_the_bound_on_the_wait_shrinks_as_time_passes(scene: Scene) -> None:
    later = replace(
        scene.given, waited_s=np.where(scene.given.current == NOTHING, scene.given.waited_s + 100.0, 0.0)
    )
    now_s = latest_turn_s(scene.given, scene.tenure, scene.seats)
    then_s = latest_turn_s(later, scene.tenure, scene.seats)
    assert (then_s <= now_s).all()
    assert (now_s[scene.given.current != NOTHING] == 0).all()


def test_a_job_larger_than_the_cluster_does_not_fit() -> None:
    scene = Scene(rivals=[waiting(sizes=(4,))], capacity=(2,))
    assert not scene.seats.fit
    assert seats(scene) == [0]
    assert latest_turn_s(scene.given, scene.tenure, scene.seats).tolist() == [np.inf]


def test_protection_is_lifted_only_where_the_slots_are_taken_from_the_lowest_and_fewest() -> None:
    young = {"run_s": 10.0, "sizes": (1,)}
    low, lower, high = (running(1, priority=each, **young) for each in (30, 20, 60))
    first = waiting(sizes=(1,), priority=90, age_s=5.0)
    assert Scene(rivals=[low, lower, high, first], capacity=(3,)).seats.firm.tolist() == [
        True,
        False,
        True,
        False,
    ]
    pair = running(2, run_s=10.0, sizes=(2,), priority=20)
    two = replace(first, sizes=(2,))
    assert Scene(rivals=[lower, pair, two], capacity=(3,)).seats.firm.tolist() == [True, False, False]


def test_a_waiting_job_that_does_not_fit_even_so_removes_no_protection() -> None:
    rivals = [
        running(2, run_s=10.0, sizes=(2,), priority=50),
        running(2, run_s=10.0, sizes=(2,), priority=95),
    ]
    scene = Scene(rivals=[*rivals, waiting(sizes=(4,), priority=90, age_s=5.0)])
    assert scene.seats.firm.tolist() == [True, True, False]


def test_a_turn_that_began_while_a_higher_priority_waited_lasts_its_minimum_run_time() -> None:
    def firm(run_s: float) -> bool:
        given = running(2, sizes=(2,), run_s=run_s)
        return bool(
            Scene(rivals=[given, waiting(sizes=(2,), priority=90, age_s=40.0)], capacity=(2,)).seats.firm[0]
        )

    assert [firm(run_s) for run_s in (30.0, 50.0, 61.0)] == [True, False, False]


def test_two_small_jobs_leave_room_for_a_larger_one_of_a_higher_priority() -> None:
    scene = Scene(
        rivals=[running(1, sizes=(1,)), running(1, sizes=(1,)), waiting(sizes=(2,), priority=70)],
        capacity=(2,),
    )
    assert seats(scene) == [0, 0, 2]


def test_a_lower_priority_has_nothing_that_a_waiting_job_of_a_higher_one_could_use() -> None:
    """Only one of the two of priority 70 fits; the running job leaves, whichever it is."""
    rivals = [running(1, sizes=(1,)), waiting(sizes=(2,), priority=70), waiting(sizes=(2,), priority=70)]
    scene = Scene(rivals=rivals, capacity=(2,))
    assert scene.seats.barred.tolist() == [True, False, False]
    assert not scene.contest.given.allowed[0].any()


def test_lower_priorities_take_what_the_higher_ones_cannot_use() -> None:
    scene = Scene(
        rivals=[running(2, sizes=(2,), priority=90), waiting(sizes=(2,), priority=70), waiting(sizes=(1,))],
        capacity=(3,),
    )
    assert seats(scene) == [2, 0, 0]
    assert scene.seats.barred.tolist() == [False, False, False]


def test_released_slots_go_to_the_job_for_which_they_were_released() -> None:
    """The other waiting job has a turn and the same priority, and even so the slots are promised."""
    rivals = [waiting(sizes=(2,), promised_slots=True), waiting(sizes=(2,), waited_s=5000.0)]
    assert seats(Scene(rivals=rivals, capacity=(2,))) == [2, 0]


@pytest.mark.parametrize(("remaining", "barred"), [(100.0, True), (100_000.0, False), (np.nan, False)])
def test_nobody_is_stopped_for_a_job_that_gains_less_than_the_cost(remaining: float, barred: bool) -> None:
    """A job of 100 samples trains for a second, and a stop and two starts cost 17."""
    rivals = [running(2, sizes=(2,), restart_s=17.0), waiting(sizes=(2,), remaining=remaining, priority=90)]
    assert bool(Scene(rivals=rivals, capacity=(2,)).seats.barred[1]) == barred
    assert not Scene(rivals=rivals[1:], capacity=(2,)).seats.barred[0], "free slots cost nobody anything"


def test_a_turn_after_the_maximum_wait_does_not_precede_a_waiting_job_of_a_higher_priority() -> None:
    rivals = [
        running(2, sizes=(2,), priority=70),
        waiting(sizes=(2,), priority=60),
        waiting(sizes=(2,), waited_s=5000.0),
    ]
    assert seats(Scene(rivals=rivals, capacity=(2,))) == [2, 0, 0]
    assert seats(Scene(rivals=[rivals[0], rivals[2]], capacity=(2,))) == [0, 2]


@pytest.mark.parametrize("name", ["srtf", "las", "gavel"])
def test_a_job_has_its_turn_although_a_policy_of_requested_sizes_serves_fewer_jobs_than_have_seats(
    name: str,
) -> None:
    """All smallest sizes fit, and the two jobs that run at their requested sizes come first by the policy."""
    wide = running(2, sizes=(1, 2), remaining=1000.0)
    late = waiting(sizes=(1, 2), waited_s=5000.0, remaining=1e9)
    scene = Scene(rivals=[wide, wide, late])
    assert scene.seats.fit
    assert scene.seats.next_turn.tolist() == [0, 0, 1]
    assert policy(name).choose(scene.contest.given, solve).chosen[2] != NOTHING
    early = Scene(rivals=[wide, wide, replace(late, waited_s=5.0)])
    assert early.seats.next_turn.tolist() == [0, 0, 0]


def test_deadlines_come_before_promised_slots_and_these_before_long_waits() -> None:
    one, other = waiting(waited_s=5000.0, sizes=(1,)), waiting(waited_s=6000.0, sizes=(1,))
    promised = waiting(waited_s=10.0, sizes=(1,), promised_slots=True)
    scene = Scene(rivals=[one, other, promised, waiting(sizes=(1,))])
    assert scene.seats.next_turn.tolist() == [1, 2, 3, 0]
    due = np.array([False, False, False, True])
    assert guaranteed_jobs_of(scene.given, scene.tenure, solve, due).next_turn.tolist() == [1, 2, 3, 4]


def test_a_long_wait_does_not_precede_a_waiting_job_of_a_higher_priority_where_all_minimums_fit() -> None:
    rivals = [
        running(2, sizes=(1, 2)),
        waiting(sizes=(1,), waited_s=5000.0),
        waiting(sizes=(1,), priority=90),
    ]
    assert Scene(rivals=rivals).seats.next_turn.tolist() == [0, 0, 0]
    assert Scene(rivals=rivals[:2]).seats.next_turn.tolist() == [0, 1]
