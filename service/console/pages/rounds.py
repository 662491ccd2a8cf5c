"""The page of rounds: decisions with their reasons, their optimality gaps, and the prices of slots and
dollars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.contract.views.decisions import RoundChange, RoundView, RowPrice
from service.console.html.fragments import Content, Fragment, Listing
from service.console.html.palette import tint_of
from service.console.html.text import (
    duration,
    iso,
    limit_words,
    number,
    percent,
    plural,
    quality_words,
    short,
    stamp,
)
from service.console.pictures.job_curves import Chart

_MOST_ROWS = 6
"""Maximum number of limits whose price is drawn over time."""


@dataclass(frozen=True, slots=True)
class Change:
    """The decision about one job."""

    job_id: str
    name: str
    hue: str
    sizes: str
    up: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RoundRow:
    """A row of the listing of rounds."""

    id: str
    at: str
    at_iso: str
    policy: str
    status: str
    took: str
    jobs: int
    quality: str
    optimal: bool
    prices: tuple[str, ...]
    changes: tuple[Change, ...]
    summary: str


@dataclass(frozen=True, slots=True)
class RoundsPage:
    """One page of the listing."""

    rows: tuple[RoundRow, ...]
    charts: tuple[Chart, ...]

    def contents(self) -> list[Content]:
        """Return the fragments of the page."""
        chart_fragments = [fragment for chart in self.charts for fragment in chart.fragments()]
        rows = tuple(Fragment(f"round-{row.id}", "round_row", row) for row in self.rows)
        return [*chart_fragments, Fragment("no-rounds", "no_rounds", not rows), Listing("rounds", rows)]


def rounds_page(rounds: Sequence[RoundView], colours: Mapping[str, int]) -> RoundsPage:
    """Return the page of these rounds, newest first. `colours` are those of jobs, by id."""
    old_to_new = list(reversed(rounds))
    return RoundsPage(
        tuple(_row(one, colours) for one in rounds), (_gap_chart(old_to_new), _price_chart(old_to_new))
    )


def _row(one: RoundView, colours: Mapping[str, int]) -> RoundRow:
    changes = tuple(_change(change, colours) for change in one.changes)
    return RoundRow(
        id=one.id,
        at=stamp(one.at),
        at_iso=iso(one.at),
        policy=one.policy,
        status=one.status,
        took=duration(one.took_s) if one.took_s >= 1 else f"{1000 * one.took_s:.0f} ms",
        jobs=one.jobs,
        quality=quality_words(one.gap),
        optimal=one.gap < 0.0005,
        prices=tuple(_price(price) for price in one.prices if price.price > 0),
        changes=changes,
        summary=_summary(len(changes), one.other_changes),
    )


def _summary(changes: int, others: int) -> str:
    if not changes and not others:
        return "nothing had to change"
    return plural(changes, "change") + (f", {others} more in other projects" if others else "")


def _change(one: RoundChange, colours: Mapping[str, int]) -> Change:
    return Change(
        job_id=one.job_id,
        name=one.job_name,
        hue=tint_of(colours, one.job_id, held=True),
        sizes=f"{one.from_} → {one.to}",
        up=one.to > one.from_,
        reason=one.reason,
        message=one.message,
    )


def _price(one: RowPrice) -> str:
    return f"{one.name} {short(one.price)}"


def _gap_chart(rounds: Sequence[RoundView]) -> Chart:
    data = {
        "x": [one.at.timestamp() for one in rounds],
        "y": [round(100 * one.gap, 4) for one in rounds],
        "took": [round(1000 * one.took_s, 1) for one in rounds],
    }
    worst = max((one.gap for one in rounds), default=0.0)
    words = (
        f"Of {plural(len(rounds), 'round')}, the worst was within {percent(worst)} of the optimum of the model; "
        f"the slowest took {duration(max(one.took_s for one in rounds))}."
        if rounds
        else "No round has been decided yet."
    )
    rows = tuple((stamp(one.at), f"{100 * one.gap:.2f} %", duration(one.took_s)) for one in rounds[-12:])
    return Chart("gap", "gap", data, words, ("round", "gap", "took"), rows)


def _price_chart(rounds: Sequence[RoundView]) -> Chart:
    totals: dict[str, float] = {}
    for one in rounds:
        for price in one.prices:
            totals[price.name] = totals.get(price.name, 0.0) + price.price
    names = sorted((name for name, total in totals.items() if total > 0), key=lambda name: -totals[name])
    series: dict[str, list[float]] = {name: [] for name in names[:_MOST_ROWS]}
    for one in rounds:
        known: Mapping[str, float] = {price.name: price.price for price in one.prices}
        for name, values in series.items():
            values.append(known.get(name, 0.0))
    data: dict[str, Any] = {"x": [one.at.timestamp() for one in rounds], "series": series}
    latest = rounds[-1] if rounds else None
    scarce = [price for price in latest.prices if price.price > 0] if latest else []
    words = (
        "Value of one more unit in the latest round: "
        + ", ".join(f"{limit_words(price.name)} {number(price.price)}" for price in scarce)
        + f" ({latest.unit})."
        if scarce and latest
        else "Nothing was scarce in the latest round: another slot or dollar would have had no value."
    )
    rows = tuple(
        (stamp(one.at), ", ".join(_price(price) for price in one.prices if price.price > 0) or "0")
        for one in rounds[-12:]
    )
    return Chart("prices", "prices", data, words, ("round", "prices"), rows)
