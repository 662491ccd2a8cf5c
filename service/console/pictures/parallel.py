"""Parallel coordinates of a sweep: a line for each trial through its parameters to its best value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headway.contract.spec_parameters import ParameterValue
from headway.contract.views.sweeps import SweepView, TrialView
from service.console.html.fragments import Content, Fragment, Listing
from service.console.html.text import plural
from service.console.pictures.scales import Scale, scale_of, scale_of_metric, value_text

TOP_PX: Final = 44
PLOT_PX: Final = 280
HEIGHT_PX: Final = TOP_PX + PLOT_PX + 14
_LETTER_PX: Final = 7.6
"""Largest mean width of a letter of a label."""
_LEAST_PX: Final = 80
"""Smallest width of the column of an axis, which holds its labels."""
_MARGIN_PX: Final = 8
"""Distance of an axis from the left side of its column: the dots of the best trial need it."""
_LONGEST_NAME: Final = 64
"""Letters of a name. Those of parameters have no more."""
_LONGEST: Final = 24
"""Letters of a value. Longer ones end in an ellipsis; the page of the job has them in full."""
_UNITS: Final = 1000
"""Units of the coordinates of lines along either side, which stretch with the page."""
_NEAR: Final = 10
"""One of so many trials with a value is drawn as near the best."""
_TITLED: Final = 6
"""Parameters of a trial that its tooltip names."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A label beside an axis, with `y` in pixels."""

    y: str
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis with its name, a note below the name, and `x` in percent."""

    x: str
    name: str
    note: str
    ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class TrialLine:
    """The line of a trial. `tone` is `best`, `near`, `other` or `open` (without a value)."""

    job_id: str
    tone: str
    path: str
    title: str


@dataclass(frozen=True, slots=True)
class BestMarks:
    """Dots of the best trial at its axes, as positions in percent and pixels, and its name at the last one."""

    dots: tuple[tuple[str, str], ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Axes:
    """All axes, and the width in pixels below which the picture scrolls."""

    axes: tuple[Axis, ...]
    width_px: int
    height_px: int = HEIGHT_PX
    top_px: int = TOP_PX
    plot_px: int = PLOT_PX


@dataclass(frozen=True, slots=True)
class ParallelPicture:
    """All parts of the picture. `lines` has ids of elements, the best trial last, which draws it on top."""

    axes: Axes
    lines: tuple[tuple[str, TrialLine], ...]
    best: BestMarks
    words: str

    def contents(self) -> list[Content]:
        """Return the fragments of the picture."""
        return [
            Fragment("parallel-axes", "sweep_parts.html/axes", self.axes),
            Fragment("parallel-best", "sweep_parts.html/best_marks", self.best),
            Fragment("parallel-words", "sweep_parts.html/words", self.words),
            Listing(
                "parallel-lines",
                tuple(Fragment(name, "sweep_parts.html/trial_line", line) for name, line in self.lines),
            ),
        ]


def parallel_picture(view: SweepView) -> ParallelPicture:
    """Return the picture of a sweep, with an axis for each parameter and the last one for the metric."""
    scales = {name: scale_of(space) for name, space in view.sweep.parameters.items()}
    values = known_values(view)
    metric = scale_of_metric(list(values.values()))
    axes = _axes(view, scales, metric)
    xs = [float(one.x.removesuffix("%")) / 100 for one in axes.axes]
    places = {
        one.number: _places(one, scales, metric.place(values[one.number]) if one.number in values else None)
        for one in view.trials
    }
    best = view.best if view.best in values else None
    tones = _tones(view, values, best)
    lines = [
        (
            f"line-{one.number}",
            TrialLine(one.job_id, tones[one.number], _path(xs, places[one.number]), _title(view, one)),
        )
        for one in sorted(
            view.trials, key=lambda one: (one.number == best, tones[one.number] == "near", one.number)
        )
    ]
    marks = BestMarks()
    if best is not None:
        dots = tuple(
            (f"{100 * x:.2f}%", f"{_y(share):.1f}")
            for x, share in zip(xs, places[best], strict=False)
            if share is not None
        )
        marks = BestMarks(dots, f"trial {best}")
    return ParallelPicture(axes, tuple(lines), marks, _words(view, len(values)))


def known_values(view: SweepView) -> dict[int, float]:
    """Return the finite best values by trial: a diverged trial has none that an axis could show."""
    return {
        one.number: one.value for one in view.trials if one.value is not None and math.isfinite(one.value)
    }


def _axes(view: SweepView, scales: Mapping[str, Scale], metric: Scale) -> Axes:
    shown = [(name, "log" if scale.log else "", scale) for name, scale in scales.items()]
    if view.sweep.metric is not None:
        better = "lower is better" if view.sweep.goal == "minimise" else "higher is better"
        name = _cut(view.sweep.metric, _LONGEST_NAME)
        shown.append((name, f"{better}, log" if metric.log else better, metric))
    widths = [_width_px(*one) for one in shown]
    column_px = max(widths[:-1], default=_LEAST_PX)
    width_px = column_px * (len(shown) - 1) + widths[-1]
    axes = tuple(
        Axis(
            x=f"{100 * (column_px * at + _MARGIN_PX) / width_px:.2f}%",
            name=name,
            note=note,
            ticks=tuple(Tick(f"{_y(one.share):.1f}", _cut(one.text)) for one in scale.labels),
        )
        for at, (name, note, scale) in enumerate(shown)
    )
    return Axes(axes, width_px)


def _width_px(name: str, note: str, scale: Scale) -> int:
    """Return the width of a column in which no label is cut, and none reaches the next axis."""
    letters = max(len(text) for text in (name, note, *(_cut(one.text) for one in scale.labels)))
    return max(_LEAST_PX, 2 * _MARGIN_PX + 4 + math.ceil(_LETTER_PX * letters))


def _places(trial: TrialView, scales: Mapping[str, Scale], value: float | None) -> list[float | None]:
    found = [
        scale.place(trial.parameters[name]) if name in trial.parameters else None
        for name, scale in scales.items()
    ]
    return [*found, value]


def _tones(view: SweepView, values: Mapping[int, float], best: int | None) -> dict[int, str]:
    sign = 1 if view.sweep.goal == "minimise" else -1
    ranked = sorted(values, key=lambda number: (sign * values[number], number))
    near = set(ranked[: len(ranked) // _NEAR])
    compared = view.sweep.metric is not None
    return {
        one.number: "best"
        if one.number == best
        else "near"
        if one.number in near
        else "other"
        if one.number in values or not compared
        else "open"
        for one in view.trials
    }


def _path(xs: list[float], shares: list[float | None]) -> str:
    points = [
        f"{round(_UNITS * x)} {round(_UNITS * (1 - share))}"
        for x, share in zip(xs, shares, strict=False)
        if share is not None
    ]
    return "M" + " ".join(points) if points else ""


def _y(share: float) -> float:
    return TOP_PX + PLOT_PX * (1 - share)


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _title(view: SweepView, trial: TrialView) -> str:
    given: list[tuple[str, ParameterValue]] = list(trial.parameters.items())
    parts = [f"{name} {_cut(value_text(value))}" for name, value in given[:_TITLED]]
    if view.sweep.metric is not None:
        parts.append(
            f"{view.sweep.metric} {'not reported' if trial.value is None else value_text(trial.value)}"
        )
    return f"{trial.name}: {', '.join(parts)}"


def _words(view: SweepView, known: int) -> str:
    if view.sweep.metric is None:
        return "Each line is a trial, and leads to its job. With sweep.metric in the job file, trials are compared."
    open_ = len(view.trials) - known
    without = f", of {plural(open_, 'trial')} without a value only to its parameters" if open_ else ""
    return f"Each line is a trial through its parameters to its best {view.sweep.metric}{without}. It leads to the trial's job."
