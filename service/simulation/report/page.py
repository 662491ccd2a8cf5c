"""Report page of a simulation: one self-contained HTML file for readers who do not know the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

import numpy as np

from headway.contract.values.dollars import dollars
from headway.contract.values.quantities import duration
from service.domain.shared.arrays import FloatArray
from service.simulation.model.world import View
from service.simulation.report.charts import (
    ChartBar,
    ChartLine,
    Lane,
    LineChart,
    bar_table,
    lanes_chart,
    line_chart,
    number,
    time_unit,
)
from service.simulation.report.results import ReplayResult, Results, mean_figures
from service.simulation.report.words import FIGURES, SummaryColumn, best_of, findings, warnings

_COLOURS = 12
_POINTS = 240
"""Number of points of a line over time, and of a distribution."""
_LEAST = 0.005
"""Share of the values of a distribution to the left of its axis, drawn at its edge."""
_MOST_LANES = 300
"""Largest number of jobs shown one by one. More jobs are summed by their requested size."""
_BANDS = ((1, 1), (2, 4), (5, 8), (9, 32), (33, None))
"""Ranges of requested sizes, from and to, by which jobs are summed."""


def render(results: Results) -> str:
    """Return the page, including style, script and charts."""
    assets = files("service.simulation") / "assets"
    uplot = files("service") / "console/static/uplot"
    policies = results.policies
    return Template((assets / "report.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"Simulation: {results.name}"),
        style=_texts(uplot / "uPlot.min.css", assets / "report.css"),
        script=_texts(uplot / "uPlot.iife.min.js", assets / "report.js"),
        world=escape(_world(results)),
        words=_words(results),
        choice=_choice(list(policies)) if len(policies) > 1 else "",
        body=_summary(policies) + _figures(policies) + _by_job(policies),
        footer=_footer(results),
    )


def _texts(*parts: Traversable) -> str:
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


def _world(results: Results) -> str:
    world = results.runs[0].replay.world
    kinds = ", ".join(f"{kind.slots:,} {kind.name}" for kind in world.kinds)
    pause_s = world.rules.live_pause_s
    change = (
        "its application's restart"
        if pause_s is None
        else f"{number(pause_s)} s (live), a start its application's restart"
    )
    sight = "the true speeds" if world.rules.view is View.ORACLE else "learned speeds"
    seeds = len({one.replay.world.seed for one in results.runs})
    return (
        f"{len(world.arrivals):,} jobs on {sum(kind.slots for kind in world.kinds):,} slots ({kinds}); a round every "
        f"{number(world.rules.interval_s)} s{' and on every event' if world.rules.on_events else ''}; a change of "
        f"a running job costs {change}; policies see {sight}; {seeds} {'seed' if seeds == 1 else 'seeds'}."
    )


def _words(results: Results) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in findings(results))
    careful = "".join(f'<p class="warn">{escape(sentence)}</p>' for sentence in warnings(results))
    return f'<ul class="words">{items}</ul>{careful}'


def _choice(names: Sequence[str]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" data-policy="{index}" checked>'
        f'<svg viewBox="0 0 30 10" aria-hidden="true"><path class="line p{_colour(index)}" d="M0 5h30"/></svg>'
        f"{escape(name)}</label>"
        for index, name in enumerate(names)
    )
    return f'<fieldset><legend>Policies shown</legend><div class="choice">{boxes}</div></fieldset>'


def _colour(index: int) -> int:
    return index % _COLOURS


def _summary(policies: Mapping[str, list[ReplayResult]]) -> str:
    means = {name: mean_figures(runs) for name, runs in policies.items()}
    shown = [
        one for one in FIGURES if one.key != "usd" or any(figures["usd"] > 0 for figures in means.values())
    ]
    heads = "".join(
        f'<th scope="col" title="{escape(one.meaning)}">{escape(one.heading)}</th>' for one in shown
    )
    best = {one.key: best_of(one, means) for one in shown}
    rows = []
    for index, (name, runs) in enumerate(policies.items()):
        cells = [
            _cell(one, [result.figures[one.key] for result in runs], first=name in best[one.key])
            for one in shown
        ]
        rows.append(f'<tr class="p{_colour(index)}"><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>')
    meanings = "".join(
        f"<li><strong>{escape(one.heading)}</strong>: {escape(one.meaning)}.</li>" for one in shown
    )
    marked = "The best of each column is green and bold. " if len(policies) > 1 else ""
    seeds = max(len(runs) for runs in policies.values())
    spread = f"Means over {seeds} seeds, with the largest deviation of a seed below. " if seeds > 1 else ""
    return (
        '<section><h2 id="summary">The figures</h2>'
        f'<p class="note">{marked}{spread}</p>'
        '<div class="wide" tabindex="0" role="group" aria-labelledby="summary"><table class="summary">'
        f'<thead><tr><th scope="col">policy</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f"<details><summary>What the columns mean</summary><ul>{meanings}</ul></details></section>"
    )


def _cell(of: SummaryColumn, values: Sequence[float], *, first: bool) -> str:
    mean = float(np.mean(values))
    text = escape(of.text(mean))
    if first:
        text = f'<strong class="best">{text}<span class="unseen"> (best)</span></strong>'
    farthest = max(abs(value - mean) for value in values)
    spread = (
        f'<span class="spread">± {100 * farthest / mean:.0f} %</span>' if farthest >= 0.005 * mean > 0 else ""
    )
    return f"<td>{text}{spread}</td>"


def _figures(policies: Mapping[str, list[ReplayResult]]) -> str:
    firsts = {name: runs[0] for name, runs in policies.items()}
    parts = [
        _distribution(
            policies,
            "Completion time",
            "Share of jobs that were done within a time after their submission: the further left a line, the better.",
            lambda one: one.completion_s,
            "from submission to end",
        ),
        _distribution(
            policies,
            "Waiting time",
            "Share of jobs that had their first slots within a time after their submission.",
            lambda one: np.maximum(one.replay.jobs.start_s - one.replay.jobs.submit_s, 1.0),
            "from submission to the first slots",
        ),
        _over_time(
            firsts,
            "Slots in use over time",
            "Slots that jobs hold. The dotted line is the number of slots present. A dip while jobs wait is wasted capacity.",
            "slots_used",
        ),
        _over_time(firsts, "Queue over time", "Jobs that have no slots at the moment.", "queued"),
        _over_time(
            firsts,
            "Goodput over time",
            "Sum over jobs of their speed relative to their smallest, slowest size: higher is better.",
            "goodput",
        ),
        _distribution(
            policies,
            "Fairness",
            "Share of jobs by completion time over that on a fixed, equal share of the cluster. Right of 1, jobs had "
            "less than their share.",
            lambda one: one.fairness,
            "completion time over that on an equal share",
            times=False,
        ),
        _cost(policies),
        _slot_hours(policies),
    ]
    return f'<section><div class="grid-of">{"".join(parts)}</div></section>'


def _figure(title: str, caption: str, content: str) -> str:
    return f"<figure><h2>{escape(title)}</h2><figcaption>{escape(caption)}</figcaption>{content}</figure>"


def _distribution(
    policies: Mapping[str, list[ReplayResult]],
    title: str,
    caption: str,
    values_of: Callable[[ReplayResult], FloatArray],
    label: str,
    *,
    times: bool = True,
) -> str:
    """Return a chart of the cumulative share of jobs over all seeds. Infinite values are never reached."""
    values = {name: np.sort(np.concatenate([values_of(one) for one in of])) for name, of in policies.items()}
    every = np.concatenate([each[np.isfinite(each)] for each in values.values()])
    if not len(every):
        return _figure(title, caption, "<p>No values.</p>")
    low = max(float(np.quantile(every, _LEAST)), 1e-3)
    x = np.geomspace(low, max(float(every.max()), 1.2 * low), _POINTS)
    size, unit = time_unit(float(np.median(every))) if times else (1.0, "")
    lines = [
        ChartLine(
            name=name, index=index, y=np.searchsorted(each, x * (1 + 1e-9), side="right") / max(len(each), 1)
        )
        for index, (name, each) in enumerate(values.items())
    ]
    chart = LineChart(
        title=title,
        label=f"{label} [{unit}]" if unit else label,
        x=x / size,
        lines=lines,
        log=True,
        shares=True,
    )
    return _figure(title, caption, line_chart(chart))


def _over_time(firsts: Mapping[str, ReplayResult], title: str, caption: str, column: str) -> str:
    end_s = max(1e-9, *(one.replay.end_s for one in firsts.values()))
    edges = np.linspace(0.0, end_s, _POINTS + 1)
    lines = []
    for index, (name, one) in enumerate(firsts.items()):
        level = np.asarray(getattr(one.replay.rounds, column), dtype=np.float64)
        y = binned(one.replay.rounds.time_s, level, edges)
        lines.append(ChartLine(name=name, index=index, y=np.where(edges[:-1] < one.replay.end_s, y, np.nan)))
    if column == "slots_used":
        present = next(iter(firsts.values())).replay.rounds
        y = binned(present.time_s, present.slots_present.astype(np.float64), edges)
        lines.append(ChartLine(name="slots present", index=None, y=y))
    return _figure(title, caption, line_chart(_since_start(title, edges, lines)))


def _since_start(
    title: str, edges: FloatArray, lines: Sequence[ChartLine], *, stacked: bool = False
) -> LineChart:
    size_s, unit = time_unit(float(edges[-1]))
    return LineChart(
        title=title, label=f"since the start [{unit}]", x=edges[:-1] / size_s, lines=lines, stacked=stacked
    )


def binned(time_s: FloatArray, level: FloatArray, edges: FloatArray) -> FloatArray:
    """Return the means (B,) between edges (B + 1,) of a step function.

    The function is `level[i]` from `time_s[i]` to the next time, and 0 before the first.
    """
    if not len(time_s):
        return np.zeros(len(edges) - 1)
    last_s = max(float(edges[-1]), float(time_s[-1]))
    times = np.concatenate(([min(0.0, float(time_s[0]))], time_s, [last_s]))
    area = np.concatenate(([0.0], np.cumsum(np.concatenate(([0.0], level)) * np.diff(times))))
    return np.asarray(np.diff(np.interp(edges, times, area)) / np.maximum(np.diff(edges), 1e-12))


def _cost(policies: Mapping[str, list[ReplayResult]]) -> str:
    usd = {name: mean_figures(runs)["usd"] for name, runs in policies.items()}
    if not any(value > 0.0 for value in usd.values()):
        return _figure("Cost", "The cluster file has no prices (usd_per_slot_h).", "")
    bars = [
        ChartBar(name=name, index=_colour(index), parts=(value,), text=dollars(value))
        for index, (name, value) in enumerate(usd.items())
    ]
    return _figure("Cost", "Cost of all slots that jobs held.", bar_table(title="Cost", bars=bars))


def _slot_hours(policies: Mapping[str, list[ReplayResult]]) -> str:
    bars = []
    for index, (name, runs) in enumerate(policies.items()):
        held_h = float(np.mean([one.replay.jobs.served_slot_s.sum() for one in runs])) / 3600
        lost_h = float(np.mean([_lost_slot_s(one) for one in runs])) / 3600
        text = f"{number(held_h)} h, {number(lost_h)} h of them lost"
        bars.append(ChartBar(name=name, index=_colour(index), parts=(held_h - lost_h, lost_h), text=text))
    title = "Slot-hours, and the part lost to changes"
    caption = "Lost: held during starts, pauses and repeated work."
    return _figure(title, caption, bar_table(title=title, bars=bars, parts=("training", "lost")))


def _lost_slot_s(one: ReplayResult) -> float:
    """Return the lost slot-seconds: each job's lost seconds at its average number of slots."""
    jobs, segments = one.replay.jobs, one.replay.segments
    held_s = np.bincount(segments.job, segments.to_s - segments.from_s, minlength=len(jobs.id))
    mean_slots = np.divide(jobs.served_slot_s, held_s, out=np.zeros(len(jobs.id)), where=held_s > 0.0)
    return float(np.minimum(jobs.lost_s * mean_slots, jobs.served_slot_s).sum())


