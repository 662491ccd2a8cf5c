"""The page of jobs: each with its state, why, its size over time, speed, end and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from headway.contract.jobs import JobProgress, JobView, Page
from service.console.marks import has_ended, hue_of, tone_of_job
from service.console.pieces import Content, Listing, Piece
from service.console.text import NONE, between, duration, iso, minute, percent, short, stamp, usd
from service.usecases.records import SizeChange

_WIDTH, _HEIGHT = 96.0, 18.0
"""Of the picture of a job's sizes, in its own units."""


@dataclass(frozen=True, slots=True)
class Row:
    """A job in the table."""

    id: str
    name: str
    project: str
    hue: int
    state: str
    tone: str
    reason: str
    message: str
    size: str
    sizes_path: str
    """An SVG path of its sizes over time; empty before it had any."""
    sizes_words: str
    share: float | None
    progress: str
    speed: str
    end: str
    end_note: str
    cost: str
    cost_note: str
    submitted: str
    submitted_iso: str


@dataclass(frozen=True, slots=True)
class JobsPage:
    """A page of the listing."""

    rows: tuple[Row, ...]

    def contents(self) -> list[Content]:
        """Its pieces."""
        rows = tuple(Piece(f"job-{row.id}", "job_row", row) for row in self.rows)
        return [Piece("no-jobs", "no_jobs", not rows), Listing("rows", rows)]


def jobs_page(page: Page[JobView], sizes: Mapping[str, Sequence[SizeChange]], now: datetime) -> JobsPage:
    """The rows; `sizes` are what each has run on."""
    return JobsPage(tuple(_row(job, sizes.get(job.id, ()), now) for job in page.items))


def _row(job: JobView, sizes: Sequence[SizeChange], now: datetime) -> Row:
    done = job.progress
    end, note = _end(job)
    return Row(
        id=job.id,
        name=job.name,
        project=job.project,
        hue=hue_of(job.id),
        state=job.state.lower(),
        tone=tone_of_job(job.state),
        reason=job.reason,
        message=job.message,
        size=size_text(job),
        sizes_path=sizes_path(sizes, job.spec.elastic.max, job.finished_at or minute(now)),
        sizes_words=", ".join(str(one.size) for one in sizes[-8:]),
        share=done.samples / done.total_samples if done.total_samples else None,
        progress=_progress(done),
        speed=f"{short(done.samples_per_s)}/s" if done.samples_per_s and not has_ended(job) else NONE,
        end=end,
        end_note=note,
        cost=usd(job.cost.usd) if job.cost is not None else NONE,
        cost_note=_cost_note(job),
        submitted=stamp(job.submitted_at),
        submitted_iso=iso(job.submitted_at),
    )


def size_text(job: JobView) -> str:
    """`4 of 2–8`: slots that it has, of those that it may have."""
    low, high = job.spec.elastic.min, job.spec.elastic.max
    may = str(low) if low == high else f"{low}–{high}"
    return may if has_ended(job) else f"{job.size} of {may}"


def _progress(done: JobProgress) -> str:
    if done.total_samples:
        return percent(min(1.0, done.samples / done.total_samples))
    return f"{short(done.samples)} samples" if done.samples else NONE


def end_of(job: JobView) -> tuple[float, float | None] | None:
    """Seconds to its end at the speed of now, and with 90 % at most; None where nobody knows.

    How much longer it may take is what the latest forecast that was kept of it said, which is about as sure.
    """
    done = job.progress
    if has_ended(job) or job.size == 0 or not done.total_samples or not done.samples_per_s:
        return None
    left_s = max(0, done.total_samples - done.samples) / done.samples_per_s
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
    if job.cost.expected_usd is not None and not has_ended(job):
        return f"of {usd(job.cost.expected_usd)}"
    return "and unpriced slots" if job.cost.unpriced else ""


def sizes_path(sizes: Sequence[SizeChange], most: int, until: datetime) -> str:
    """Steps over time, from the first allocation to `until`: the height of one is its slots of `most`."""
    if not sizes:
        return ""
    begin = sizes[0].granted_at
    span_s = max((until - begin).total_seconds(), 60.0)
    top = max(most, *(one.size for one in sizes))

    def x(at: datetime) -> float:
        return min(_WIDTH, max(0.0, _WIDTH * (at - begin).total_seconds() / span_s))

    parts = [f"M0 {_HEIGHT:g}"]
    for number, one in enumerate(sizes):
        following = sizes[number + 1].granted_at if number + 1 < len(sizes) else None
        ends = one.ended_at if following is None else min(one.ended_at or following, following)
        y = _HEIGHT - (_HEIGHT - 1) * one.size / top
        parts.append(f"H{x(one.granted_at):.1f} V{y:.1f} H{x(ends or until):.1f}")
        if ends is not None and (following is None or (following - ends).total_seconds() > 1):
            parts.append(f"V{_HEIGHT:g}")
    return " ".join([*parts, f"V{_HEIGHT:g} Z"])
