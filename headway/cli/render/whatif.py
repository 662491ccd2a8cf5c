"""Tables of what-if results. All functions take values and return renderables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from headway.cli.render.jobs import columns, usd
from headway.contract.values.quantities import duration
from headway.contract.views.simulations import JobOutcome, Outcome, SimulationResult

_MOST_JOBS = 30
"""Maximum number of jobs in the table. `-o json` has all of them."""


def result_page(result: SimulationResult) -> RenderableType:
    """Return the differences in words, the cases side by side, and the jobs."""
    parts: list[RenderableType] = []
    for one in result.outcomes[1:]:
        parts += [Text(one.label, style="bold"), *(Text(f"  {line}") for line in one.differences)]
    parts += [Text(), _cases(result), Text(), *_jobs(result)]
    parts += [Text(f"note: {line}", style="dim") for line in result.warnings]
    when = f"From the cluster at {result.at.astimezone():%H:%M:%S}, {duration(result.horizon_s)} ahead"
    runs = "1 run" if result.seeds == 1 else f"{result.seeds} runs"
    parts.append(Text(f"{when}, in {runs}.", style="dim"))
    return Group(*parts)


def _cases(result: SimulationResult) -> RenderableType:
    times = (">AVERAGE", ">MEDIAN", ">P90", ">ALL DONE", ">WAIT")
    table = columns("CASE", ">JOBS", *times, ">COST", ">SLOT-H", ">BUSY", ">CHANGES", ">UNFINISHED")
    for index, one in enumerate(result.outcomes):
        table.add_row(one.label if not index else f"changed, {one.label}", *_figures(one))
    return table


def _figures(one: Outcome) -> Iterator[str]:
    yield str(one.jobs)
    for value in (one.avg_s, one.median_s, one.p90_s, one.last_s, one.wait_s):
        yield duration(value)
    yield usd(one.usd)
    yield f"{one.slot_h:,.1f}"
    yield f"{one.utilisation:.0%}"
    yield f"{one.changes_per_job:.1f}"
    yield f"{one.unfinished:.3g}"


def _jobs(result: SimulationResult) -> Iterator[RenderableType]:
    table = columns("JOB", *(f">{one.label.upper()}" for one in result.outcomes), ">COST", ">COST THEN")
    for job in result.jobs[:_MOST_JOBS]:
        before, *then = job.outcomes
        last = then[-1] if then else None
        table.add_row(job.name, _end(before), *(_end(one) for one in then), _cost(before), _cost(last))
    yield table
    if len(result.jobs) > _MOST_JOBS:
        yield Text(f"and {len(result.jobs) - _MOST_JOBS} more jobs: -o json has them all", style="dim")


def _end(one: JobOutcome | None) -> str:
    """Return the median end and the range of the runs, such as `1h20m (1h05m-1h50m)`."""
    if one is None:
        return "-"
    if one.end_s is None:
        return "not ended"
    if one.end_low_s is None or one.end_low_s == one.end_high_s:
        return duration(one.end_s)
    high = "not ended" if one.end_high_s is None else duration(one.end_high_s)
    return f"{duration(one.end_s)} ({duration(one.end_low_s)}-{high})"


def _cost(one: JobOutcome | None) -> str:
    return "-" if one is None else usd(one.usd)
