"""Chains of jobs as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from headway.cli.render.jobs import clause, state_text
from headway.contract.spec_after import AfterEnd
from headway.contract.views.jobs import GraphEdge, GraphJob, GraphView

_Below = Mapping[str, Sequence[GraphEdge]]


def tree(graph: GraphView) -> RenderableType:
    """Return the tree of `headway graph`: below each job, those that start after it.

    A job with several predecessors stands below each of them, with its own successors only the first time.
    """
    jobs = {one.id: one for one in graph.jobs}
    below: dict[str, list[GraphEdge]] = {}
    for edge in graph.edges:
        below.setdefault(edge.after_id, []).append(edge)
    later = {edge.job_id for edge in graph.edges}
    shown: set[str] = set()
    lines: list[Text] = []
    for one in graph.jobs:
        if one.id not in later:
            lines += _lines(one, None, jobs, below, shown, "", "")
    return Group(*lines)


def _lines(
    job: GraphJob,
    edge: GraphEdge | None,
    jobs: Mapping[str, GraphJob],
    below: _Below,
    shown: set[str],
    first: str,
    rest: str,
) -> Iterator[Text]:
    again = job.id in shown
    shown.add(job.id)
    yield _line(job, edge, first, again=again and bool(below.get(job.id)))
    edges = [] if again else [one for one in below.get(job.id, ()) if one.job_id in jobs]
    for number, one in enumerate(edges):
        last = number == len(edges) - 1
        branch, trunk = ("`- ", "   ") if last else ("|- ", "|  ")
        yield from _lines(jobs[one.job_id], one, jobs, below, shown, rest + branch, rest + trunk)


def _line(job: GraphJob, edge: GraphEdge | None, first: str, *, again: bool) -> Text:
    line = Text(first, style="dim")
    line.append(job.name, style="not dim bold")
    if edge is not None and edge.on is not AfterEnd.SUCCEEDED:
        line.append(f" (on: {edge.on})", style="dim")
    line.append("  ")
    line.append("deleted" if job.state is None else state_text(job.state))
    if again:
        line.append("  see above", style="dim")
    elif job.present:
        line.append(f"  {clause(job.present)}", style="not dim")
    return line
