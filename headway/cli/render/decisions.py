"""Tables of decisions, prices and forecasts.

All functions take values and return renderables; the time is the argument `now`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.cli.render.configurations import (
    configuration_lines,
    depth_text,
    note_lines,
    short_note,
    speedup,
    speedup_lines,
)
from headway.cli.render.jobs import (
    columns,
    facts_grid,
    kept_text,
    rate,
    search_text,
    state_text,
    target_text,
    usd,
)
from headway.contract.values.quantities import duration
from headway.contract.views.decisions import (
    ClusterView,
    ExplanationView,
    Outlook,
    ParameterValue,
    PolicyView,
    RoundView,
    RowPrice,
)
from headway.contract.views.forecasts import (
    ConfigurationForecast,
    ForecastView,
    Mark,
    PlanView,
    PredictionScore,
    Work,
)
from headway.contract.views.jobs import TERMINAL_STATES, JobState, SizeOption, still_applies

_HIGHLIGHTS = {
    Mark.SMALLEST: "the smallest",
    Mark.KNEE: "the best trade of time and cost",
    Mark.FASTEST: "the fastest",
}


def explain_page(explained: ExplanationView, now: datetime) -> RenderableType:
    """Return the page of `headway explain`: the decision, the alternatives, and the value of another slot."""
    heading = Text.assemble(
        (explained.name, "bold"),
        "  ",
        state_text(explained.state),
        f"  {explained.action}: {explained.message}"
        if still_applies(explained.state, explained.action)
        else f"  {explained.message}",
    )
    if explained.decided_at is None:
        return Group(heading, Text("No round has decided about this job yet.", style="dim"))
    age = duration((now - explained.decided_at).total_seconds())
    policy = f", policy {explained.policy}" if explained.policy else ""
    when = f"decided {age} ago, round {explained.round_id}, reason {explained.reason}{policy}"
    parts: list[RenderableType] = [heading, Text(when, style="dim")]
    if explained.imposed_count:
        parts.append(Text(imposed_text(explained.imposed_count, explained.imposed_s), style="dim"))
    if explained.options:
        parts.append(_options(explained.options))
        parts.append(Text(f"goodput in {explained.progress_unit} per second", style="dim"))
        parts += speedup_lines(explained.options)
        parts += note_lines((one.slots, _pool(one), one.note) for one in explained.options)
    if explained.state not in TERMINAL_STATES | {JobState.PAUSED, JobState.CANCELLING}:
        parts += [Text(line) for line in _price_lines(explained)]
    return Group(*parts)


def imposed_text(count: int, cost_s: float) -> str:
    """Return the number and the cost of resizes that no user requested."""
    times = "once" if count == 1 else f"{count} times"
    return f"changed {times} without a user's request, at a cost of {cost_s:.1f} s of training"


def _options(options: Sequence[SizeOption]) -> Table:
    table = columns(">SIZE", "KIND", ">NODES", ">GOODPUT/S", ">SPEEDUP", "FROM", ">UTILITY", fold=["NOTE"])
    table.columns[1].no_wrap, table.columns[1].overflow, table.columns[1].min_width = False, "fold", 6
    for option in options:
        table.add_row(
            str(option.slots),
            _pool(option),
            str(option.nodes),
            rate(option.goodput_samples_per_s),
            speedup(option),
            "measured" if option.measured else "predicted",
            "-" if option.utility is None else f"{option.utility:.3f}",
            "; ".join(
                filter(
                    None, [short_note(option.note), crossing_text(option.crosses), depth_text(option.depth)]
                )
            ),
        )
    return table


def _pool(option: SizeOption) -> str:
    return f"{option.pool}, {option.anchor} on-demand" if option.anchor else option.pool


def crossing_text(level: str) -> str:
    """Return the topology level that a size must cross as text; "" for none."""
    return {"": "", "nvlink": "across NVLink domains", "link": "across a slow link"}.get(
        level, f"across {level}s"
    )


def _price_lines(explained: ExplanationView) -> Iterator[str]:
    if explained.binding:
        limits = (
            f"{row_name(row.name)} ({row.used:,.6g} of {row.capacity:,.6g} taken, price {row.price:.3g})"
            for row in explained.binding
        )
        yield f"what limits it: {', '.join(limits)}"
    # A larger size that is worth nothing to the job is omitted.
    for one in explained.outlook:
        if one.gain is None or one.gain > 0:
            yield _outlook(
                one, explained, waits=not any(each.note == "current" for each in explained.options)
            )


def _outlook(one: Outlook, explained: ExplanationView, *, waits: bool) -> str:
    dollars = one.row == "usd_per_h" or one.row.startswith("budget/")
    more = "one more dollar an hour" if dollars else f"one more slot of {one.device_kind}"
    goodput = one.goodput_samples_per_s
    speeds = [] if waits else [f"{one.speedup:.2f} times as fast as now"]
    speeds += [] if goodput is None else [f"goodput {rate(goodput)} {explained.progress_unit}/s"]
    could = "could run on" if waits else "could have"
    sentence = ": ".join(
        filter(None, [f"with {more} it {could} {one.slots} {one.device_kind}", ", ".join(speeds)])
    )
    if one.gain is None:
        return sentence
    worth = f"worth {one.gain:.3g} to it and {one.price:.3g} to others"
    return f"{sentence}; {worth}, in {explained.unit}" if explained.unit else f"{sentence}; {worth}"


def row_name(name: str) -> str:
    """Return the name of a constraint of a round in words."""
    match name.split("/"):
        case ["slots", kind]:
            return f"slots of {kind}"
        case ["packing", kind, size]:
            return f"room for {size} {kind} together"
        case ["budget", budget]:
            return f"dollars an hour of budget {budget}"
        case ["quota", project]:
            return f"quota of {project}"
        case ["usd_per_h"]:
            return "dollars an hour"
    return name


def rounds_table(rounds: Sequence[RoundView], now: datetime) -> Table:
    """Return the table of `headway rounds`."""
    table = columns("ROUND", ">AGE", "POLICY", ">JOBS", ">CHANGES", ">GAP", ">TOOK", fold=["WHAT"])
    for one in rounds:
        table.add_row(
            one.id,
            duration((now - one.at).total_seconds()),
            one.policy or "-",
            str(one.jobs),
            str(len(one.changes) + one.other_changes),
            _share(one.gap),
            f"{1000 * one.took_s:,.0f} ms",
            _summary(one),
        )
    return table


def _summary(one: RoundView) -> str:
    shown = [f"{each.action} {each.job_name} {each.from_}>{each.to}" for each in one.changes[:3]]
    rest = len(one.changes) - len(shown)
    if one.other_changes:
        shown.append(f"{one.other_changes} in other projects")
    return ", ".join([*shown, f"{rest} more"] if rest else shown) or "nothing changed"


def _share(gap: float) -> str:
    return "0" if gap <= 0 else f"{gap:.2%}"


def round_page(one: RoundView, now: datetime) -> RenderableType:
    """Return the page of `headway rounds ROUND`: its facts, prices and changes."""
    age = duration((now - one.at).total_seconds())
    parameters = _parameters(one.parameters)
    times = ", ".join(
        f"{name.removesuffix('_s')} {1000 * value:,.1f} ms" for name, value in one.times.items()
    )
    facts = (
        ("policy", f"{one.policy or '-'}{f' ({parameters})' if parameters else ''}"),
        ("jobs", f"{one.jobs}, of which {len(one.changes) + one.other_changes} changed"),
        ("reached", f"{one.objective:.6g} of at most {one.bound:.6g} {one.unit}".rstrip()),
        ("gap", f"{_share(one.gap)}, {one.status}"),
        ("times", times or f"{1000 * one.took_s:,.1f} ms"),
        ("inputs", one.inputs_digest or "-"),
    )
    heading = Text.assemble((f"round {one.id}", "bold"), f"  {age} ago")
    parts: list[RenderableType] = [heading, facts_grid((label, Text(value)) for label, value in facts)]
    if one.prices:
        parts += [Text(""), _prices(one.prices)]
    if one.changes or one.other_changes:
        parts += [Text(""), _changes(one)]
    return Group(*parts)


def _prices(prices: Sequence[RowPrice]) -> Table:
    table = columns("LIMIT", ">TAKEN", ">OF", ">PRICE OF ONE MORE")
    for row in prices:
        table.add_row(
            row_name(row.name),
            f"{row.used:,.6g}",
            f"{row.capacity:,.6g}",
            f"{row.price:.4g}" if row.price else "0",
        )
    return table


def _changes(one: RoundView) -> Table:
    table = columns("JOB", "ACTION", ">FROM", ">TO", fold=["WHY"])
    for each in one.changes:
        table.add_row(each.job_name, each.action, str(each.from_), str(each.to), Text(each.message))
    if one.other_changes:
        table.add_row(f"{one.other_changes} more", "", "", "", "changes of jobs in other projects")
    return table


def policy_page(cluster: ClusterView) -> RenderableType:
    """Return the page of `headway policy`: the present policy, and all available ones."""
    parameters = _parameters(cluster.parameters)
    heading = Text.assemble("policy ", (cluster.policy, "bold"), f"  {parameters}" if parameters else "")
    table = columns("POLICY", fold=["WHAT IT DOES", "PARAMETERS"])
    for one in cluster.policies:
        name = Text(one.name, style="bold" if one.name == cluster.policy else "")
        defaults = _parameters({parameter.name: parameter.default for parameter in one.parameters})
        table.add_row(name, Text(one.summary), Text(defaults or "none"))
    return Group(heading, Text(""), table)


def parameters_table(policy: PolicyView) -> Table:
    """Return the table of the parameters of one policy."""
    table = columns("PARAMETER", "DEFAULT", "ACCEPTED", fold=["MEANING"])
    for one in policy.parameters:
        table.add_row(one.name, _value(one.default), one.interval or "any number", Text(one.meaning))
    return table


def _parameters(parameters: dict[str, ParameterValue]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in parameters.items())


def _value(value: ParameterValue) -> str:
    return ",".join(f"{one:g}" for one in value) if isinstance(value, list) else f"{value:g}"


def forecast_page(forecast: ForecastView) -> RenderableType:
    """Return the page of `headway forecast`."""
    parts: list[RenderableType] = [Text.assemble((forecast.name, "bold"), f"  {_work(forecast.work)}")]
    if forecast.configurations:
        parts += configuration_lines(forecast.configurations)
    if forecast.search is not None:
        parts.append(Text(f"search: {search_text(forecast.search)}"))
    if forecast.goal_target is not None:
        parts.append(Text(f"target: {target_text(forecast.goal_target, forecast.work.unit)}"))
    parts += [Text(kept_text(one)) for one in forecast.kept]
    parts.append(Text(_score(forecast.score), style="dim"))
    return Group(*parts)


def plan_page(plan: PlanView) -> RenderableType:
    """Return the page of `headway plan`."""
    parts: list[RenderableType] = [Text.assemble((plan.name, "bold"), f"  {_work(plan.work)}")]
    parts += [Text(f"note: {warning}", style="yellow") for warning in plan.warnings]
    if plan.deadline is not None:
        verdict = plan.deadline.verdict.replace("_", " ")
        parts.append(Text(f"deadline {verdict}: {plan.deadline.message}"))
    if plan.configurations:
        parts += configuration_lines(plan.configurations)
        parts += [Text(line) for line in _highlights(plan.configurations)]
    return Group(*parts)


def _work(work: Work) -> str:
    if work.samples is None:
        return f"its end is unknown: {work.reason}"
    late = work.samples_p90
    at_most = f", with 90 % at most {late:,.0f}" if late is not None and late > 1.005 * work.samples else ""
    return f"{work.samples:,.0f} {work.unit} to go{at_most}: {work.reason}"


def _highlights(configurations: Sequence[ConfigurationForecast]) -> Iterator[str]:
    for mark, name in _HIGHLIGHTS.items():
        for one in configurations:
            if mark in one.marks:
                times = f", {one.speedup:.2f} times one slot" if one.one_slot_measured else ""
                what = f"{name}: {one.slots} {one.device_kind}{times}"
                takes = f", about {duration(one.time_s)}" if one.time_s is not None else ""
                costs = f", {usd(one.cost_usd)}" if one.cost_usd else ""
                yield f"{what}{takes}{costs}"


def _score(score: PredictionScore) -> str:
    if not score.count or score.median_ratio is None or score.p90_error is None:
        return "no prediction for the job has been checked yet"
    checked = "1 prediction" if score.count == 1 else f"{score.count} predictions"
    text = f"{checked} checked: in the median {score.median_ratio:.2f} times what was measured"
    inside = "" if score.coverage is None else f", {score.coverage:.0%} inside their intervals"
    return f"{text}, 9 of 10 within {score.p90_error:.0%}{inside}"
