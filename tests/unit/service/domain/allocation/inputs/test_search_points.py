"""Points of a search: batches of a job that adapts its batch, progress on them, and what its class has shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.contract.views.jobs import JobProgress
from service.domain.allocation.configurations.scope import scope_of
from service.domain.allocation.decision.plan import Action, decide
from service.domain.allocation.inputs.estimates import estimates_of
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.inputs.search_points import SearchPoints, batch_grid, points_of
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Measurement, Snapshot
from service.domain.jobs.job import class_of
from service.domain.perf.searches.search import VISIT_STEPS
from service.domain.policies.goodput import Goodput
from tests.unit.service.domain.allocation.scopes import elastic_job, running_alone

ADAPTIVE = {"policy": "adaptive", "global": 64, "max_global": 512}


def measured(
    slots: int, batch: int, per_s: float, steps: int = 100, noise: float | None = 64.0
) -> Measurement:
    """A measurement with a gradient noise scale of `noise` samples."""
    known = {} if noise is None else {"gradient_sqr": 1.0, "gradient_var": noise}
    step_s = batch / per_s
    return Measurement(
        "cpu", slots, per_s, steps, global_batch=batch, step_s=step_s, generation=int(slots == 1), **known
    )


def seeker(
    *points: Measurement, batch: dict[str, Any] | None = None, at: int = 64, **fields: Any
) -> Snapshot:
    progress = JobProgress(samples=1000, total_samples=10_000_000, global_batch=at, max_global_batch=512)
    goal = {"search": "full", "objective": "time", **fields.pop("goal", {})}
    spec = {"batch": ADAPTIVE if batch is None else batch, "goal": goal, "progress": progress, "high": 2}
    return running_alone(1, points=points, live=True, generation=1, **{**spec, **fields})


def points(snapshot: Snapshot) -> SearchPoints:
    scope = scope_of(snapshot)
    allowed = np.ones(scope.columns.by_kind.slots.size, dtype=np.bool_)
    return points_of(scope, estimates_of(scope), 0, allowed)


@pytest.mark.parametrize(
    ("batch", "ranks", "expected"),
    [
        (ADAPTIVE, 512, [64, 128, 256, 512]),
        (ADAPTIVE, None, [0]),
        ({**ADAPTIVE, "max_global": 500}, 512, [64, 128, 256, 500]),
        (ADAPTIVE, 300, [64, 128, 256, 300]),
        (ADAPTIVE, 32, [64]),
        ({**ADAPTIVE, "max_global": 64}, 512, [64]),
        ({"global": 64}, 64, [0]),
    ],
)
def test_batches_double_up_to_the_bound(
    batch: dict[str, Any], ranks: int | None, expected: list[int]
) -> None:
    job = elastic_job(batch=batch, progress=JobProgress(max_global_batch=ranks))
    assert batch_grid(job, keeps_batch=False).tolist() == expected
    assert batch_grid(job, keeps_batch=True).tolist() == [0]


def test_a_job_of_fixed_batch_has_one_point_for_each_column() -> None:
    snapshot = seeker(measured(1, 64, 100.0), batch={"global": 64})
    found = points(snapshot)
    width = scope_of(snapshot).columns.by_kind.slots.size
    assert found.column.tolist() == list(range(width))
    assert not found.batch.any()
    assert found.known.steps[0] == 100
    assert found.known.step_samples[0] == 64
    assert found.at(1, None) == 1
    assert found.at(-1, 64) == -1


def test_goodput_weighs_the_samples_of_a_batch_by_their_progress() -> None:
    """With a noise scale of 64, a sample in a batch of 256 makes 128 / 320 of the progress in one of 64."""
    found = points(seeker(measured(1, 64, 100.0), measured(1, 256, 150.0)))
    small, large = found.at(0, 64), found.at(0, 256)
    assert (found.batch[small], found.batch[large]) == (64, 256)
    assert found.known.per_s[small] == pytest.approx(100.0, rel=0.1)
    assert found.known.per_s[large] == pytest.approx(150.0 * 128 / 320, rel=0.1)
    assert found.known.step_samples[large] == pytest.approx(256 * 128 / 320)
    assert found.known.samples[large] == pytest.approx(100 * 256 * 128 / 320)
    assert found.known.seconds[large] == pytest.approx(100 * 256 / 150.0)
    assert found.known.steps[found.at(0, 128)] == 0
    assert (found.known.low <= found.known.per_s).all()


def test_the_nearest_batch_is_the_present_point() -> None:
    found = points(seeker(measured(1, 64, 100.0)))
    assert found.batch[found.at(0, 90)] == 64
    assert found.batch[found.at(0, 100)] == 128
    assert found.batch[found.at(0, None)] == 64


@pytest.mark.parametrize(
    ("own", "theirs", "shown"),
    [
        ([(1, 64, 100.0)], [(1, 64, 105.0), (2, 64, 190.0)], {(1, 64), (2, 64)}),
        (
            [(1, 64, 100.0)],
            [(1, 64, 120.0), (2, 64, 190.0)],
            set(),
        ),  # another speed: another machine or model
        ([(1, 64, 100.0)], [(2, 64, 190.0)], set()),  # no point in common
        ([], [(1, 64, 100.0), (2, 64, 190.0)], set()),
        ([(1, 64, 100.0), (1, 512, 300.0)], [(1, 64, 100.0), (1, 512, 200.0), (2, 64, 190.0)], set()),
    ],
)
def test_the_class_shows_what_agrees_with_the_first_measurements(
    own: list[tuple[int, int, float]],
    theirs: list[tuple[int, int, float]],
    shown: set[tuple[int, int]],
) -> None:
    snapshot = seeker(*(measured(*one) for one in own))
    (job,) = snapshot.jobs.values()
    stored = {class_of(job.spec): tuple(measured(*one) for one in theirs)}
    found = points(replace(snapshot, class_measurements=stored))
    slots = found.configurations.slots
    seen = {(int(slots[at]), int(found.batch[at])) for at in np.flatnonzero(found.known.shown)}
    assert seen == shown


def test_few_steps_of_the_class_show_nothing() -> None:
    snapshot = seeker(measured(1, 64, 100.0))
    (job,) = snapshot.jobs.values()
    few = (measured(1, 64, 100.0), measured(2, 64, 190.0, steps=VISIT_STEPS - 1))
    found = points(replace(snapshot, class_measurements={class_of(job.spec): few}))
    assert found.known.shown.sum() == 1


def decided(snapshot: Snapshot) -> tuple[Action, int | None, str]:
    (one,) = decide(build_round(snapshot), Goodput(), solve).decisions
    return one.action, one.global_batch, one.message


def test_a_visit_to_another_batch_is_an_order_on_the_same_slots() -> None:
    action, batch, message = decided(seeker(measured(1, 64, 100.0)))
    assert (action, batch) == (Action.ADAPT, 128)
    assert message.endswith("search: visit 2 of 8")


def test_a_settled_batch_is_kept_although_the_climb_would_leave_it() -> None:
    every = [measured(size, batch, 100.0 * size) for size in (1, 2) for batch in (64, 128, 256, 512)]
    fixed = seeker(*every, goal={"objective": "cost"})
    action, batch, _ = decided(fixed)
    assert (action, batch) == (Action.KEEP, None)
    # Each sample of a batch of 64 makes the most progress, and twice the slots are no cheaper.
    assert build_round(fixed).search.batches == {"j": 64}


def test_a_change_of_slots_carries_the_batch_of_the_visit() -> None:
    at_one = [measured(1, batch, 100.0) for batch in (64, 128, 256, 512)]
    action, batch, _ = decided(seeker(*at_one, at=512))
    assert (action, batch) == (Action.CHANGE, 64)


def test_the_batch_stays_until_the_slots_of_the_search_are_there() -> None:
    every = [measured(size, batch, 100.0 * size) for size in (1, 2) for batch in (64, 128, 256, 512)]
    round_ = build_round(seeker(*every, goal={"objective": "cost"}))
    elsewhere = replace(round_.search, target=np.array([1]), batches={"j": 512})
    (one,) = decide(replace(round_, search=elsewhere), Goodput(), solve).decisions
    assert (one.action, one.global_batch) == (Action.KEEP, None)
