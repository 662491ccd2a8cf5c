"""The pages of what-if simulations of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.contract.views.simulations import (
    ENDED,
    AddJob,
    AddNodes,
    DropJob,
    JobOutcome,
    KillNode,
    Outcome,
    RemoveNodes,
    SetBudget,
    SetPolicy,
    SetPrice,
    SimulationRequest,
    SimulationStatus,
    SimulationView,
)
from service.console.html.fragments import Content, Fragment, Listing
from service.console.html.text import NONE, charge, duration, iso, listed, percent, plural, stamp, usd

_TONES = {
    SimulationStatus.QUEUED: "wait",
    SimulationStatus.RUNNING: "move",
    SimulationStatus.DONE: "done",
    SimulationStatus.FAILED: "bad",
    SimulationStatus.CANCELLED: "off",
}


@dataclass(frozen=True, slots=True)
class SimulationRow:
    """A row of the list of simulations."""

    id: str
    question: str
    status: str
    tone: str
    progress: float
    message: str
    at: str
    at_iso: str
    ended: bool


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """The outcome of the cluster under one policy."""

    label: str
    mean: str
    wait: str
    last: str
    cost: str
    used: str
    changes: str
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job, with its end and cost in each outcome."""

    id: str
    name: str
    outcomes: tuple[str, ...]


def list_fragments(views: Sequence[SimulationView]) -> list[Content]:
    """Return the fragments of the list of simulations, in the order of the views."""
    rows = tuple(Fragment(f"simulation-{one.id}", "simulation_row", _row(one)) for one in views)
    return [Fragment("no-simulations", "no_simulations", not rows), Listing("simulations", rows)]


def simulation_fragments(view: SimulationView) -> list[Content]:
    """Return the fragments of the page of one simulation."""
    result = view.result
    outcomes = result.outcomes if result is not None else []
    rows = tuple(
        JobRow(one.job_id, one.name, tuple(_job(each) for each in one.outcomes))
        for one in (result.jobs if result is not None else [])
    )
    warnings = tuple(result.warnings) if result is not None else ()
    return [
        Fragment("simulation-head", "simulation_head", _row(view)),
        Fragment("outcomes", "outcomes", (tuple(_outcome(one) for one in outcomes), warnings)),
        Fragment("outcome-jobs", "outcome_jobs", (tuple(one.label for one in outcomes), rows)),
    ]


def _row(view: SimulationView) -> SimulationRow:
    return SimulationRow(
        id=view.id,
        question=question(view.request),
        status=view.status,
        tone=_TONES[view.status],
        progress=view.progress,
        message=view.message,
        at=stamp(view.created_at),
        at_iso=iso(view.created_at),
        ended=view.status in ENDED,
    )


def question(request: SimulationRequest) -> str:
    """Return the changes in words, such as `What if the cluster gained 1 a100 node and gpu-3 failed?`"""
    changes = [_words(one) for one in request.changes]
    policies = [f"the policy was {one.policy}" for one in request.policies]
    return f"What if {listed([*changes, *policies])}?" if changes or policies else "What if nothing changed?"


def _words(
    change: AddNodes | RemoveNodes | KillNode | SetBudget | SetPolicy | AddJob | DropJob | SetPrice,
) -> str:
    match change:
        case AddNodes():
            return f"the cluster gained {plural(change.nodes, f'{change.device_kind} node')}"
        case RemoveNodes():
            return f"the cluster lost {plural(change.nodes, f'{change.device_kind} node')}"
        case KillNode():
            return f"{change.node} failed"
        case SetBudget():
            return f"{usd(change.usd_per_h)} an hour was the budget"
        case SetPolicy():
            return f"the policy was {change.policy}"
        case AddJob():
            return f"{change.spec.name} was submitted"
        case DropJob():
            return f"{change.job} was removed"
        case SetPrice():
            return f"a {change.device_kind} slot cost {usd(change.usd_per_slot_h)} an hour"


def _outcome(one: Outcome) -> OutcomeRow:
    return OutcomeRow(
        label=one.label,
        mean=duration(one.avg_s),
        wait=duration(one.wait_s),
        last=duration(one.last_s),
        cost=charge(one.usd),
        used=percent(one.utilisation),
        changes=f"{one.changes_per_job:.1f}",
        differences=tuple(one.differences),
    )


def _job(one: JobOutcome | None) -> str:
    if one is None:
        return NONE
    if one.end_s is None:
        return "not within the horizon"
    return f"in {duration(one.end_s)}, {usd(one.usd)}" if one.usd else f"in {duration(one.end_s)}"
