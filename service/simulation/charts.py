"""The pictures of a report: plain SVG and HTML as text, without a library. Colours and sizes are in `assets/report.css`.

Every policy has an index, which gives it the same colour in every picture, and the class `p<index>`, by which the
report's checkboxes hide it. Text from outside is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np

from service.domain.arrays import FloatArray

WIDTH, HEIGHT = 480.0, 280.0
"""Of a line chart, in SVG units: text of 13 units stays readable where the chart is as wide as a phone."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 10.0, 12.0, 42.0
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_ROUND_TIMES_S = (
    *(0.01, 0.1, 1.0, 5.0, 20.0),
    *(60.0 * minutes for minutes in (1, 5, 20)),
    *(3600.0 * hours for hours in (1, 5)),
    *(86_400.0 * days for days in (1, 5, 20, 100, 500)),
)
_ROUND_RATIOS = tuple(factor * 10.0**power for power in range(-4, 6) for factor in (1, 2, 5))
_MOST_MARKS = 8
_LANE = 9.0
"""SVG units from one job to the next."""
SHADES = 5
"""Steps of darkness in `lanes_chart`, from few slots to the most, and as many layers at most in `area_chart`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """From `low` to `high`, with marks and what is written at them."""

    label: str
    low: float
    high: float
    marks: tuple[tuple[float, str], ...]
    log: bool = False

    def at(self, values: FloatArray) -> FloatArray:
        """Where values are, 0 at `low`, 1 at `high`."""
        if self.log:
            least = np.log(self.low)
            return np.asarray((np.log(np.maximum(values, self.low)) - least) / (np.log(self.high) - least))
        return np.asarray((values - self.low) / (self.high - self.low))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line of one policy through points (N,); without an index, of something else to compare with."""

    name: str
    index: int | None
    x: FloatArray
    y: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What one policy comes to: `parts` one beside the other, each with its own shade."""

    name: str
    index: int
    parts: tuple[float, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One job: when it came, started and ended, and what it held: seconds from and to, and slots (N, 3)."""

    title: str
    submit_s: float
    end_s: float
    held: FloatArray


def duration(seconds: float, like_s: float | None = None) -> str:
    """Seconds as people say them: 45.0 s, 3.20 min, 4.51 h, 2.30 d; in the unit that suits `like_s` where it is given."""
    if not math.isfinite(seconds):
        return "-"
    size_s, unit = _unit(seconds if like_s is None else like_s, 1.5)
    return f"{figure(seconds / size_s)} {unit}"


def _unit(seconds: float, from_: float) -> tuple[float, str]:
    """The largest unit of which there are at least `from_`."""
    return next((one for one in _UNITS if abs(seconds) >= from_ * one[0]), _UNITS[-1])


