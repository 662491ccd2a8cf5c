"""Prices explain a job: the limit that binds, and the value to it of a little more."""

from __future__ import annotations

from typing import Any

import pytest

from headway.contract.values.markets import Market
from headway.contract.views.decisions import RoundView, RowPrice
from headway.contract.views.jobs import ExplainView, JobState, Reason, SizeOption
from service.usecases.jobs.explanations import as_of_now, priced
from tests.unit.service.builders import NOW


def option(
    slots: int, utility: float | None, *, kind: str = "cpu", note: str = "", **changes: Any
) -> SizeOption:
    fields: dict[str, Any] = {"market": Market.ON_DEMAND, "anchor": 0, "usd_per_h": 0.0, **changes}
    return SizeOption(
        **fields,
        device_kind=kind,
        slots=slots,
        nodes=1,
        goodput_samples_per_s=100.0 * slots,
        speedup=float(slots),
        measured=True,
        utility=utility,
        note=note,
    )


def explained(*options: SizeOption) -> ExplainView:
    return ExplainView(
        job_id="j",
        name="j",
        state=JobState.RUNNING,
        action="keep",
        reason=Reason.PROGRESSING,
        message="",
        round_id="r",
        decided_at=NOW,
        options=list(options),
    )


def round_of(**prices: float) -> RoundView:
    rows = [RowPrice(name=name, capacity=4, used=4, price=price) for name, price in prices.items()]
    fields: dict[str, Any] = {"objective": 1, "bound": 1, "gap": 0, "took_s": 0, "jobs": 1}
    return RoundView(
        id="r",
        at=NOW,
        policy="goodput",
        inputs_digest="",
        status="optimal",
        unit="speedup",
        prices=rows,
        **fields,
    )


PRESENT = option(1, 0.2, note="current")


def test_a_limit_binds_when_it_has_a_price_and_more_would_be_worth_more() -> None:
    prices = {"slots/cpu": 0.1, "slots/a100": 0.4, "packing/cpu/4": 0.0, "quota/p": 0.2, "quota/q": 0.3}
    seen = priced(explained(PRESENT, option(2, 0.5)), round_of(**prices), "p")
    assert [row.name for row in seen.binding] == ["slots/cpu", "quota/p"]
    assert (seen.policy, seen.unit, seen.message) == ("goodput", "speedup", "")


def test_nothing_binds_a_job_that_has_the_best() -> None:
    best = option(2, 0.5, note="current")
    seen = priced(explained(best, option(1, 0.2)), round_of(**{"slots/cpu": 0.1}), "p")
    assert (seen.binding, seen.outlook) == ([], [])


def test_one_more_slot_is_compared_with_what_it_is_worth_to_others() -> None:
    four = option(4, 0.9)
    seen = priced(explained(PRESENT, option(2, 0.5), four), round_of(**{"slots/cpu": 0.1}), "p")
    (one,) = seen.outlook
    assert (one.row, one.slots, one.speedup, one.price) == ("slots/cpu", 2, 2.0, 0.1)
    assert one.gain == pytest.approx(0.3)


def test_one_more_dollar_buys_what_it_pays_for() -> None:
    present, *more = (
        option(slots, utility, usd_per_h=0.5 * slots, note="" if slots > 1 else "current")
        for slots, utility in ((1, 0.2), (2, 0.5), (3, 0.8), (4, 0.9))
    )
    dear = option(1, 5.0, kind="a100", usd_per_h=3.0)
    seen = priced(explained(present, *more, dear), round_of(usd_per_h=0.3), "p")
    (one,) = seen.outlook
    assert (one.row, one.device_kind, one.slots) == ("usd_per_h", "cpu", 3)


@pytest.mark.parametrize("utility", [None, 0.4])
def test_a_waiting_job_is_told_what_one_slot_would_do(utility: float | None) -> None:
    seen = priced(explained(option(1, utility)), round_of(**{"slots/cpu": 0.1}), "p")
    (one,) = seen.outlook
    assert (one.slots, one.speedup, one.gain) == (1, 1.0, None)
    assert [row.name for row in seen.binding] == ["slots/cpu"]


def test_sizes_out_of_reach_of_one_slot_are_not_promised() -> None:
    seen = priced(explained(PRESENT, option(4, 0.9)), round_of(**{"slots/cpu": 0.1}), "p")
    assert seen.outlook == []


def test_a_configuration_that_is_not_weighed_now_has_no_gain() -> None:
    seen = priced(explained(PRESENT, option(2, None)), round_of(**{"slots/cpu": 0.1}), "p")
    (one,) = seen.outlook
    assert one.gain is None


def test_nothing_is_known_of_a_job_that_was_not_weighed() -> None:
    seen = priced(explained(), round_of(**{"slots/cpu": 0.1}), "p")
    assert (seen.binding, seen.outlook) == ([], [])


def test_one_more_slot_on_spot_is_of_use_only_where_the_anchor_is_there() -> None:
    spot = Market.SPOT
    now = option(3, 1.0, market=spot, anchor=1, note="current")
    same_anchor, more_anchor = (option(4, 2.0, market=spot, anchor=anchor) for anchor in (1, 2))
    prices = {"slots/cpu": 0.3, "slots/cpu (spot)": 0.1}
    outlook = {one.row: one for one in priced(explained(now, same_anchor), round_of(**prices), "p").outlook}
    assert outlook["slots/cpu (spot)"].slots == 4
    assert outlook["slots/cpu (spot)"].device_kind == "cpu (spot)"
    without = priced(explained(now, more_anchor), round_of(**prices), "p")
    assert [(one.row, one.slots) for one in without.outlook] == [("slots/cpu", 4)]


@pytest.mark.parametrize(("project", "binds"), [("p", True), (None, True), ("other", False)])
def test_a_cap_binds_those_who_count_in_it(project: str | None, binds: bool) -> None:
    rows = round_of(**{"budget/team": 0.5})
    rows = rows.model_copy(update={"prices": [rows.prices[0].model_copy(update={"project": project})]})
    now, more = option(1, 1.0, note="current", usd_per_h=1.0), option(2, 3.0, usd_per_h=2.0)
    seen = priced(explained(now, more), rows, "p")
    assert [row.name for row in seen.binding] == ["budget/team"] * binds
    assert [(one.row, one.gain) for one in seen.outlook] == [("budget/team", 2.0)] * binds


@pytest.mark.parametrize("size", [0, 2])
def test_a_size_that_a_job_no_longer_has_is_not_current(size: int) -> None:
    """An ended job holds nothing, and one that grew holds more than at its last decision."""
    seen = as_of_now(explained(PRESENT, option(2, 0.5)).model_copy(update={"size": size}))
    assert [one.slots for one in seen.options if one.note == "current"] == ([size] if size else [])
    assert [one.slots for one in seen.options if one.note == "until then"] == [1]


def test_a_size_that_a_job_still_has_stays_current() -> None:
    stays = explained(PRESENT, option(2, 0.5)).model_copy(update={"size": 1})
    assert as_of_now(stays) == stays


def test_a_running_job_whose_size_was_not_weighed_is_not_compared_as_if_it_waited() -> None:
    moved = as_of_now(explained(PRESENT, option(2, 0.5)).model_copy(update={"size": 3}))
    seen = priced(moved, round_of(**{"slots/cpu": 0.1}), "p")
    assert (seen.binding, seen.outlook) == ([], [])
    assert len(seen.options) == 2
