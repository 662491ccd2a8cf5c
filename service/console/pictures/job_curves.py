"""Charts of a job's page, as data for the browser and as tables and sentences with the same content."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count, zip_longest
from typing import Any

from headway.contract.views.decisions import ExplanationView
from headway.contract.views.forecasts import ConfigurationForecast, ForecastView, KeptForecast, Mark
from headway.contract.views.jobs import EventView, JobView
from service.console.html.fragments import Fragment
from service.console.html.text import (
    NONE,
    between,
    charge,
    duration,
    minute,
    number,
    percent,
    plural,
    short,
    stamp,
)
from service.usecases.ports.jobs import SizeChange

_TABLE_ROWS = 12
_ONE_AXIS = 20.0
"""Ratio of maximum values up to which two metrics share an axis."""
_FIRST_METRICS: tuple[frozenset[str], ...] = (
    frozenset({"loss"}),
    frozenset({"accuracy", "acc", "f1", "bleu", "perplexity", "ppl", "reward", "error"}),
)
"""Words in the names of metrics that are shown first, by precedence."""
MOST_CHARTS = 24
"""Maximum number of metric charts on one page."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart.

    `data` is for the browser's script of its `kind`; `words`, `columns` and `rows` say the same.
    """

    name: str
    kind: str
    data: Mapping[str, Any]
    words: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    def fragments(self) -> tuple[Fragment, Fragment]:
        """Return the data fragment for the chart script, and the fragment with the sentence and table."""
        return Fragment(f"data-{self.name}", "chart_data", self), Fragment(
            f"words-{self.name}", "chart_words", self
        )


@dataclass(frozen=True, slots=True)
class OptionRow:
    """A configuration that the job could have, with its forecast and its value in the last decision."""

    slots: str
    speed: str
    speedup: str
    time: str
    cost: str
    value: str
    note: str
    marks: tuple[str, ...]
    present: bool


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A stored forecast, and the actual result."""

    when: str
    time: str
    took: str
    error: str
    cost: str
    was: str


Series = Mapping[str, Sequence[tuple[datetime, int, float]]]
"""Time, samples and value by metric name, oldest first."""


def metrics_charts(series: Series) -> tuple[Chart, ...]:
    """Return a chart for every group of metrics that can share an axis, at most `MOST_CHARTS`."""
    groups = list(metric_groups(series).items())[:MOST_CHARTS]
    return tuple(
        _metrics_chart(key, {name: series[name] for name in names}, ", ".join(names)) for key, names in groups
    )


def metric_groups(series: Series) -> dict[str, list[str]]:
    """Group the names of metrics that can share an axis, by a key that is stable while values arrive.

    Metrics share an axis if they are of one kind, which is the last word of the name (`loss` and `val_loss`),
    and if their values have similar orders of magnitude. Losses come first, then measures of quality.
    """
    groups: dict[str, list[str]] = {}
    for name, points in sorted(series.items(), key=lambda one: _precedence(one[0])):
        kind = re.split(r"[^a-z0-9]+", name.lower())[-1] or name
        for number_of_kind in count(1):
            members = groups.setdefault(f"{kind}.{number_of_kind}", [])
            if not members or _is_near(_largest(points), _largest(series[members[0]])):
                members.append(name)
                break
    return groups


