"""Tests of kept forecasts: their times, and their scores at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.forecasts import KeptForecast
from headway.contract.views.jobs import JobProgress
from service.domain.perf.marks import due_mark, scored, verdict
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
    assert due_mark(progress, starts=starts) == due


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


@given(seconds=wild_floats, slot_s=st.dictionaries(st.sampled_from(["cpu", "h100"]), wild_floats))
def test_whatever_is_measured_nothing_is_raised(seconds: float, slot_s: dict[str, float]) -> None:
    one = scored(kept(), seconds, slot_s)
    verdict([one])
    assert one.model_dump_json()
