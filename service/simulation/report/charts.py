"""Charts of a report: HTML and SVG as text. Colours and sizes are in `assets/report.css`.

`assets/report.js` draws lines with uPlot. Every policy has an index, which gives it the same colour in every
chart, and the class `p<index>`, by which the report's checkboxes hide it. The functions escape all text from
outside.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from service.domain.shared.arrays import FloatArray

_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_LANE = 9.0
"""SVG units between two jobs."""
SHADES = 5
"""Number of shades in `lanes_chart`, from few slots to the most, and largest number of layers in a chart."""
_TABLE_ROWS = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """Line of one policy, or without an index a line for comparison: its values (N,), NaN where it has none."""

    name: str
    index: int | None
    y: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Lines over common values x (N,).

    Attributes:
        label: Meaning and unit of x.
        log: Whether the x axis is logarithmic. The lines are steps otherwise.
        shares: Whether the values are shares, shown as percentages.
        stacked: Whether the lines are layers that add up, the last the darkest.
    """

    title: str
    label: str
    x: FloatArray
    lines: Sequence[ChartLine]
    log: bool = False
    shares: bool = False
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartBar:
    """Bar of one policy: `parts` side by side, each with its own shade."""

    name: str
    index: int
    parts: tuple[float, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Timeline of one job: its submission and end, and its slots as rows of seconds from, seconds to, and slots (N, 3)."""

    title: str
    submit_s: float
    end_s: float
    held: FloatArray


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the largest unit of which a duration has at least 1.5: its seconds and its name."""
    return next((one for one in _UNITS if abs(seconds) >= 1.5 * one[0]), _UNITS[-1])


def figure(value: float) -> str:
    """Return the value with three figures, and with commas from a thousand on: 0.120, 7.00, 45.2, 1,234."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:#.3g}" if abs(value) >= 0.001 else "0"


def number(value: float) -> str:
    """Return the value as in `figure`, without trailing zeros: 0.12, 7."""
    text = figure(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def line_chart(chart: LineChart) -> str:
    """Return the place and data of a chart that the script draws, and a table with the same content."""
    data = {
        "label": chart.label,
        "x": _short(chart.x),
        "lines": [{"name": one.name, "policy": one.index, "y": _short(one.y)} for one in chart.lines],
        "log": chart.log,
        "shares": chart.shares,
        "stacked": chart.stacked,
    }
    heads = "".join(f'<th scope="col">{escape(one.name)}</th>' for one in chart.lines)
    rows = "".join(
        f'<tr><th scope="row">{number(float(chart.x[at]))}</th>'
        + "".join(f"<td>{_value(float(one.y[at]), shares=chart.shares)}</td>" for one in chart.lines)
        + "</tr>"
        for at in np.unique(np.linspace(0, len(chart.x) - 1, _TABLE_ROWS).astype(int))
    )
    return (
        f'<div class="chart" aria-hidden="true" data-chart="{escape(json.dumps(data))}"></div>'
        f'<details><summary>As a table</summary><div class="wide" tabindex="0" role="group" '
        f'aria-label="{escape(chart.title)}"><table class="summary"><caption class="unseen">{escape(chart.title)}</caption>'
        f'<thead><tr><th scope="col">{escape(chart.label)}</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>'
    )


def _short(values: FloatArray) -> list[float | None]:
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]


def _value(value: float, *, shares: bool) -> str:
    return f"{100 * value:.0f} %" if shares and math.isfinite(value) else number(value)


def bar_table(*, title: str, bars: Sequence[ChartBar], parts: Sequence[str] = ()) -> str:
    """Return a table with a bar for each policy; `parts` names the shades if there are several."""
    longest = max((sum(bar.parts) for bar in bars), default=0.0) or 1.0
    rows = []
    for bar in bars:
        shades = "".join(
            f'<i class="shade{shade}" style="width:{100 * part / longest:.2f}%"></i>'
            for shade, part in enumerate(bar.parts)
            if part > 0.0
        )
        rows.append(
            f'<tr class="p{bar.index}"><th scope="row">{escape(bar.name)}</th>'
            f'<td class="bar" aria-hidden="true">{shades}</td><td>{escape(bar.text)}</td></tr>'
        )
    legend = "".join(
        f'<span><i class="shade{shade}"></i>{escape(part)}</span>' for shade, part in enumerate(parts)
    )
    below = f'<p class="shades">{legend}</p>' if legend else ""
    return (
        f'<table class="bars"><caption class="unseen">{escape(title)}</caption>{"".join(rows)}</table>{below}'
    )


def lanes_chart(*, title: str, lanes: Sequence[Lane], end_s: float, most_slots: float) -> str:
    """Return an SVG with one timeline for each job: thin while it waits, darker with more slots."""
    width, left = 960.0, 8.0
    across, down = width - 2 * left, _LANE * len(lanes)
    size_s, unit = time_unit(end_s)
    step = _step(end_s / size_s)
    parts = []
    for mark in (step * index for index in range(math.floor(end_s / size_s / step + 1e-9) + 1)):
        at = left + across * mark * size_s / end_s
        anchor = "left" if at > width - 20 else "middle"
        parts.append(f'<path class="grid" d="M{at:.1f} 4v{down:g}"/>')
        parts.append(
            f'<text class="{anchor}" x="{min(at, width - 2):.1f}" y="{down + 20:g}">{number(mark)}</text>'
        )
    for row, lane in enumerate(lanes):
        parts.append(_lane(lane, 4 + _LANE * (row + 0.5), left, across / end_s, most_slots))
    parts.append(
        f'<text class="middle label" x="{width / 2:g}" y="{down + 38:g}">since the first submission [{unit}]</text>'
    )
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{escape(title)}, scrolls sideways">'
        f'<svg viewBox="0 0 {width:g} {down + 44:g}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg></div>"
    )


def _step(high: float) -> float:
    """Return the distance between marks that gives four to eight of them up to `high`, above 0."""
    power = 10.0 ** math.floor(math.log10(high / 4))
    return next(power * factor for factor in (5, 2, 1) if high / (power * factor) >= 3.99)


def _lane(lane: Lane, middle: float, left: float, scale: float, most_slots: float) -> str:
    shades: list[list[str]] = [[] for _ in range(SHADES)]
    for from_s, until_s, slots in lane.held.tolist():
        part = math.log(max(slots, 1.0)) / math.log(most_slots) if most_slots > 1 else 1.0
        wide = max((until_s - from_s) * scale, 0.8)
        shades[min(int(part * SHADES), SHADES - 1)].append(
            f"M{left + from_s * scale:.1f} {middle:g}h{wide:.1f}"
        )
    paths = "".join(
        f'<path class="held{shade}" d="{"".join(moves)}"/>' for shade, moves in enumerate(shades) if moves
    )
    wait = f"M{left + lane.submit_s * scale:.1f} {middle:g}h{(lane.end_s - lane.submit_s) * scale:.1f}"
    return f'<g><title>{escape(lane.title)}</title><path class="there" d="{wait}"/>{paths}</g>'
