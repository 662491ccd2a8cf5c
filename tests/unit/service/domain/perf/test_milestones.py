"""Tests of kept forecasts: their times, and their scores at the end."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.views.forecasts import KeptForecast
from headway.contract.views.jobs import JobProgress
from service.domain.perf.milestones import AT_SUBMIT, ON_THE_WAY, reached_milestone, scored, verdict
from tests.unit.service.builders import NOW, wild_floats


def kept(share: float = 0.1, cost: float | None = 2.0, **prices: float) -> KeptForecast:
    return KeptForecast(
        share=share,
        at=NOW,
        samples=10,
        device_kind="cpu",
        slots=2,
        time_s=110.0,
        time_p90_s=120.0,
        cost_usd=cost,
        cost_p90_usd=cost,
        usd_per_slot_h=prices or {"cpu": 36.0},
    )


@pytest.mark.parametrize(
    ("samples", "total", "starts", "before", "due"),
    [
        (0, None, True, (), 0.0),
        (0, None, True, (0.0,), None),
        (99, 1000, False, (), None),
        (100, 1000, False, (), 0.1),
        (100, 1000, False, (0.0,), 0.1),
        (500, 1000, False, (0.1,), None),
        (1000, 1000, False, (), None),
        (500, None, False, (), None),
    ],
)
def test_a_mark_is_due_once(
    samples: int, total: int | None, starts: bool, before: tuple[float, ...], due: float | None
) -> None:
    progress = JobProgress(samples=samples, total_samples=total, forecasts=[kept(share) for share in before])
    assert reached_milestone(progress, starts=starts) == due


def test_time_and_cost_are_held_against_what_happened() -> None:
    one = scored(kept(), 100.0, {"cpu": 180.0})
    assert (one.took_s, one.cost_was_usd) == (100.0, pytest.approx(1.8))
    assert one.time_ratio == pytest.approx(1.1)
    assert one.cost_ratio == pytest.approx(2.0 / 1.8)
    assert verdict([one]) == (
        "forecast after 10% of the work: 110.0 s, it took 100.0 s (+10.0%), $2.00, it cost $1.80 (+11.1%)"
    )


def test_what_took_longer_than_its_p90_says_so() -> None:
    assert "(-15.4%, beyond its P90)" in verdict([scored(kept(0.0, None), 130.0, {"cpu": 130.0})])


def test_what_ran_on_a_kind_without_a_price_then_has_no_cost() -> None:
    one = scored(kept(), 100.0, {"cpu": 50.0, "h100": 50.0})
    assert (one.took_s, one.cost_was_usd, one.cost_ratio) == (100.0, None, None)


def test_of_a_job_that_held_nothing_since_nothing_is_said() -> None:
    assert verdict([scored(kept(), 0.0, {})]) == ""
    assert verdict([]) == ""


@settings(max_examples=30)
@given(seconds=wild_floats, slot_s=st.dictionaries(st.sampled_from(["cpu", "h100"]), wild_floats))
def test_whatever_is_measured_nothing_is_raised(seconds: float, slot_s: dict[str, float]) -> None:
    one = scored(kept(), seconds, slot_s)
    verdict([one])
    assert one.model_dump_json()


@pytest.mark.parametrize(
    ("samples", "total", "due"),
    [(100, 1000, 0.1), (99, 1000, None), (999, 1000, 0.1), (1000, 1000, None), (0, 0, None), (1, 10, 0.1)],
)
def test_the_second_forecast_is_kept_between_a_tenth_and_the_end(
    samples: int, total: int, due: float | None
) -> None:
    assert reached_milestone(JobProgress(samples=samples, total_samples=total), starts=False) == due


@pytest.mark.parametrize(
    ("samples", "made", "due"), [(300, 99.5, None), (300, 100.0, 0.1), (1200, 999.0, 0.1)]
)
def test_a_tenth_is_one_of_the_progress_where_the_job_ends_by_it(
    samples: int, made: float, due: float | None
) -> None:
    progress = JobProgress(samples=samples, total_samples=1000, progress=made, total_progress=1000.0)
    assert reached_milestone(progress, starts=False) == due


def test_a_start_keeps_the_first_forecast_even_if_a_tenth_is_done() -> None:
    """A job that resumes has samples before its first start."""
    resumed = JobProgress(samples=500, total_samples=1000)
    assert reached_milestone(resumed, starts=True) == AT_SUBMIT
    assert reached_milestone(resumed, starts=False) == ON_THE_WAY


@pytest.mark.parametrize(
    ("seconds", "took_s"),
    [(100.0, 100.0), (0.0, None), (-1.0, None), (math.nan, None), (math.inf, None), (1e-9, 1e-9)],
)
def test_a_duration_counts_if_it_is_a_positive_number(seconds: float, took_s: float | None) -> None:
    assert scored(kept(), seconds, {}).took_s == took_s


@pytest.mark.parametrize(
    ("prices", "slot_s", "cost_usd"),
    [
        pytest.param({"cpu": 36.0}, {"cpu": 100.0}, 1.0, id="one kind"),
        pytest.param({"cpu": 36.0, "h100": 360.0}, {"cpu": 100.0, "h100": 50.0}, 6.0, id="two kinds"),
        pytest.param({"cpu": 36.0}, {}, 0.0, id="held nothing"),
        pytest.param(
            {"cpu": 36.0}, {"cpu": 100.0, "h100": 0.0}, 1.0, id="never held the kind without a price"
        ),
        pytest.param({"cpu": 36.0}, {"cpu": 100.0, "h100": 1.0}, None, id="held a kind without a price"),
        pytest.param({"cpu": 36.0}, {"cpu": math.inf}, None, id="infinite"),
        pytest.param({"cpu": 36.0}, {"cpu": math.nan}, None, id="NaN"),
    ],
)
def test_the_cost_is_that_of_the_slots_held_at_the_prices_then(
    prices: dict[str, float], slot_s: dict[str, float], cost_usd: float | None
) -> None:
    assert scored(kept(**prices), 10.0, slot_s).cost_was_usd == cost_usd


def test_a_forecast_without_a_cost_gets_none_at_its_end() -> None:
    one = scored(kept(cost=None), 100.0, {"cpu": 100.0})
    assert (one.cost_usd, one.cost_was_usd, one.cost_ratio) == (None, None, None)
    assert "$" not in verdict([one])


def test_scoring_leaves_the_kept_forecast_as_it_is() -> None:
    before = kept()
    after = scored(before, 100.0, {"cpu": 180.0})
    assert (before.took_s, before.cost_was_usd) == (None, None)
    assert after.model_copy(update={"took_s": None, "cost_was_usd": None}) == before


@pytest.mark.parametrize(("took_s", "late"), [(119.9, False), (120.0, False), (120.1, True)])
def test_a_run_is_beyond_its_p90_if_it_took_longer(took_s: float, late: bool) -> None:
    assert ("beyond its P90" in verdict([scored(kept(), took_s, {})])) is late


def test_every_kept_forecast_with_an_outcome_has_its_clause() -> None:
    ones = [scored(kept(AT_SUBMIT), 100.0, {}), kept(0.5), scored(kept(ON_THE_WAY), 100.0, {})]
    text = verdict(ones)
    assert len(text.split("; ")) == 2
    assert "at the submit" in text
    assert "10% of the work" in text