def _precedence(name: str) -> tuple[int, bool, int, str]:
    """Return the sort key of a metric: kinds that people look for first, and of a kind the plain name first."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    rank = next((at for at, kinds in enumerate(_FIRST_METRICS) if kinds & set(words)), len(_FIRST_METRICS))
    return rank, len(words) > 1, 0 if words[0] == "train" else 1, name


def _largest(points: Sequence[tuple[datetime, int, float]]) -> float:
    return max(abs(value) for _, _, value in points)


def _is_near(one: float, other: float) -> bool:
    low, high = sorted((one, other))
    return high <= _ONE_AXIS * low or high == low


def _metrics_chart(key: str, series: Series, title: str) -> Chart:
    data = {
        name: {"x": [one[1] for one in points], "y": [one[2] for one in points]}
        for name, points in series.items()
    }
    words = " ".join(
        f"{name}: {number(points[0][2])} at first, {number(points[-1][2])} now, after {short(points[-1][1])} samples."
        for name, points in series.items()
    )
    rows = tuple(
        (name, number(samples), number(value))
        for name, points in series.items()
        for _, samples, value in points[:: max(1, len(points) // _TABLE_ROWS)]
    )
    columns = ("metric", "samples", "value")
    return Chart(f"metrics-{key}", "metrics", {"series": data}, words, columns, rows, title)


def sizes_chart(
    sizes: Sequence[SizeChange], events: Sequence[EventView], job: JobView, now: datetime
) -> Chart:
    """Return the chart of slots over time, with the pause of every resize."""
    until = job.finished_at or minute(now) + timedelta(minutes=1)
    times: list[float] = []
    slots: list[int] = []
    for one, ends, stops in held_periods(sizes):
        times.append(one.granted_at.timestamp())
        slots.append(one.size)
        if ends is not None and stops:
            times.append(ends.timestamp())
            slots.append(0)
    if times:
        times.append(max(until.timestamp(), times[-1]))
        slots.append(slots[-1])
    pauses = [
        (one.at.timestamp(), float(one.data["pause_s"]))
        for one in events
        if isinstance(one.data.get("pause_s"), int | float)
    ]
    total_s = sum(seconds for _, seconds in pauses)
    words = (
        f"{plural(len(sizes), 'allocation')}; {plural(len(pauses), 'change')} in place paused training for "
        f"{duration(total_s)} in all."
        if sizes
        else "It has had no slots."
    )
    rows = tuple(
        (stamp(one.granted_at), plural(one.size, f"{one.device_kind} slot"), one.message)
        for one in sizes[-_TABLE_ROWS:]
    )
    data = {"x": times, "y": slots, "max": job.spec.elastic.max, "pauses": [list(one) for one in pauses]}
    return Chart("sizes", "sizes", data, words, ("since", "size", "why"), rows)


def held_periods(sizes: Sequence[SizeChange]) -> Iterator[tuple[SizeChange, datetime | None, bool]]:
    """Yield each allocation with its end (None while it lasts), and whether the job held no slots after it."""
    for one, following in zip_longest(sizes, sizes[1:]):
        until = None if following is None else following.granted_at
        ends = min((at for at in (one.ended_at, until) if at is not None), default=None)
        yield one, ends, ends is not None and (until is None or (until - ends).total_seconds() > 1)


def goodput_chart(forecast: ForecastView) -> Chart:
    """Return the chart of goodput over slots, by device kind, with the present size of the job."""
    kinds: dict[str, list[ConfigurationForecast]] = {}
    for one in forecast.configurations:
        if one.goodput is not None:
            kinds.setdefault(one.device_kind, []).append(one)
    data = {
        kind: {
            "x": [one.slots for one in ones],
            "y": [one.goodput for one in ones],
            "low": [one.goodput_low for one in ones],
            "high": [one.goodput_high for one in ones],
            "present": next((one.slots for one in ones if Mark.PRESENT in one.marks), None),
        }
        for kind, ones in ((kind, sorted(ones, key=lambda one: one.slots)) for kind, ones in kinds.items())
    }
    present = next((one for one in forecast.configurations if Mark.PRESENT in one.marks), None)
    if not data:
        words = "Its speed has not been measured, so there is no forecast for other sizes."
    elif present is None:
        words = "It holds no slots now; the curve shows its forecast goodput."
    else:
        words = (
            f"It holds {plural(present.slots, f'{present.device_kind} slot')}: "
            f"{short(present.goodput)} {forecast.work.unit}/s, {_scaling(present)}."
        )
    rows = tuple(
        (
            plural(one.slots, f"{kind} slot"),
            short(one.goodput),
            f"{short(one.goodput_low)} to {short(one.goodput_high)}",
        )
        for kind, ones in kinds.items()
        for one in ones
    )
    return Chart(
        "goodput",
        "goodput",
        {"kinds": data},
        words,
        ("size", f"{forecast.work.unit}/s", "with 80 % between"),
        rows,
    )


def _scaling(one: ConfigurationForecast) -> str:
    if not one.one_slot_measured:
        return "without a measurement on one slot to compare it with"
    return f"{percent(one.speedup / one.slots)} of linear scaling"


def speedup_text(one: ConfigurationForecast) -> str:
    """Return the speedup over one slot; a dash where nothing was measured on one slot."""
    return f"{one.speedup:.2f}×" if one.one_slot_measured else NONE


def option_rows(explanation: ExplanationView, forecast: ForecastView) -> tuple[OptionRow, ...]:
    """Return the sizes side by side. Only the sizes of the last decision have a value."""
    weighed = {(one.device_kind, one.slots): one for one in explanation.options}
    rows = []
    for one in forecast.configurations:
        option = weighed.get((one.device_kind, one.slots))
        rows.append(
            OptionRow(
                slots=plural(one.slots, f"{one.device_kind} slot"),
                speed=short(one.goodput),
                speedup=speedup_text(one),
                time=between(one.time_s, one.time_p90_s),
                cost=charge(one.cost_usd),
                value=number(option.utility) if option is not None else NONE,
                note=one.why_not_now,
                marks=tuple(mark for mark in one.marks if mark is not Mark.PRESENT),
                present=Mark.PRESENT in one.marks,
            )
        )
    return tuple(rows)


def kept_rows(forecast: ForecastView) -> tuple[KeptRow, ...]:
    """Return the stored forecasts with the actual results."""
    return tuple(_kept(one) for one in forecast.kept)


def _kept(one: KeptForecast) -> KeptRow:
    ratio = one.time_ratio
    return KeptRow(
        when=f"at {percent(one.share)} of its work, on {plural(one.slots, f'{one.device_kind} slot')}",
        time=between(one.time_s, one.time_p90_s),
        took=duration(one.took_s) if one.took_s is not None else "not ended",
        error=f"{ratio - 1:+.0%}" if ratio is not None else NONE,
        cost=charge(one.cost_usd),
        was=charge(one.cost_was_usd),
    )


def prediction_text(forecast: ForecastView) -> str:
    """Return the accuracy of the forecasts of the job's speed."""
    score = forecast.score
    if not score.count or score.median_error is None:
        return "No forecast of its speed has been checked."
    return (
        f"Of {plural(score.count, 'forecast')} of its speed, half were off by at most {percent(score.median_error)}; "
        f"{percent(score.coverage)} were within their interval; the target is 80 %."
    )
