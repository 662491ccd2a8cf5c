"""The page of jobs: each with its state and reason, its size over time, speed, end and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from headway.contract.values.text import brief
from headway.contract.views.jobs import JobProgress, JobView, Page
from service.console.html.badges import has_ended, tone_of_job
from service.console.html.fragments import Content, Fragment, Listing
from service.console.html.palette import tint_of
from service.console.html.text import NONE, between, charge, duration, iso, minute, percent, short, stamp, usd
from service.console.pictures.job_curves import held_periods
from service.usecases.ports.jobs import SizeChange

_WIDTH, _HEIGHT = 96.0, 18.0
"""Width and height of the chart of a job's sizes, in its own units."""


@dataclass(frozen=True, slots=True)
class JobTableRow:
    """A row of the table of jobs."""

    id: str
    name: str
    project: str
    owner: str
    """Name of its owner; empty if unknown."""
    hue: str
    state: str
    tone: str
    reason: str
    message: str
    size: str
    sizes_path: str
    """SVG path of the job's sizes over time; empty before its first allocation."""
    sizes_words: str
    share: float | None
    progress: str
    speed: str
    priority: int
    end: str
    end_note: str
    starts: str
    """Expected start of a job that waits; empty if it is not known."""
    starts_iso: str
    cost: str
    cost_note: str
    submitted: str
    submitted_iso: str


def jobs_fragments(
    page: Page[JobView],
    sizes: Mapping[str, Sequence[SizeChange]],
    now: datetime,
    colours: Mapping[str, int],
) -> list[Content]:
    """Return the fragments of one page of the listing. `sizes` are the allocations by job id."""
    rows = tuple(
        Fragment(
            f"job-{job.id}",
            "job_row",
            _row(job, sizes.get(job.id, ()), now, _tint(job, colours), brief(job.present or job.message)),
        )
        for job in page.items
    )
    return [Fragment("no-jobs", "no_jobs", not rows), Listing("rows", rows)]


def _row(job: JobView, sizes: Sequence[SizeChange], now: datetime, hue: str, message: str) -> JobTableRow:
    done = job.progress
    end, note = _end(job)
    return JobTableRow(
        id=job.id,
        name=job.name,
        project=job.project,
        owner=job.owner or "",
        hue=hue,
        state=job.state.lower(),
        tone=tone_of_job(job.state),
        reason=job.reason,
        message=message,
        size=size_text(job),
        sizes_path=sizes_path(sizes, job.spec.elastic.max, job.finished_at or minute(now)),
        sizes_words=", ".join(str(one.size) for one in sizes[-8:]),
        share=done.work_share,
        progress=_progress(done),
        speed=f"{short(done.samples_per_s)}/s" if done.samples_per_s is not None and job.size else NONE,
        priority=job.spec.priority,
        end=end,
        end_note=note,
        starts=stamp(job.starts_at) if job.starts_at is not None else "",
        starts_iso=iso(job.starts_at) if job.starts_at is not None else "",
        cost=charge(job.cost.usd) if job.cost is not None else NONE,
        cost_note=_cost_note(job),
        submitted=stamp(job.submitted_at),
        submitted_iso=iso(job.submitted_at),
    )


def _tint(job: JobView, colours: Mapping[str, int]) -> str:
    return tint_of(colours, job.id, held=job.started_at is not None)


def size_text(job: JobView) -> str:
    """Return the present and the possible slots, such as `4 of 2–8`."""
    low, high = job.spec.elastic.min, job.spec.elastic.max
    may = str(low) if low == high else f"{low}–{high}"
    return may if has_ended(job) else f"{job.size} of {may}"


def _progress(done: JobProgress) -> str:
    if done.work_share is not None:
        return percent(done.work_share)
    return f"{short(done.samples)} {done.unit}" if done.samples else NONE


def end_of(job: JobView) -> tuple[float, float | None] | None:
    """Return the seconds to the job's end at its present speed, with their 90th percentile.

    Return None if the end is unknown. The spread is that of the latest stored forecast, which is about as
    accurate.
    """
    done = job.progress
    left_s = done.time_left_s
    if has_ended(job) or job.size == 0 or left_s is None:
        return None
    known = [one.time_p90_s / one.time_s for one in done.forecasts if one.time_s > 0]
    return left_s, left_s * max(1.0, known[-1]) if known else None


def _end(job: JobView) -> tuple[str, str]:
    if has_ended(job) and job.finished_at is not None:
        begun = job.started_at or job.submitted_at
        return "ended", f"took {duration((job.finished_at - begun).total_seconds())}"
    found = end_of(job)
    if found is None:
        return NONE, ""
    return f"in {duration(found[0])}", between(*found).partition(", ")[2]


def _cost_note(job: JobView) -> str:
    if job.cost is None:
        return ""
    if job.cost.expected_usd and not has_ended(job):
        return f"of {usd(job.cost.expected_usd)}"
    return "and unpriced slots" if job.cost.unpriced and job.cost.usd else ""


def sizes_path(sizes: Sequence[SizeChange], most: int, until: datetime) -> str:
    """Return an SVG path of the sizes from the first allocation to `until`.

    The full height is `most` slots.
    """
    if not sizes:
        return ""
    begin = sizes[0].granted_at
    span_s = max((until - begin).total_seconds(), 60.0)
    top = max(most, *(one.size for one in sizes))

    def x(at: datetime) -> float:
        return min(_WIDTH, max(0.0, _WIDTH * (at - begin).total_seconds() / span_s))

    parts = [f"M0 {_HEIGHT:g}"]
    for one, ends, stops in held_periods(sizes):
        y = _HEIGHT - (_HEIGHT - 1) * one.size / top
        parts.append(f"H{x(one.granted_at):.1f} V{y:.1f} H{x(ends or until):.1f}")
        if stops:
            parts.append(f"V{_HEIGHT:g}")
    return " ".join([*parts, f"V{_HEIGHT:g} Z"])
