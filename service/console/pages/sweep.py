"""The page of one sweep: its trials as lines, the best value so far, and the table of trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headway.contract.spec_parameters import ParameterValue
from headway.contract.values.text import brief
from headway.contract.views.jobs import TERMINAL_STATES, JobState
from headway.contract.views.sweeps import SweepView, TrialView
from service.console.html.badges import tone_of_job
from service.console.html.fragments import Content, Fragment, Listing
from service.console.html.text import NONE, iso, listed, plural, stamp
from service.console.pages.sweeps import ended_trials, state_chips
from service.console.pictures.job_curves import Chart
from service.console.pictures.parallel import known_values, parallel_picture
from service.console.pictures.scales import is_wide, value_text

_LONGEST: Final = 48
"""Letters of a value in the table. Longer ones end in an ellipsis; the job's page has them in full."""
_PARAMETER: Final = "parameter."
_NAMED: Final = 6
"""Parameters of the best trial that the summary names."""
_TABLE_ROWS: Final = 50


@dataclass(frozen=True, slots=True)
class SweepHead:
    """The head of the page."""

    id: str
    name: str
    project: str
    owner: str
    submitted: str
    submitted_iso: str
    summary: str
    best_id: str
    best_name: str
    best_words: str
    """Value and parameters of the best trial; empty without one."""
    states: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SweepActions:
    """The actions that the viewer may perform on the trials now."""

    id: str
    name: str
    verbs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table. `order` sorts by it, `sorted` is the value of `aria-sort`."""

    name: str
    order: str
    sorted: str
    is_number: bool


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A row of the table of trials."""

    job_id: str
    name: str
    state: str
    tone: str
    values: tuple[tuple[str, bool], ...]
    """Text of each parameter, and whether it is a number."""
    value: str
    """The best value; empty if the sweep has no metric."""
    is_best: bool
    reason: str
    message: str


def sweep_fragments(view: SweepView, *, may_control: bool, order: str) -> list[Content]:
    """Return the fragments of the page. `order` sorts the table, as `columns_of` names it; with `-`, the other way."""
    rows = tuple(
        Fragment(f"trial-{one.number}", "sweep_parts.html/trial_row", _row(view, one))
        for one in ordered(view, order)
    )
    best = best_chart(view)
    return [
        Fragment("sweep-head", "sweep_parts.html/sweep_head", _head(view)),
        Fragment("sweep-actions", "sweep_parts.html/sweep_actions", _actions(view, may_control=may_control)),
        *parallel_picture(view).contents(),
        *best.fragments(),
        Fragment("sweep-columns", "sweep_parts.html/columns", columns_of(view, order)),
        Listing("trials", rows),
    ]


def _head(view: SweepView) -> SweepHead:
    trials = plural(len(view.trials), "trial")
    best = next((one for one in view.trials if one.number == view.best), None)
    metric = view.sweep.metric
    if metric is None:
        note = "With sweep.metric in the job file, trials are compared."
    elif best is None:
        note = f"No trial has reported {metric} yet."
    else:
        note = ""
    words = ""
    if best is not None and best.value is not None:
        given = [f"{name} {_cut(value_text(value))}" for name, value in best.parameters.items()]
        if len(given) > _NAMED:
            given[_NAMED:] = [plural(len(given) - _NAMED, "other parameter")]
        words = f"{metric} {value_text(best.value)} with {listed(given)}"
    return SweepHead(
        id=view.id,
        name=view.name,
        project=view.project,
        owner=view.owner,
        submitted=stamp(view.submitted_at),
        submitted_iso=iso(view.submitted_at),
        summary=f"{trials}, {ended_trials(view)} ended. {note}".strip(),
        best_id=best.job_id if best is not None else "",
        best_name=best.name if best is not None else "",
        best_words=words,
        states=state_chips(view),
    )


def _actions(view: SweepView, *, may_control: bool) -> SweepActions:
    live = [one.state for one in view.trials if one.state not in TERMINAL_STATES]
    steerable = [state for state in live if state is not JobState.CANCELLING]
    offered = {
        "prioritize": bool(steerable),
        "pause": any(state is not JobState.PAUSED for state in steerable),
        "resume": JobState.PAUSED in steerable,
        "cancel": bool(steerable),
    }
    verbs = tuple(verb for verb, possible in offered.items() if possible and may_control)
    return SweepActions(view.id, view.name, verbs)


