"""Progress of a job to the target of its job file, and the forecast of the samples that it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headway.contract.runtime import Metrics, Restored
from headway.contract.spec_goal import Goal
from headway.contract.views.forecasts import TargetProgress
from headway.contract.views.jobs import JobProgress
from service.domain.perf.convergence import WINDOW
from service.domain.perf.goal_target import (
    after_report,
    forecast_target,
    has_reached,
    reached_text,
    target_of,
    work_left,
    work_to_target,
)
from service.domain.policies.framework.loss_curve import MAX_POINTS

values = st.floats(-1e6, 1e6)


def begun(target: dict[str, float | str], **fields: object) -> JobProgress:
    return JobProgress(goal_target=target_of(Goal(target=target)), **fields)


def metrics(samples: int, value: float, name: str = "loss", rank: int = 0) -> Metrics:
    return Metrics(rank=rank, generation=1, at_s=0.0, epoch=0, samples=samples, values={name: value})


def reported(
    progress: JobProgress, reports: Sequence[float], name: str = "loss", every: int = 100
) -> JobProgress:
    """The progress after so many values, one every `every` samples."""
    for value in reports:
        samples = progress.samples + every
        after = progress.model_copy(update={"samples": samples})
        progress = after_report(progress, after, metrics(samples, value, name))
    return progress


def target(progress: JobProgress) -> TargetProgress:
    assert progress.goal_target is not None
    return progress.goal_target


@pytest.mark.parametrize(
    ("wanted", "reports", "at"),
    [
        # Two of the last three values count, at the third one.
        ({"loss": 1.5}, [3.0, 2.0, 1.6, 1.4, 1.3], 500),
        ({"loss": 1.5}, [3.0, 2.0, 1.4, 1.6, 1.45, 1.6, 1.4], 500),
        ({"accuracy": 0.9}, [0.1, 0.5, 0.95, 0.8, 0.91, 0.92], 500),
        ({"loss": "<= 1.5"}, [1.0, 1.2, 1.4], 300),
        ({"loss": ">= 1.5"}, [1.0, 1.2, 1.4], None),
        # One lucky batch is not enough, and neither are two values.
        ({"loss": 1.5}, [3.0, 2.5, 1.0, 2.4, 2.3, 1.1, 2.2], None),
        ({"loss": "<= 1.5"}, [1.0, 1.0], None),
        # The first value says that it rises to its target; it never does.
        ({"loss": 1.5}, [1.4, 1.3, 1.2, 1.1], None),
        ({"loss": 0.5}, [math.nan, 0.6, 0.4, math.inf, 0.3], 500),
    ],
)
def test_a_target_is_reached_by_the_median_of_three(
    wanted: dict[str, float | str], reports: list[float], at: int | None
) -> None:
    (name,) = wanted
    found = target(reported(begun(wanted), reports, name))
    assert found.reached_samples == at
    assert len(found.recent) <= WINDOW


def test_other_metrics_and_other_ranks_do_not_count() -> None:
    before = begun({"loss": 1.5}, samples=100)
    assert after_report(before, before, metrics(100, 1.0, "accuracy")) is before
    assert after_report(before, before, metrics(100, 1.0, rank=1)) is before
    plain = JobProgress(samples=100)
    assert after_report(plain, plain, metrics(100, 1.0)) is plain


def test_the_end_says_what_was_reached() -> None:
    found = reported(begun({"loss": 1.5}), [3.0, 2.0, 1.2, 1.3, 1.4])
    assert has_reached(found)
    assert reached_text(target(found), 7) == "target reached: loss 1.3 <= 1.5 in epoch 7, at 400 samples"
    rises = reported(begun({"loss": 1.5}), [1.0, 2.0, 3.0, 4.0])
    assert reached_text(target(rises), None) == "target reached: loss 2 >= 1.5, at 300 samples"


def test_a_restored_checkpoint_takes_back_what_came_after_it() -> None:
    before = reported(begun({"loss": 1.5}), [3.0, 2.5, 2.0, 1.4, 1.3])
    assert has_reached(before)
    after = before.model_copy(update={"samples": 350})
    found = after_report(
        before, after, Restored(rank=0, generation=2, at_s=0.0, samples=350, from_generation=1)
    )
    assert not has_reached(found)
    assert (target(found).recent, target(found).present) == ([], None)
    assert [at for at, _ in target(found).points] == [300.0]
    assert target(found).falls is True


def falling(slope: float, offset: float, floor: float) -> Callable[[float], float]:
    return lambda samples: 1.0 / (slope * samples + offset) + floor


def test_the_forecast_of_an_exact_curve_is_exact() -> None:
    # loss = 1 / (samples / 1000 + 0.5) reaches 0.1 after 9,500 samples.
    curve = falling(1e-3, 0.5, 0.0)
    points = [[at, curve(at)] for at in range(200, 2_001, 200)]
    p50, p90 = forecast_target(points, 0.1, falls=True)
    assert p50 == pytest.approx(9_500, rel=1e-3)
    assert p90 is not None
    assert 9_500 < p90 < 11_000


def test_an_accuracy_is_forecast_by_its_distance_from_one() -> None:
    curve = falling(1e-3, 2.0, 0.0)
    points = [[at, 1.0 - curve(at)] for at in range(200, 2_001, 200)]
    # 1 - accuracy = 0.05 at 18,000 samples.
    p50, _ = forecast_target(points, 0.95, falls=False)
    assert p50 == pytest.approx(18_000, rel=1e-3)


def test_a_curve_that_ends_above_the_target_says_nothing() -> None:
    curve = falling(1e-2, 0.5, 1.0)
    points = [[at, curve(at)] for at in range(200, 4_001, 200)]
    assert forecast_target(points, 0.9, falls=True) == (None, None)
    assert forecast_target([[100.0, 2.0], [200.0, 1.9], [300.0, 1.8]], 1.0, falls=True) == (None, None)
    flat = [[float(at), 2.0] for at in range(100, 1_000, 100)]
    assert forecast_target(flat, 1.0, falls=True) == (None, None)


@given(
    slope=st.floats(1e-4, 1e-1),
    offset=st.floats(0.2, 5.0),
    share=st.floats(1.2, 4.0),
    noise=st.lists(st.floats(-0.002, 0.002), min_size=16, max_size=16),
)
def test_a_noisy_curve_is_forecast_within_its_p90(
    slope: float, offset: float, share: float, noise: list[float]
) -> None:
    curve = falling(slope, offset, 0.0)
    span = offset / slope
    points = [[span * (1 + at) / 4, curve(span * (1 + at) / 4) * (1 + noise[at])] for at in range(16)]
    truth = share * points[-1][0]
    p50, p90 = forecast_target(points, curve(truth), falls=True)
    assume(p50 is not None)
    assert p50 is not None
    assert p90 is not None
    assert truth / 2 < p50 < 2 * truth
    assert p50 < p90


@given(reports=st.lists(values, max_size=60), wanted=values, every=st.integers(1, 1_000))
def test_any_reports_keep_a_bounded_and_ordered_state(
    reports: list[float], wanted: float, every: int
) -> None:
    found = reported(begun({"loss": wanted}), reports, every=every)
    state = target(found)
    at = [one for one, _ in state.points]
    assert at == sorted(set(at))
    assert len(at) <= MAX_POINTS
    if state.reached_samples is not None:
        assert state.present is not None
        assert (state.present <= wanted) if state.falls else (state.present >= wanted)
    work = work_to_target(found)
    if work is not None:
        assert work.work >= 1
        assert work.spread >= 0
    assert TargetProgress.model_validate_json(state.model_dump_json()) == state


def test_the_work_left_is_the_smaller_of_total_and_target() -> None:
    known = target_of(Goal(target={"loss": 1.0}))
    assert known is not None
    known = known.model_copy(update={"expected_work": 5_000.0, "expected_work_p90": 9_000.0})
    progress = JobProgress(samples=1_000, total_samples=20_000, goal_target=known)
    work = work_to_target(progress)
    assert work is not None
    assert work.work == 4_000
    assert work.spread == pytest.approx(math.log(2) / 1.28155, rel=1e-3)
    assert work_left(progress) == 4_000
    assert progress.work_end == 5_000
    short = progress.model_copy(update={"total_samples": 2_000})
    assert (work_left(short), short.work_end) == (1_000, 2_000)
    endless = progress.model_copy(update={"total_samples": None})
    assert work_left(endless) == 4_000
    late = progress.model_copy(update={"samples": 6_000})
    assert work_left(late) == 0
    assert late.work_end == 6_000
    assert math.isnan(work_left(JobProgress(samples=5)))
    assert JobProgress(samples=5).work_end is None