def figure(value: float) -> str:
    """Three figures, with commas from a thousand on: 0.120, 7.00, 45.2, 1,234."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:#.3g}" if abs(value) >= 0.001 else "0"


def number(value: float) -> str:
    """As `figure`, without zeros at the end: 0.12, 7."""
    text = figure(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def plain_axis(label: str, high: float) -> Axis:
    """From 0 to somewhat above `high`."""
    step = _step(high)
    top = step * max(math.ceil(high / step - 1e-9), 1)
    marks = tuple((mark, number(mark)) for mark in _marks(top, step))
    return Axis(label=label, low=0.0, high=top, marks=marks)


def time_axis(label: str, high_s: float) -> Axis:
    """From 0 to `high_s`, in the unit that suits it."""
    size_s, unit = _unit(high_s, 2.0)
    step = _step(high_s / size_s)
    marks = tuple((mark * size_s, number(mark)) for mark in _marks(high_s / size_s, step))
    return Axis(label=f"{label} [{unit}]", low=0.0, high=max(high_s, 1e-9), marks=marks)


def log_time_axis(label: str, low_s: float, high_s: float) -> Axis:
    """From `low_s` to `high_s`, both above 0, by factors."""
    return _log_axis(label, low_s, high_s, _ROUND_TIMES_S, _round_time)


def log_axis(label: str, low: float, high: float) -> Axis:
    """From `low` to `high`, both above 0, by factors."""
    return _log_axis(label, low, high, _ROUND_RATIOS, number)


def _log_axis(
    label: str, low: float, high: float, round_values: Sequence[float], text: Callable[[float], str]
) -> Axis:
    high = max(high, 1.2 * low)
    marks = tuple((mark, text(mark)) for mark in round_values if low <= mark <= high)
    if len(marks) < 2:
        marks = tuple((mark, text(mark)) for mark in (low, math.sqrt(low * high), high))
    every = math.ceil(len(marks) / _MOST_MARKS)
    return Axis(label=label, low=low, high=high, marks=marks[::every], log=True)


def _round_time(seconds: float) -> str:
    size_s, unit = _unit(seconds, 1.0)
    return f"{number(seconds / size_s)} {unit}"


def _step(high: float) -> float:
    """Between marks, so that there are four to eight of them."""
    if not high > 0.0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(high / 4))
    return next(power * factor for factor in (5, 2, 1) if high / (power * factor) >= 3.99)


def _marks(high: float, step: float) -> Iterable[float]:
    return (step * index for index in range(math.floor(high / step + 1e-9) + 1))


def line_chart(*, title: str, description: str, x: Axis, y: Axis, lines: Sequence[Line]) -> str:
    """An SVG of lines over common axes; `title` and `description` are what a screen reader says of it."""
    across, down = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    parts = [_grid(x, y, across, down)]
    for line in reversed(lines):  # the first lies on top
        points = zip(_LEFT + across * x.at(line.x), _TOP + down * (1 - y.at(line.y)), strict=True)
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
        kind = "limit" if line.index is None else f"p{line.index}"
        parts.append(
            f'<polyline class="line {kind}" points="{path}"><title>{escape(line.name)}</title></polyline>'
        )
    return _svg(title, description, "".join(parts))


def _grid(x: Axis, y: Axis, across: float, down: float) -> str:
    bottom = _TOP + down
    parts = []
    for mark, text in y.marks:
        top = bottom - down * float(y.at(np.array(mark)))
        parts.append(f'<path class="grid" d="M{_LEFT:g} {top:.1f}h{across:g}"/>')
        parts.append(f'<text class="left" x="{_LEFT - 6:g}" y="{top + 4:.1f}">{escape(text)}</text>')
    for mark, text in x.marks:
        left = _LEFT + across * float(x.at(np.array(mark)))
        anchor = "left" if left > WIDTH - 20 else "middle"
        at = min(left, WIDTH - 2)
        parts.append(f'<path class="grid" d="M{left:.1f} {_TOP:g}v{down:g}"/>')
        parts.append(f'<text class="{anchor}" x="{at:.1f}" y="{bottom + 17:.1f}">{escape(text)}</text>')
    parts.append(
        f'<text class="middle label" x="{_LEFT + across / 2:g}" y="{HEIGHT - 6:g}">{escape(x.label)}</text>'
    )
    return "".join(parts)


def area_chart(*, title: str, description: str, x: Axis, y: Axis, at: FloatArray, layers: FloatArray) -> str:
    """An SVG of layers (L, N) at points (N,), one upon the other, the last the darkest; their names are the caller's."""
    across, down = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    left = _LEFT + across * x.at(at)
    tops = _TOP + down * (1 - y.at(np.cumsum(np.vstack([np.zeros(len(at)), layers]), axis=0)))
    parts = [_grid(x, y, across, down)]
    for layer, (below, above) in enumerate(pairwise(tops)):
        around = zip(np.concatenate([left, left[::-1]]), np.concatenate([above, below[::-1]]), strict=True)
        path = " ".join(f"{one:.1f},{top:.1f}" for one, top in around)
        shade = SHADES - len(layers) + layer
        parts.append(f'<polygon class="layer{shade}" points="{path}"/>')
    return _svg(title, description, "".join(parts))


def _svg(title: str, description: str, content: str) -> str:
    said = escape(f"{title}. {description}")
    return f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{said}">{content}</svg>'


def bar_table(*, title: str, bars: Sequence[Bar], parts: Sequence[str] = ()) -> str:
    """A table with a bar for each policy; `parts` names the shades where there are several."""
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
    """An SVG with one line of time for each job: thin while it waits, as dark as its slots are many."""
    width, left = 960.0, 8.0
    across, down = width - 2 * left, _LANE * len(lanes)
    axis = time_axis("since the first submit", end_s)
    parts = []
    for mark, text in axis.marks:
        at = left + across * mark / axis.high
        anchor = "left" if at > width - 20 else "middle"
        parts.append(f'<path class="grid" d="M{at:.1f} 4v{down:g}"/>')
        parts.append(f'<text class="{anchor}" x="{min(at, width - 2):.1f}" y="{down + 20:g}">{text}</text>')
    for row, lane in enumerate(lanes):
        parts.append(_lane(lane, 4 + _LANE * (row + 0.5), left, across / axis.high, most_slots))
    parts.append(
        f'<text class="middle label" x="{width / 2:g}" y="{down + 38:g}">{escape(axis.label)}</text>'
    )
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{escape(title)}, scrolls sideways">'
        f'<svg viewBox="0 0 {width:g} {down + 44:g}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg></div>"
    )


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