def columns_of(view: SweepView, order: str) -> tuple[Column, ...]:
    """Return the columns of the table, with the order that a click on each asks for."""
    down = order.startswith("-")
    present = order.removeprefix("-") or "trial"

    def column(name: str, by: str, *, is_number: bool = False) -> Column:
        if by != present:
            return Column(name, by, "none", is_number)
        return Column(name, by if down else f"-{by}", "descending" if down else "ascending", is_number)

    metric = view.sweep.metric
    return (
        column("Trial", "trial"),
        column("State", "state"),
        *([] if metric is None else [column(f"best {metric}", "value", is_number=True)]),
        *(
            column(name, f"{_PARAMETER}{name}", is_number=_is_numeric(view, name))
            for name in view.sweep.parameters
        ),
    )


def ordered(view: SweepView, order: str) -> list[TrialView]:
    """Return the trials in an order: `trial`, `state`, `value` (the best first) or `parameter.NAME`; by number otherwise.

    Trials without the value come last, also with `-`. Equal ones are in the order of their numbers.
    """
    down, by = order.startswith("-"), order.removeprefix("-")
    states = list(JobState)
    sign = 1 if view.sweep.goal == "minimise" else -1
    keys: dict[str, Callable[[TrialView], Any]] = {
        "state": lambda one: states.index(one.state),
        "value": lambda one: None if one.value is None else sign * one.value,
    }
    if by.startswith(_PARAMETER):
        name = by.removeprefix(_PARAMETER)
        keys[by] = lambda one: _comparable(one.parameters.get(name))
    found = [(keys[by](one) if by in keys else one.number, one) for one in view.trials]
    known = sorted((one for one in found if one[0] is not None), key=lambda one: one[0], reverse=down)
    return [*(one for _, one in known), *(one for key, one in found if key is None)]


def _comparable(value: ParameterValue | None) -> tuple[bool, float, str] | None:
    if value is None:
        return None
    return (True, 0.0, value) if isinstance(value, str) else (False, value, "")


def _is_numeric(view: SweepView, name: str) -> bool:
    space = view.sweep.parameters[name]
    return not isinstance(space, tuple) or not any(isinstance(one, str) for one in space)


def _row(view: SweepView, one: TrialView) -> TrialRow:
    return TrialRow(
        job_id=one.job_id,
        name=one.name,
        state=one.state.lower(),
        tone=tone_of_job(one.state),
        values=tuple(
            (
                _cut(value_text(one.parameters[name])) if name in one.parameters else NONE,
                _is_numeric(view, name),
            )
            for name in view.sweep.parameters
        ),
        value="" if view.sweep.metric is None else NONE if one.value is None else value_text(one.value),
        is_best=one.number == view.best,
        reason=one.reason,
        message=brief(one.message),
    )


def best_chart(view: SweepView) -> Chart:
    """Return the chart of the best value over the trials that have ended, in the order of their ends."""
    metric, values = view.sweep.metric or "", known_values(view)
    ended = sorted(
        (one for one in view.trials if one.state in TERMINAL_STATES),
        key=lambda one: (one.finished_at or view.submitted_at, one.number),
    )
    better = min if view.sweep.goal == "minimise" else max
    so_far: list[float | None] = []
    rows: list[tuple[str, ...]] = []
    present: float | None = None
    for at, one in enumerate(ended, start=1):
        value = values.get(one.number)
        if value is not None and (present is None or better(value, present) != present):
            present = value
            rows.append((str(at), one.name, value_text(value)))
        so_far.append(present)
    data: dict[str, Any] = {"x": [], "value": [], "best": [], "metric": metric, "log": False}
    if present is not None:
        reported = [values.get(one.number) for one in ended]
        known = [one for one in reported if one is not None]
        numbers = list(range(1, len(ended) + 1))
        data |= {"x": numbers, "value": reported, "best": so_far, "log": is_wide(known)}
    return Chart(
        "best",
        "best",
        data,
        _best_words(view, len(ended), present),
        ("trials ended", "trial", f"best {metric}"),
        tuple(rows[-_TABLE_ROWS:]),
    )


def _best_words(view: SweepView, ended: int, value: float | None) -> str:
    metric = view.sweep.metric
    if metric is None:
        return ""
    if value is None:
        return f"No trial with a value of {metric} has ended yet."
    words = f"After {plural(ended, 'ended trial')} the best {metric} is {value_text(value)}."
    best = next((one for one in view.trials if one.number == view.best), None)
    if (
        best is not None
        and best.value is not None
        and best.state not in TERMINAL_STATES
        and best.value != value
    ):
        words += f" {best.name}, which has not ended, has {value_text(best.value)}."
    return words


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
