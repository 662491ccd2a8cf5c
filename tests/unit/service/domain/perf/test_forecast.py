"""Tests of remaining work, time and cost against closed forms and random draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.views.jobs import JobProgress
from service.domain.perf.forecast import (
    Z90,
    ClassTotals,
    WorkSource,
    forecast,
    learn_totals,
    remaining_of,
    remaining_samples,
)
from tests.unit.service.builders import job_of, wild_floats

NAN = math.nan


def one(**given: Any) -> tuple[float, float, float, float]:
    """Return a forecast of one configuration."""
    got = forecast(
        **{
            name: np.array(value, float)
            for name, value in {
                "goodput": 10.0,
                "low": 10.0,
                "remaining": 7200.0,
                "remaining_spread": 0.0,
                "usd_per_h": 3.0,
                **given,
            }.items()
        }
    )
    return (
        float(got.time_p50_s),
        float(got.time_p90_s),
        float(got.cost_p50_usd),
        float(got.cost_p90_usd),
    )


def test_time_is_work_over_speed_and_cost_is_time_times_price() -> None:
    assert one() == pytest.approx((720.0, 720.0, 0.6, 0.6))
    assert one(pause_s=180.0) == pytest.approx((900.0, 900.0, 0.75, 0.75))


def test_squares_of_spreads_add() -> None:
    time, late, _, _ = one(low=10.0 * math.exp(-Z90 * 0.3), remaining_spread=0.4)
    assert time == pytest.approx(720.0)
    assert late == pytest.approx(720.0 * math.exp(Z90 * 0.5))


def test_p90_is_not_exceeded_nine_times_of_ten() -> None:
    draw = np.random.default_rng(3)
    work = 7200.0 * np.exp(0.4 * draw.standard_normal(40_000))
    speed = 10.0 * np.exp(0.3 * draw.standard_normal(40_000))
    train = work / speed
    actual = train + 60.0 * draw.poisson(8.0 * train / 3600)
    time, late, _, _ = one(
        low=10.0 * math.exp(-Z90 * 0.3), remaining_spread=0.4, losses_per_h=8.0, loss_s=60.0
    )
    assert np.mean(actual <= late) == pytest.approx(0.9, abs=0.02)
    assert np.mean(actual <= time) == pytest.approx(0.5, abs=0.02)


def test_losses_spread_by_their_number() -> None:
    draw = np.random.default_rng(4)
    actual = 7200.0 + 600.0 * draw.poisson(4.0 * 2.0, 40_000)
    time, late, cost, _ = one(remaining=72_000.0, losses_per_h=4.0, loss_s=600.0)
    assert time == pytest.approx(np.mean(actual), rel=0.01)
    assert late == pytest.approx(np.quantile(actual, 0.9), rel=0.03)
    assert cost == pytest.approx(3.0 * time / 3600)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"goodput": 0.0}, (math.inf, math.inf, math.inf, math.inf)),
        ({"goodput": NAN}, (math.inf, math.inf, math.inf, math.inf)),
        ({"goodput": 0.0, "usd_per_h": 0.0}, (math.inf, math.inf, 0.0, 0.0)),
        ({"remaining": NAN}, (NAN, NAN, NAN, NAN)),
        ({"remaining": -1.0}, (NAN, NAN, NAN, NAN)),
        ({"remaining": 0.0, "pause_s": 5.0}, (0.0, 0.0, 0.0, 0.0)),
        ({"usd_per_h": NAN}, (720.0, 720.0, NAN, NAN)),
        ({"low": 0.0}, (720.0, math.inf, 0.6, math.inf)),
        ({"low": NAN}, (720.0, NAN, 0.6, NAN)),
        ({"low": 11.0}, (720.0, 720.0, 0.6, 0.6)),
        ({"remaining": 1e300, "goodput": 1e-300, "low": 1e-300}, (math.inf, math.inf, math.inf, math.inf)),
        ({"pause_s": NAN, "losses_per_h": -1.0, "loss_s": math.inf}, (720.0, 720.0, 0.6, 0.6)),
    ],
)
def test_bad_input_has_a_defined_result(given: dict[str, float], expected: tuple[float, ...]) -> None:
    np.testing.assert_allclose(one(**given), expected)


NAMES = (
    "goodput",
    "low",
    "remaining",
    "remaining_spread",
    "usd_per_h",
    "pause_s",
    "losses_per_h",
    "loss_s",
)


@settings(max_examples=50)
@given(st.fixed_dictionaries(dict.fromkeys(NAMES, wild_floats)))
def test_late_is_never_before_the_median(wild: dict[str, float]) -> None:
    time, late, cost, late_cost = one(**wild)
    assert not late < time
    assert not late_cost < cost
    assert math.isnan(time) or time >= 0


def test_of_a_table_each_job_has_its_own_row_and_every_column_its_price() -> None:
    got = forecast(
        goodput=np.array([[1.0, 2.0], [4.0, 0.0]]),
        low=np.array([[1.0, 2.0], [4.0, 0.0]]),
        remaining=np.array([[3600.0], [7200.0]]),
        remaining_spread=np.zeros((2, 1)),
        usd_per_h=np.array([1.0, 3.0]),
    )
    np.testing.assert_allclose(got.time_p50_s, [[3600.0, 1800.0], [1800.0, math.inf]])
    np.testing.assert_allclose(got.cost_p50_usd, [[1.0, 1.5], [0.5, math.inf]])


def totals(median: float, spread: float) -> ClassTotals:
    return ClassTotals(median=np.array([median]), spread=np.array([spread]))


def test_what_the_script_says_counts_before_what_the_class_did() -> None:
    got = remaining_samples(
        np.array([40.0, 140.0, 0.0, 0.0]),
        np.array([100.0, 100.0, NAN, NAN]),
        np.array([0, 0, 0, -1]),
        totals(500.0, 0.5),
    )
    np.testing.assert_allclose(got.samples, [60.0, 0.0, 500.0, NAN])
    assert got.source.tolist() == [WorkSource.SCRIPT, WorkSource.SCRIPT, WorkSource.CLASS, WorkSource.UNKNOWN]
    assert got.spread[:2].tolist() == [0.0, 0.0]
    assert got.spread[2] > 0
    assert all(source.reason for source in WorkSource)


def test_what_is_left_of_a_class_given_what_is_done() -> None:
    """Compare with random draws from the assumed distribution."""
    draw = np.random.default_rng(5).uniform(size=200_000)
    sizes = 500.0 * (draw / (1 - draw)) ** (math.sqrt(3) * 0.5 / math.pi)
    for done in (0.0, 300.0, 900.0):
        left = sizes[sizes > done] - done
        got = remaining_samples(np.array([done]), np.array([NAN]), np.array([0]), totals(500.0, 0.5))
        assert got.samples[0] == pytest.approx(np.median(left), rel=0.03)
        assert got.samples[0] * math.exp(Z90 * got.spread[0]) == pytest.approx(
            np.quantile(left, 0.9), rel=0.03
        )


def test_classes_are_learned_from_their_ended_jobs() -> None:
    draw = np.random.default_rng(2)
    many = np.exp(math.log(1e6) + 0.2 * draw.standard_normal(300))
    samples = np.concatenate([many, [100.0], [NAN, math.inf, -1.0, 0.0]])
    classes = np.concatenate([np.zeros(300), [1], [1, 1, 1, 9]]).astype(np.int64)
    got = learn_totals(classes, samples, 3)
    assert got.median[0] == pytest.approx(1e6, rel=0.05)
    assert got.spread[0] == pytest.approx(0.2, abs=0.05)
    assert got.median[1] == pytest.approx(100.0)
    assert got.spread[1] > 0.7, "one job says little"
    assert math.isnan(got.median[2])


@settings(max_examples=50)
@given(wild_floats, wild_floats, st.lists(wild_floats, max_size=4))
def test_remaining_work_of_wild_numbers(done: float, total: float, ended: list[float]) -> None:
    learned = learn_totals(np.zeros(len(ended), np.int64), np.array(ended), 1)
    got = remaining_samples(np.array([done]), np.array([total]), np.array([0]), learned)
    known = got.source[0] != WorkSource.UNKNOWN
    assert math.isfinite(got.samples[0]) == known
    assert not known or got.samples[0] >= 0
    assert got.spread[0] >= 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # 7,200 samples at 10/s take 720 s at $3 an hour: $0.60.
        pytest.param({"goodput": 20.0, "low": 20.0}, (360.0, 360.0, 0.3, 0.3), id="twice as fast"),
        pytest.param({"low": 5.0}, (720.0, 1440.0, 0.6, 1.2), id="half as fast in the worst tenth"),
        pytest.param(
            {"remaining_spread": math.log(2) / Z90}, (720.0, 1440.0, 0.6, 1.2), id="twice the work in the worst tenth"
        ),
        pytest.param({"pause_s": 60.0, "low": 5.0}, (780.0, 1500.0, 0.65, 1.25), id="a pause is certain"),
        pytest.param({"losses_per_h": 5.0, "loss_s": 0.0}, (720.0, 720.0, 0.6, 0.6), id="losses that cost nothing"),
        pytest.param({"losses_per_h": 0.0, "loss_s": 60.0}, (720.0, 720.0, 0.6, 0.6), id="no losses"),
        pytest.param({"usd_per_h": 0.0}, (720.0, 720.0, 0.0, 0.0), id="free"),
        pytest.param({"usd_per_h": -1.0}, (720.0, 720.0, NAN, NAN), id="no valid price"),
        pytest.param({"remaining": 0.0, "goodput": 0.0}, (0.0, 0.0, 0.0, 0.0), id="nothing is left"),
    ],
)  # fmt: skip
def test_time_and_cost_by_hand(given: dict[str, float], expected: tuple[float, ...]) -> None:
    np.testing.assert_allclose(one(**given), expected)


def test_losses_by_hand() -> None:
    """Five losses an hour of 60 s each: one in 720 s of training, and a Poisson variance of 60 * 60 s^2."""
    time, late, _, _ = one(losses_per_h=5.0, loss_s=60.0)
    assert time == pytest.approx(720.0 + 60.0)
    assert late == pytest.approx(time + Z90 * 60.0)
    both = one(losses_per_h=5.0, loss_s=60.0, low=5.0)[1]
    assert both == pytest.approx(time + math.hypot(780.0, Z90 * 60.0))


@settings(max_examples=30)
@given(st.floats(0.1, 100), st.floats(1, 1e6), st.floats(0, 1), st.floats(0, 20), st.floats(0, 600))
def test_more_work_and_more_losses_never_end_earlier(
    goodput: float, remaining: float, spread: float, losses_per_h: float, loss_s: float
) -> None:
    usual = {"goodput": goodput, "low": goodput / 2, "remaining_spread": spread, "loss_s": loss_s}
    here = one(**usual, remaining=remaining, losses_per_h=losses_per_h)
    for worse in (
        one(**usual, remaining=2 * remaining, losses_per_h=losses_per_h),
        one(**usual, remaining=remaining, losses_per_h=losses_per_h + 1),
        one(**usual, remaining=remaining, losses_per_h=losses_per_h, pause_s=30.0),
    ):
        assert all(other >= value * (1 - 1e-9) for other, value in zip(worse, here, strict=True))


@pytest.mark.parametrize(
    ("samples", "median", "spread"),
    [
        # The prior counts as two jobs of spread 0.7; the mean of n jobs is uncertain by 1 / n.
        ([100.0], 100.0, math.sqrt(2 * 0.49 / 2 * 2)),
        ([100.0, 100.0], 100.0, math.sqrt(2 * 0.49 / 3 * 1.5)),
        ([50.0, 200.0], 100.0, math.sqrt((2 * math.log(2) ** 2 + 0.98) / 3 * 1.5)),
    ],
)
def test_totals_of_few_jobs_by_hand(samples: list[float], median: float, spread: float) -> None:
    got = learn_totals(np.zeros(len(samples), np.int64), np.array(samples), 1)
    assert got.median.tolist() == pytest.approx([median])
    assert got.spread.tolist() == pytest.approx([spread])


@pytest.mark.parametrize(
    ("done", "total", "samples"),
    [
        (40.0, 100.0, 60.0),
        (100.0, 100.0, 0.0),
        (150.0, 100.0, 0.0),
        (-5.0, 100.0, 100.0),
        (NAN, 100.0, 100.0),
        (math.inf, 100.0, 100.0),
        (0.0, 0.0, 500.0),  # a total of 0 is none, so the class counts
        (0.0, math.inf, 500.0),
        (0.0, -7.0, 500.0),
    ],
)
def test_samples_that_are_left(done: float, total: float, samples: float) -> None:
    got = remaining_samples(np.array([done]), np.array([total]), np.array([0]), totals(500.0, 0.5))
    assert got.samples.tolist() == pytest.approx([samples])
    assert (got.source[0] == WorkSource.SCRIPT) == (math.isfinite(total) and total > 0)


@pytest.mark.parametrize("job_class", [-1, 1, 99])
def test_a_class_that_does_not_exist_says_nothing(job_class: int) -> None:
    got = remaining_samples(np.array([5.0]), np.array([NAN]), np.array([job_class]), totals(500.0, 0.5))
    assert (math.isnan(got.samples[0]), got.spread[0], got.source[0]) == (True, 0.0, WorkSource.UNKNOWN)


@settings(max_examples=30)
@given(st.floats(1, 1e6), st.floats(0.05, 1.5), st.floats(0, 1e7), st.floats(1.01, 10.0))
def test_the_expected_total_never_falls_while_a_job_goes_on(
    median: float, spread: float, done: float, factor: float
) -> None:
    def total(done: float) -> float:
        got = remaining_samples(np.array([done]), np.array([NAN]), np.array([0]), totals(median, spread))
        return float(done + got.samples[0])

    assert total(done * factor) >= total(done) * (1 - 1e-9)
    assert total(0.0) == pytest.approx(median)


def test_a_job_that_outlived_its_class_needs_work_in_proportion_to_what_it_did() -> None:
    got = [
        remaining_samples(np.array([done]), np.array([NAN]), np.array([0]), totals(500.0, 0.5)).samples[0]
        for done in (1e5, 2e5)
    ]
    assert got[1] == pytest.approx(2 * got[0], rel=1e-3)
    assert got[0] == pytest.approx(1e5 * (2 ** (math.sqrt(3) * 0.5 / math.pi) - 1), rel=1e-3)


def test_work_is_left_in_the_unit_in_which_the_job_ends() -> None:
    by_progress = {"samples": 900, "total_samples": 1000, "progress": 600.5, "total_progress": 1000.0}
    jobs = [
        job_of("a", progress=JobProgress(samples=900, total_samples=1000)),
        job_of("b", progress=JobProgress(**by_progress)),
        job_of("c", progress=JobProgress(**{**by_progress, "total_progress": None})),
        job_of("d", progress=JobProgress(samples=5)),
    ]
    left = remaining_of(jobs, {})
    assert left.samples.tolist() == pytest.approx([100.0, 399.5, 100.0, math.nan], nan_ok=True)
    assert left.source.tolist() == [WorkSource.SCRIPT] * 3 + [WorkSource.UNKNOWN]
