"""Which forecasts of a job are kept to be scored at its end, and how. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from headway.contract.dollars import dollars
from headway.contract.forecasts import KeptForecast
from headway.contract.jobs import JobProgress

AT_SUBMIT: Final = 0.0
ON_THE_WAY: Final = 0.1
"""Shares of its work after which a job's forecast is kept."""


def due_mark(progress: JobProgress, *, starts: bool) -> float | None:
    """The mark whose forecast is to be kept now; None for none. `starts`: the job is being started for the first time."""
    kept = {one.share for one in progress.forecasts}
    if starts:
        return AT_SUBMIT if AT_SUBMIT not in kept else None
    total = progress.total_samples
    reached = total is not None and ON_THE_WAY * total <= progress.samples < total
    return ON_THE_WAY if reached and ON_THE_WAY not in kept else None


def scored(kept: KeptForecast, seconds: float, slot_s: Mapping[str, float]) -> KeptForecast:
    """A kept forecast with what came of it: seconds that the job held slots since, and slot-seconds by device kind."""
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
    """What forecasts were worth, in a sentence; empty where none was kept."""
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