def _by_job(policies: Mapping[str, list[ReplayResult]]) -> str:
    firsts = {name: runs[0] for name, runs in policies.items()}
    end_s = max(one.replay.end_s for one in firsts.values())
    single = len(next(iter(firsts.values())).replay.jobs.id) <= _MOST_LANES
    if single:
        title = "Slots over time, job by job"
        caption = "One line for each job, in the order of their submissions: thin while it waits, darker with more slots."
    else:
        title = "Slots over time, by requested size"
        caption = "Slots held by jobs of each requested size. There are too many jobs to show each."
    draw = _lanes if single else _bands
    parts = [
        f'<details class="p{_colour(index)}"{" open" if index == 0 else ""}><summary>{escape(name)}</summary>'
        f"{draw(f'{title}, {name}', one, end_s)}</details>"
        for index, (name, one) in enumerate(firsts.items())
    ]
    return f'<section><h2>{title}</h2><p class="note">{caption}</p>{"".join(parts)}</section>'


def _lanes(title: str, one: ReplayResult, end_s: float) -> str:
    jobs, segments = one.replay.jobs, one.replay.segments
    slots = one.replay.world.configurations.slots[segments.column]
    held = np.stack([segments.from_s, segments.to_s, slots.astype(np.float64)], axis=1)
    by_job = np.argsort(segments.job, kind="stable")
    starts = np.searchsorted(segments.job[by_job], np.arange(len(jobs.id) + 1))
    lanes = [
        Lane(
            title=_lane_title(one, row),
            submit_s=max(float(jobs.submit_s[row]), 0.0),
            end_s=float(min(jobs.end_s[row], one.replay.end_s)),
            held=held[by_job[starts[row] : starts[row + 1]]],
        )
        for row in range(len(jobs.id))
    ]
    most = float(slots.max(initial=1))
    return lanes_chart(title=title, lanes=lanes, end_s=max(end_s, 1e-9), most_slots=most)


