"""Sweeps as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.cli.render.jobs import clause, columns, state_text
from headway.contract.views.jobs import JobState
from headway.contract.views.sweeps import SweepSummary, SweepView


def sweeps_table(sweeps: Iterable[SweepSummary]) -> Table:
    """Return the table of `headway sweep`."""
    table = columns("NAME", "PROJECT", ">TRIALS", "SEARCH", "METRIC", fold=["STATES"])
    for one in sweeps:
        metric = "-" if one.sweep.metric is None else f"{one.sweep.metric} ({one.sweep.goal})"
        table.add_row(
            one.name,
            one.project,
            str(sum(one.states.values())),
            one.sweep.search,
            metric,
            states_text(one.states),
        )
    return table


def sweep_page(view: SweepView) -> RenderableType:
    """Return the trials of a sweep by number. A `*` marks the best."""
    names, metric = list(view.sweep.parameters), view.sweep.metric
    table = columns(
        "",
        ">TRIAL",
        "STATE",
        *(f">{name}" for name in names),
        *([] if metric is None else [f">{metric}"]),
        fold=["WHY"],
    )
    for one in view.trials:
        best = one.number == view.best
        cells = [_number(one.parameters.get(name)) for name in names]
        cells += [] if metric is None else [_number(one.value)]
        table.add_row(
            "*" if best else "",
            str(one.number),
            state_text(one.state),
            *cells,
            clause(one.message),
            style="bold" if best else None,
        )
    return Group(Text(_headline(view)), table)


def _headline(view: SweepView) -> str:
    head = f"{view.name}: {len(view.trials)} trials, {states_text(view.states)}"
    best = next((one for one in view.trials if one.number == view.best), None)
    if view.sweep.metric is None:
        return f"{head}. With sweep.metric in the job file, trials are compared."
    if best is None:
        return f"{head}. No trial has reported {view.sweep.metric} yet."
    return f"{head}. Best: {best.name}, {view.sweep.metric} {_number(best.value)}."


def states_text(states: Mapping[JobState, int]) -> str:
    """Return counts of states, such as `2 RUNNING, 1 FAILED`."""
    return ", ".join(f"{states[state]} {state}" for state in JobState if state in states)


def _number(value: float | str | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
