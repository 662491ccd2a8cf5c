"""Selection of the forecasts of a job that are kept and scored at its end, and their scores. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from headway.contract.values.dollars import dollars
from headway.contract.views.forecasts import KeptForecast
from headway.contract.views.jobs import JobProgress

AT_SUBMIT: Final = 0.0
ON_THE_WAY: Final = 0.1
"""Shares of a job's work at which its forecast is kept: `AT_SUBMIT` and `ON_THE_WAY`."""


def reached_milestone(progress: JobProgress, *, starts: bool) -> float | None:
    """Return the share of work whose forecast is due to be kept now, or None. `starts`: the job starts for
    the first time.
    """
    kept = {one.share for one in progress.forecasts}
    if starts:
        return AT_SUBMIT if AT_SUBMIT not in kept else None
    total = progress.work_total
    reached = total is not None and ON_THE_WAY * total <= progress.work_done < total
    return ON_THE_WAY if reached and ON_THE_WAY not in kept else None


def scored(kept: KeptForecast, seconds: float, slot_s: Mapping[str, float]) -> KeptForecast:
    """Return a kept forecast with its outcome: seconds that the job has held slots since, and slot-seconds by
    device kind.
    """
    prices = kept.usd_per_slot_h
    known = kept.cost_usd is not None and all(kind in prices for kind, held in slot_s.items() if held > 0)
    cost = sum(held / 3600.0 * prices.get(kind, 0.0) for kind, held in slot_s.items())
    return kept.model_copy(
        update={
            "took_s": seconds if math.isfinite(seconds) and seconds > 0 else None,
            "cost_was_usd": cost if known and math.isfinite(cost) else None,
        }
    )


def verdict(kept: Sequence[KeptForecast]) -> str:
    """Return a sentence that compares the kept forecasts with their outcomes; empty if none was kept."""
    return "; ".join(_verdict(one) for one in kept if one.took_s is not None)


def _verdict(one: KeptForecast) -> str:
    when = "at the submit" if one.share == AT_SUBMIT else f"after {one.share:.0%} of the work"
    text = f"forecast {when}: {one.time_s:.1f} s, it took {one.took_s or 0.0:.1f} s ({_off(one.time_ratio)}"
    late = one.took_s is not None and one.took_s > one.time_p90_s
    text += ", beyond its P90)" if late else ")"
    if one.cost_usd is not None and one.cost_was_usd is not None and one.cost_ratio is not None:
        text += f", {dollars(one.cost_usd)}, it cost {dollars(one.cost_was_usd)} ({_off(one.cost_ratio)})"
    return text


def _off(ratio: float | None) -> str:
    return "not known" if ratio is None else f"{ratio - 1.0:+.1%}"
