"""Searches: which jobs search, what a search knows, and how its target reaches the policy's input."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.run_facts import MemoryUse
from headway.contract.views.forecasts import SearchPhase, SearchView
from headway.contract.views.jobs import JobProgress
from service.domain.allocation.configurations.scope import RoundScope, scope_of
from service.domain.allocation.inputs.estimates import estimates_of
from service.domain.allocation.inputs.notes import notes_of
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.inputs.searching import Searches, search_view, searches_of
from service.domain.cluster.snapshot import Limit, Snapshot
from service.domain.perf.searches.search import BOUND, VISIT_STEPS, SearchStep
from tests.unit.service.builders import NOW, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job, on, running_alone, speeds

GOODPUT = np.array([[100.0, 150.0, 180.0], [10.0, 20.0, 0.0], [5.0, 6.0, 7.0]])


def targets(*columns: int) -> Searches:
    return Searches(target=np.array(columns, dtype=np.int64))


def searching(snapshot: Snapshot) -> tuple[RoundScope, Searches]:
    scope = scope_of(snapshot)
    estimates = estimates_of(scope)
    return scope, searches_of(scope, estimates, notes_of(scope, estimates))


def seeker(size: int = 1, points: tuple[Any, ...] = (), **fields: Any) -> Snapshot:
    """A job that searches in place and has run long enough to change."""
    goal = {"search": "full", "objective": "time", **fields.pop("goal", {})}
    progress = fields.pop("progress", JobProgress(samples=1000, total_samples=10_000_000))
    return running_alone(size, points=points, live=True, goal=goal, progress=progress, **fields)


def step_of(snapshot: Snapshot) -> SearchStep:
    return searching(snapshot)[1].steps["j"]


def target_size(snapshot: Snapshot) -> int:
    scope, search = searching(snapshot)
    return int(np.append(scope.columns.configurations.slots, 0)[search.target[0]])


def test_only_the_target_of_each_search_is_opened() -> None:
    mask = np.array([[True, False, True], [True, True, True], [True, True, True]])
    assert targets(2, -1, 0).opened(mask).tolist() == [
        [False, False, True],
        [False, False, False],
        [True, False, False],
    ]
    assert not targets(1, -1, -1).opened(mask)[0].any(), "a target is opened only where the mask allows it"


def test_a_target_has_the_largest_goodput_and_the_weight_of_its_own() -> None:
    found = targets(1, -1, -1).preferred(GOODPUT)
    assert found[0].tolist() == [100.0, 150.0, 135.0]
    assert (found[1:] == GOODPUT[1:]).all()
    assert GOODPUT[0, 2] == 180.0, "the input is unchanged"


def test_a_target_of_unknown_speed_changes_nothing() -> None:
    assert (targets(-1, 2, -1).preferred(GOODPUT) == GOODPUT).all()


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_preferred_goodput_is_largest_at_the_target_and_never_above_the_true_one(
    columns: list[int], seed: int
) -> None:
    goodput = np.random.default_rng(seed).uniform(0.1, 9.0, (len(columns), 4))
    found = targets(*columns).preferred(goodput)
    assert (found <= goodput).all()
    for row, column in enumerate(columns):
        if column >= 0:
            assert found[row].argmax() == column
            assert found[row, column] == goodput[row, column]
        else:
            assert (found[row] == goodput[row]).all()


def test_prices_count_only_for_jobs_whose_search_has_not_considered_them() -> None:
    factors = np.array([[0.5, 1.0], [0.25, 1.0]])
    found = targets(-1, 0).unbiased(factors)
    assert found is not None
    assert found.tolist() == [[0.5, 1.0], [1.0, 1.0]]
    assert targets(0).unbiased(None) is None


def test_the_wanted_size_is_that_of_the_target() -> None:
    slots, others = np.array([1, 2, 4]), np.array([7, 8, 9])
    assert targets(-1, 2, 0).sizes(slots, others).tolist() == [7, 4, 1]
    assert targets(-1, -1, -1).sizes(slots, others).tolist() == [7, 8, 9]
    assert targets().sizes(np.array([], dtype=np.int64), np.array([], dtype=np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("fields", "searches"),
    [
        ({}, True),
        ({"goal": {"search": None}}, False),
        ({"pinned_size": 2}, False),
        ({"age_s": 600.0, "points": ()}, False),
        ({"age_s": 5.0, "points": ()}, True),
    ],
)
def test_a_job_searches_if_its_goal_says_so_and_its_size_may_change(
    fields: dict[str, Any], searches: bool
) -> None:
    fields = {"points": speeds((1, 100.0)), **fields}
    _, search = searching(seeker(**fields))
    step = search.steps.get("j")
    if "goal" in fields:
        assert step is None
    else:
        assert step is not None
        assert (step.phase is not SearchPhase.OFF) == searches
    assert (search.target[0] >= 0) == searches


def test_a_job_that_never_changes_does_not_search() -> None:
    job = elastic_job(goal={"search": "full"}, elastic={"resize": "never"})
    step = step_of(snapshot_of([node_of("n", 4)], [job]))
    assert (step.phase, step.target) == (SearchPhase.OFF, -1)
    assert "never" in step.reason


def measured(*sizes: int, steps: int = VISIT_STEPS) -> tuple[Any, ...]:
    return tuple(replace(one, steps=steps) for size in sizes for one in speeds((size, 100.0 * size**0.8)))


def test_a_search_visits_sizes_that_were_not_measured_long_enough() -> None:
    assert step_of(seeker(points=measured(1))).phase is SearchPhase.VISITING
    assert target_size(seeker(points=measured(1))) != 1
    few = seeker(points=measured(1, steps=VISIT_STEPS - 1))
    assert target_size(few) == 1, "the present size is measured first"


def test_a_search_settles_on_the_fastest_size_once_all_are_measured() -> None:
    snapshot = seeker(points=measured(*range(1, 9)))
    assert step_of(snapshot).phase is SearchPhase.SETTLED
    assert target_size(snapshot) == 8


def test_a_search_settles_within_its_limit_of_dollars() -> None:
    """36 samples a second cost 0.10 $ an hour and slot: the remainder of the limit excludes large sizes."""
    goal = {"objective": "time", "max_cost_usd": 1000.0}
    nodes = (node_of("n", 8, usd_per_slot_h=1.0),)
    snapshot = seeker(points=measured(*range(1, 9)), goal=goal, nodes=nodes)
    rich = replace(snapshot, limits={"j": Limit(1e6)})
    poor = replace(snapshot, limits={"j": Limit(30.0)})
    assert target_size(rich) == 8
    assert target_size(poor) < 8


def test_without_prices_a_limit_of_dollars_has_no_effect() -> None:
    goal = {"objective": "time", "max_cost_usd": 1e-6}
    assert target_size(seeker(points=measured(*range(1, 9)), goal=goal)) == 8


def test_a_deadline_moves_a_search_for_low_cost_to_more_slots() -> None:
    nodes = (node_of("n", 8, usd_per_slot_h=1.0),)
    total = JobProgress(samples=0, total_samples=1_000_000)
    easy = seeker(points=measured(*range(1, 9)), goal={"objective": "cost"}, nodes=nodes, progress=total)
    urgent = seeker(
        points=measured(*range(1, 9)),
        goal={"objective": "cost", "deadline": NOW + timedelta(seconds=3000)},
        nodes=nodes,
        progress=total,
    )
    assert target_size(easy) == 1
    assert target_size(urgent) > 4, "333 samples a second are needed"


def test_a_search_visits_no_size_at_which_a_rank_lacks_memory() -> None:
    nodes = (node_of("n", 8, usd_per_slot_h=1.0),)
    memory = MemoryUse(peak_bytes=90, shard_bytes=60, device_bytes=100, fsdp=4, samples=8)
    progress = JobProgress(samples=0, total_samples=1_000_000, mesh="fsdp=4", memory=memory, global_batch=32)
    snapshot = seeker(
        4,
        points=measured(*range(1, 9)),
        goal={"objective": "cost"},
        nodes=nodes,
        batch={"global": 32, "max_local": 8},
        progress=progress,
    )
    assert target_size(snapshot) == 4


@pytest.mark.parametrize(("place", "target"), [("2 cpu slots", 2), ("4 cpu slots", 8)])
def test_a_settled_job_stays_unless_another_size_is_clearly_better(place: str, target: int) -> None:
    """Eight slots are 1 % faster than two: too little to leave the size on which the search has settled.

    A job that another change has moved away from that size goes to the best one."""
    points = tuple(replace(one, steps=50) for one in speeds((1, 100.0), (2, 200.0), (4, 201.0), (8, 202.0)))
    view = SearchView(
        mode="full", phase=SearchPhase.SETTLED, device_kind="cpu", slots=2, place=place, visited=4, visits=4,
        skipped=0, time_s=1.0, cost_usd=0.0, overhead_s=0.0, overhead_usd=0.0, overhead_share=None, bound=BOUND,
        reason="",
    )  # fmt: skip
    progress = JobProgress(samples=1000, total_samples=10_000_000, search=view)
    snapshot = seeker(2, points, progress=progress, elastic={"sizes": "pow2"})
    assert target_size(snapshot) == target
    assert step_of(snapshot).phase is SearchPhase.SETTLED


def test_a_search_counts_in_the_unit_of_the_job_s_work() -> None:
    """All sizes take batches of 512, whose samples are worth 10,064 / 10,512: both units give the same seconds."""
    worth = 10_064 / 10_512
    batch = {"policy": "adaptive", "global": 64, "max_global": 512}
    noisy = {"gradient_sqr": 1.0, "gradient_var": 1e4}
    points = tuple(
        replace(one, global_batch=512, step_s=512 / one.samples_per_s, **noisy)
        for one in speeds(*[(slots, 256.0 * slots**0.8) for slots in (1, 2, 4)])
    )
    steps = []
    for counted in (1.0, worth):
        known: dict[str, Any] = {"samples": 10**6, "total_samples": 10**8, "global_batch": 512}
        if counted != 1.0:
            known |= {"progress": worth * 10**6, "total_progress": worth * 10**8}
        progress = JobProgress(**known, max_global_batch=512)
        snapshot = seeker(1, points, progress=progress, batch=batch, high=4, elastic={"sizes": "pow2"})
        table = estimates_of(scope_of(snapshot)).table
        assert table.efficiency[0] == pytest.approx(worth)
        steps.append(step_of(snapshot))
    plain, by_progress = steps
    assert (by_progress.phase, by_progress.target) == (plain.phase, plain.target)
    assert by_progress.spent.time_s == pytest.approx(plain.spent.time_s, rel=1e-6)
    assert by_progress.spent.overhead_s == pytest.approx(plain.spent.overhead_s, rel=1e-6)


def test_absurd_measurements_are_no_visits() -> None:
    absurd = tuple(replace(one, samples_per_s=float("nan")) for one in measured(*range(1, 9)))
    assert step_of(seeker(points=(*measured(1), *absurd))).phase is SearchPhase.VISITING


def test_the_view_of_a_step_names_its_target() -> None:
    scope, search = searching(seeker(points=measured(*range(1, 9))))
    view = search_view(scope.jobs[0], search.steps["j"], scope.columns)
    assert (view.mode, view.phase, view.device_kind, view.slots) == ("full", SearchPhase.SETTLED, "cpu", 8)
    assert view.place == "8 cpu slots"
    assert view.bound == BOUND


def test_the_view_of_a_job_that_does_not_search_has_no_target() -> None:
    scope, search = searching(seeker(pinned_size=2))
    view = search_view(scope.jobs[0], search.steps["j"], scope.columns)
    assert (view.phase, view.device_kind, view.slots, view.place) == (SearchPhase.OFF, None, None, "")


def test_a_search_opens_a_size_that_exploration_excludes_and_pays_for_its_own_change() -> None:
    snapshot = seeker(points=measured(1))
    round_ = build_round(snapshot)
    target = int(round_.search.target[0])
    assert round_.given.allowed[0, target]
    assert round_.given.change_s[0] == 0.0
    assert round_.given.requested_slots[0] == round_.columns.configurations.slots[target]
    assert round_.given.goodput[0].argmax() == target


def test_two_searching_jobs_have_targets_of_their_own() -> None:
    jobs = [
        elastic_job(
            name,
            state=RUNNING,
            live=True,
            high=2,
            goal={"search": "full"},
            progress=JobProgress(samples=9, total_samples=10**7),
        )
        for name in ("a", "b")
    ]
    held = {"a": on("n", 0), "b": on("n", 1, 2)}
    snapshot = snapshot_of([node_of("n", 4)], jobs, held, {"a": measured(1), "b": measured(2)})
    scope, search = searching(snapshot)
    assert set(search.steps) == {"a", "b"}
    assert scope.columns.configurations.slots[search.target].tolist() == [2, 1]
