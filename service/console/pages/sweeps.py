"""The page of sweeps, newest first: their trials by state, and the metric that compares them."""

from __future__ import annotations

from dataclasses import dataclass

from headway.contract.views.jobs import TERMINAL_STATES, JobState
from headway.contract.views.sweeps import SweepSummary
from service.api.http.context import ApiContext
from service.console.html.badges import tone_of_job
from service.console.html.fragments import Content, Fragment, Listing
from service.console.html.text import NONE, iso, stamp
from service.console.pages.page import Key, LivePage, Memory, pager

_PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A row of the table of sweeps. `share` is that of the trials that have ended."""

    id: str
    name: str
    project: str
    owner: str
    submitted: str
    submitted_iso: str
    states: tuple[tuple[str, str], ...]
    share: float
    ended: str
    search: str
    metric: str


async def read(context: ApiContext, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG001  # all readers have the same arguments
    """Return the fragments of one page of the listing."""
    seen = frozenset({key.project}) if key.project else key.sight.projects
    async with context.transactions.begin() as tx:
        page = await tx.sweep_queries.list_sweeps(seen, limit=_PER_PAGE, cursor=key.cursor or None)
    rows = tuple(Fragment(f"sweep-{one.id}", "sweep_parts.html/sweep_row", _row(one)) for one in page.items)
    return [
        Fragment("no-sweeps", "sweep_parts.html/no_sweeps", not rows),
        Listing("rows", rows),
        pager(key, page.next_cursor),
    ]


def _row(one: SweepSummary) -> SweepRow:
    trials = sum(one.states.values())
    ended = ended_trials(one)
    return SweepRow(
        id=one.id,
        name=one.name,
        project=one.project,
        owner=one.owner,
        submitted=stamp(one.submitted_at),
        submitted_iso=iso(one.submitted_at),
        states=state_chips(one),
        share=ended / max(1, trials),
        ended=f"{ended} of {trials}",
        search=one.sweep.search,
        metric=NONE if one.sweep.metric is None else f"{one.sweep.metric} ({one.sweep.goal})",
    )


def state_chips(one: SweepSummary) -> tuple[tuple[str, str], ...]:
    """Return the style class and the words of each state of the trials, such as `2 running`."""
    return tuple(
        (tone_of_job(state), f"{one.states[state]} {state.lower()}")
        for state in JobState
        if state in one.states
    )


PAGE = LivePage(name="sweeps", label="Sweeps", read=read, template="sweeps.html")


def ended_trials(one: SweepSummary) -> int:
    """Return the number of trials that have ended."""
    return sum(count for state, count in one.states.items() if state in TERMINAL_STATES)