def _lane_title(one: ReplayResult, row: int) -> str:
    jobs = one.replay.jobs
    waited = duration(float(jobs.start_s[row] - jobs.submit_s[row]))
    took = duration(float(one.completion_s[row]))
    ended = f"done after {took}" if took != "-" else "not done"
    return (
        f"{jobs.id[row]} ({jobs.application[row]}): requested {jobs.requested_slots[row]} slots, waited {waited}, {ended}, "
        f"{jobs.changes[row]} changes"
    )


def _bands(title: str, one: ReplayResult, end_s: float) -> str:
    segments = one.replay.segments
    asked = one.replay.jobs.requested_slots[segments.job]
    slots = one.replay.world.configurations.slots[segments.column].astype(np.float64)
    edges = np.linspace(0.0, max(end_s, 1e-9), _POINTS + 1)
    layers: dict[str, FloatArray] = {}
    for low, high in _BANDS:
        of_band = (asked >= low) & (asked <= (high or np.inf))
        if of_band.any():
            times = np.concatenate([segments.from_s[of_band], segments.to_s[of_band]])
            changes = np.concatenate([slots[of_band], -slots[of_band]])
            order = np.argsort(times, kind="stable")
            name = str(low) if low == high else f"{low} to {high}" if high else f"{low} and more"
            layers[name] = binned(times[order], np.cumsum(changes[order]), edges)
    if not layers:
        return "<p>No job held a slot.</p>"
    lines = [ChartLine(name=f"{name} requested", index=None, y=y) for name, y in layers.items()]
    return line_chart(_since_start(title, edges, lines, stacked=True))


def _footer(results: Results) -> str:
    seed = min(one.replay.world.seed for one in results.runs)
    several = len({one.replay.world.seed for one in results.runs}) > 1
    which = f"The charts over time show seed {seed}. " if several else ""
    return (
        f"{which}The data of this page are in the same folder: <code>summary.json</code>, <code>jobs.csv</code>, "
        "<code>rounds.csv</code>, <code>slots.csv</code>."
    )
