"""Tables and lines of jobs and events.

All functions take values and return renderables; the time is the argument `now`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.contract.run_facts import ProgressSource
from headway.contract.values.dollars import dollars
from headway.contract.values.quantities import duration
from headway.contract.values.text import brief
from headway.contract.views.forecasts import KeptForecast, SearchView, TargetProgress
from headway.contract.views.jobs import TERMINAL_STATES, EventView, JobProgress, JobState, JobView

_MOST_OF_CLAUSE: Final = 80
_JOB_STYLES = {
    JobState.PENDING: "yellow",
    JobState.STARTING: "cyan",
    JobState.RUNNING: "green",
    JobState.RESIZING: "cyan",
    JobState.RECOVERING: "magenta",
    JobState.PAUSED: "yellow",
    JobState.CANCELLING: "yellow",
    JobState.SUCCEEDED: "bold green",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "dim",
}


def jobs_table(
    jobs: Sequence[JobView], now: datetime, *, one_line: bool = False, owners: bool = False
) -> Table:
    """Return the table of `headway ps`, with the owners of jobs if asked for.

    With `one_line`, reasons that do not fit are cut, so that no job leaves the screen.
    """
    about = ["NAME", *(["OWNER"] if owners else [])]
    table = columns(*about, "STATE", ">SIZE", "PROGRESS", ">SAMPLES/S", ">AGE", fold=["WHY"])
    if one_line:
        table.columns[-1].no_wrap, table.columns[-1].overflow = True, "ellipsis"
    for job in jobs:
        table.add_row(
            job.name,
            *((Text(job.owner or "-"),) if owners else ()),
            state_text(job.state),
            size(job),
            progress(job.progress) if job.starts_at is None else _start(job.starts_at, now),
            rate(job.progress.samples_per_s if job.size else None),
            duration((now - job.submitted_at).total_seconds()),
            Text(clause(job.present or job.message)),
        )
    return table


def job_page(job: JobView, events: Sequence[EventView], now: datetime) -> RenderableType:
    """Return the page of `headway describe`."""
    spec, done = job.spec, job.progress
    pinned = f", fixed by `headway resize {job.name} {job.pinned_size}`" if job.pinned_size else ""
    rows: list[tuple[str, RenderableType]] = [
        ("state", state_text(job.state) + Text(f"  {job.reason}")),
        ("why", Text(job.present or job.message)),
        *(() if job.starts_at is None else (("starts", _start(job.starts_at, now).removeprefix("starts ")),)),
        *(("warning", Text(one)) for one in done.warnings),
        ("id", job.id),
        ("project", f"{job.project}, priority {spec.priority}"),
        ("owner", Text(job.owner or "-")),
        ("command", Text(spec.run)),
        *((("parameters", _parameters(job)),) if spec.parameters else ()),
        ("folder", Text(f"{spec.workdir or '-'}{f'  ({spec.bundle[:19]}…)' if spec.bundle else ''}")),
        ("size", f"{size(job)} slots, {_sizes(job)}resize {spec.elastic.resize}{pinned}"),
        *(() if spec.elastic.min_depth is None else (("gradients", _depths(spec.elastic.min_depth)),)),
        *((("redundancy", "the next rank has a copy of each part"),) if spec.elastic.redundant else ()),
        ("slots", holdings(job)),
        ("progress", progress(done)),
        ("speed", _speed(job)),
        ("batch", _batch(done)),
        ("metrics", metrics(done) or "none reported"),
        *(() if done.goal_target is None else (("target", target_text(done.goal_target, done.unit)),)),
        ("checkpoint", _checkpoint(done)),
        *((("after", _after(job)),) if spec.after else ()),
        *(() if done.started_from is None else (("started from", done.started_from.text),)),
        ("resumes", _resumes(job)),
        ("epochs", _epochs(done)),
        ("failures", _failures(job)),
        ("changes", _changes(done)),
        *(() if done.search is None else (("search", Text(search_text(done.search))),)),
        *(("forecast", Text(kept_text(one))) for one in done.forecasts),
        ("cost", cost_text(job)),
        ("generation", _generation(job)),
        ("times", _times(job, now)),
    ]
    page: list[RenderableType] = [Text(job.name, style="bold"), facts_grid(rows)]
    if events:
        page += [Text("\nlast events", style="dim"), *(event_line(event, short=True) for event in events)]
    return Group(*page)


def _parameters(job: JobView) -> Text:
    """Return the parameters of a job as text, such as `lr 0.1  width 64`."""
    return Text("  ".join(f"{name} {value}" for name, value in job.spec.parameters.items()))


def _sizes(job: JobView) -> str:
    """Return the restriction on the sizes between the least and the most slots; empty if there is no choice."""
    elastic = job.spec.elastic
    return "" if elastic.min == elastic.max else f"{elastic.sizes} sizes, "


def _after(job: JobView) -> str:
    return ", ".join(f"{one.job} {one.on}" for one in job.spec.after)


def event_line(event: EventView, *, short: bool = False) -> Text:
    """Return one line of `headway events`. Further lines of the message follow, indented, unless `short`."""
    line = Text()
    line.append(f"{event.at.astimezone():%H:%M:%S} ", style="dim")
    line.append(f"{event.kind:<18} ")
    if event.state is not None:
        line.append(f"{event.state:<10} ", style=_JOB_STYLES[event.state])
    else:
        line.append(" " * 11)
    line.append(f"gen {event.generation:<3} ", style="dim")
    line.append(brief(event.message) if short else event.message.replace("\n", "\n" + " " * 9))
    return line


def holdings(job: JobView) -> str:
    """Return the slots that a job holds, such as `host-1: 0-3, host-2: 0`."""
    return ", ".join(f"{node}: {ranges(slots)}" for node, slots in sorted(job.allocation.items())) or "none"


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, such as `0-2,5` for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def clause(message: str) -> str:
    """Return the first clause of a message, and the last line of a longer one. `headway describe` has the whole."""
    first, *others = message.strip().split("\n")
    last = others[-1].strip() if others else ""
    head = _cut(first.partition("; ")[0].removesuffix(":"))
    return f"{head} … {_cut(last)}" if last not in first else head


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_OF_CLAUSE else text[: _MOST_OF_CLAUSE - 1] + "…"


def state_text(state: JobState) -> Text:
    """Return a job state in its colour."""
    return Text(state, style=_JOB_STYLES[state])


def size(job: JobView) -> str:
    """Return the size as `now/min-max`. A trailing `=` marks a size that `headway resize` fixes."""
    low, high = job.spec.elastic.min, job.spec.elastic.max
    bounds = f"{low}-{high}" if low != high else f"{low}"
    return f"{job.size}/{bounds}{'=' if job.pinned_size is not None else ''}"


def progress(done: JobProgress) -> str:
    """Return the progress as `62% 12,400/20,000`, or only the samples if their total is unknown.

    The position in steps or epochs replaces the samples where the job has one: `74% step 740 of 1,000`.
    """
    if done.work_share is not None:
        made = done.position_text or f"{done.work_done:,.0f}/{done.work_total or 0:,.0f}"
        return f"{int(100 * done.work_share)}% {made}"
    return f"{done.samples:,} {done.unit}" if done.samples else "-"


def _start(at: datetime, now: datetime) -> str:
    """Return the end of the range in which a waiting job is expected to start, on the clock of this machine."""
    local = at.astimezone()
    day = "" if local.date() == now.astimezone().date() else f"{local:%Y-%m-%d} "
    return f"starts by ~{day}{local:%H:%M}"


def rate(samples_per_s: float | None) -> str:
    """Return samples per second with at least three digits."""
    if samples_per_s is None:
        return "-"
    return f"{samples_per_s:,.0f}" if samples_per_s >= 100 else f"{samples_per_s:.3g}"


def eta(done: JobProgress) -> str:
    """Return the time to the end of the job at its present speed."""
    if done.time_left_s is None:
        return "end not known yet"
    return f"about {duration(done.time_left_s)} to go"


def metrics(done: JobProgress) -> str:
    """Return metrics as text, such as `accuracy 0.97  loss 0.11`."""
    return "  ".join(f"{name} {value:.4g}" for name, value in sorted(done.metrics.items()))


def usd(amount: float | None) -> str:
    """Return dollars, or a dash for an unknown amount."""
    return "-" if amount is None else dollars(amount)


def cost_text(job: JobView) -> str:
    """Return the cost of a job so far, with its split, the expected total and the rest of its limit."""
    cost = job.cost
    if cost is None:
        return "nothing"
    text = f"{usd(cost.usd)} {'in all' if job.state in TERMINAL_STATES else 'so far'}"
    waste = [(cost.resize_usd, "for changes"), (cost.lost_usd, "lost")]
    parts = [f"{usd(amount)} {what}" for amount, what in waste if amount > 0]
    text += f" ({', '.join(parts)})" if parts else ""
    if cost.expected_usd is not None and job.state not in TERMINAL_STATES:
        text += f", {usd(cost.expected_usd)} expected in all"
    limit = job.spec.goal.max_cost_usd
    if cost.left_usd == 0 and limit is not None:
        text += f"; nothing is left of its {usd(limit)}"
    elif cost.left_usd is not None:
        text += f"; {usd(cost.left_usd)} left, then {job.spec.goal.on_budget}"
    return text + ("; slots without a price are not counted" if cost.unpriced else "")


def search_text(found: SearchView) -> str:
    """Return the state of the search for a job's configuration, and its cost so far."""
    batch = "" if found.global_batch is None else f", batch {found.global_batch:,}"
    there = f" on {found.place}{batch}" if found.place else ""
    text = f"{found.mode}, {found.phase}{there}: {found.reason}"
    if not found.visited:
        return text
    share = "" if found.overhead_share is None else f", {found.overhead_share:.1%} of the run"
    text += f"; {found.visited} of {found.visits} configurations seen in {found.time_s:.1f} s, {max(found.overhead_s, 0.0):.1f} s lost"
    return f"{text}{share} (at most {found.bound:.0%})"


def target_text(target: TargetProgress, unit: str = "samples") -> str:
    """Return the progress of a job to its target, and the work at which it is expected to reach it."""
    sign = {True: " <=", False: " >=", None: ""}[target.falls]
    text = f"{target.metric}{sign} {target.value:.4g}"
    if target.present is None:
        return f"{text}; {len(target.recent)} of 3 values reported"
    text += f", now {target.present:.4g}"
    if target.reached_samples is not None:
        return f"{text}; reached at {target.reached_samples:,} {unit}"
    if target.expected_work is None or target.expected_work_p90 is None:
        return f"{text}; when it will be reached is unknown"
    return f"{text}; expected at {target.expected_work:,.0f} {unit} (P90 {target.expected_work_p90:,.0f})"


def kept_text(kept: KeptForecast) -> str:
    """Return a stored forecast, and the actual time and cost once they are known."""
    when = "at the submit" if not kept.share else f"after {kept.share:.0%} of the work"
    cost = f", {usd(kept.cost_usd)}" if kept.cost_usd else ""
    text = f"{when}: {duration(kept.time_s)} (P90 {duration(kept.time_p90_s)}){cost} on {kept.slots} {kept.device_kind}"
    if kept.took_s is None:
        return text
    was = f", {usd(kept.cost_was_usd)}" if kept.cost_usd and kept.cost_was_usd is not None else ""
    off = "" if kept.time_ratio is None else f": {kept.time_ratio - 1:+.1%}"
    return f"{text}; it took {duration(kept.took_s)}{was}{off}"


def columns(*names: str, fold: Sequence[str] = ()) -> Table:
    """Return an empty table with these columns, followed by those of `fold`, which wrap long texts.

    A `>` before a name aligns its column right.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        justify: Literal["left", "right"] = "right" if name.startswith(">") else "left"
        table.add_column(name.removeprefix(">"), no_wrap=True, justify=justify)
    for name in fold:
        table.add_column(name, overflow="fold")
    return table


def facts_grid(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return rows of a label and a value."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(label, value)
    return grid


def _speed(job: JobView) -> str:
    if job.progress.samples_per_s is None:
        return "-"
    speed = f"{rate(job.progress.samples_per_s)} {job.progress.unit}/s"
    return speed if job.state in TERMINAL_STATES else f"{speed}, {eta(job.progress)}"


def _batch(done: JobProgress) -> str:
    if done.unit == "batches":
        return "a batch of its own for each rank"
    if done.global_batch is None:
        return "-" if done.unit == "samples" else "unknown: the script reports steps"
    most = f", may grow to {done.max_global_batch:,}" if done.max_global_batch is not None else ""
    return f"{done.global_batch:,} samples a step{most}"


def _depths(min_depth: float) -> str:
    return f"partial: of the last {min_depth:.0%} to all of the layers, in turn"


def _changes(done: JobProgress) -> str:
    """Return the pause of the last resize in place, and the number of steps that were repeated."""
    if done.pause_s is None:
        return "none in place"
    steps = {0: "no step was", 1: "1 step was"}.get(done.lost_steps, f"{done.lost_steps:,} steps were")
    return f"the last one in place paused training for {done.pause_s:.2f} s; {steps} done again after losses"


def _generation(job: JobView) -> str:
    members = {0: "no members", 1: "1 member"}.get(job.size, f"{job.size} members")
    return f"{job.generation}: {members}; attempt {job.attempt}"


def _resumes(job: JobView) -> str:
    """Return whether the job resumes after a stop, and the evidence for it."""
    evidence, declared = job.progress.resumption, job.spec.resumes
    if job.progress.source is ProgressSource.LIBRARY:
        return "yes: the training library restores its checkpoints"
    parts = [] if declared is None else [f"{'yes' if declared else 'no'}, says its job file"]
    if evidence is not None:
        did = "resumed" if evidence.resumes else "started again"
        parts.append(f"it {did} at step {evidence.began_at:,} after a stop at step {evidence.stopped_at:,}")
    return "; ".join(parts) or "unknown: the job has not been stopped since its first report of a step"


def _checkpoint(done: JobProgress) -> str:
    if done.checkpoint_samples is None:
        known = done.source is ProgressSource.LIBRARY
        return "none" if known else "unknown: only the training library says so"
    every = f", one every {duration(done.checkpoint_every_s)}" if done.checkpoint_every_s else ""
    expected = f" for {done.losses.per_h:.2g} expected losses per hour" if every and done.losses else ""
    lost = f"; {done.lost_samples:,} samples were trained twice after failures" if done.lost_samples else ""
    return f"at {done.checkpoint_samples:,} samples{every}{expected}{lost}"


def _epochs(done: JobProgress) -> str:
    if done.draws:
        used = f"used {done.samples:,} exactly once" if done.epochs_exact else "audited at the end"
        if done.gradients_lost:
            used = "some were used in no step (see the warning)"
        return f"none: random draws, the same at any size; {used}"
    if done.shards is not None:
        return f"none: a stream, {done.shards:,} shards read to the end; {_promise(done)}"
    if not done.epochs_audited:
        return "none complete"
    saw = f"{done.epochs_exact} of {done.epochs_audited} complete ones saw every sample exactly once"
    return f"{saw}{', but gradients were lost (see the warning)' if done.gradients_lost else ''}"


def _promise(done: JobProgress) -> str:
    """Return how often the samples of a stream were used, which an audit at the end of training confirms."""
    if done.gradients_lost:
        return "the gradients of some samples were lost (see the warning)"
    audited = "audited" if done.epochs_exact else "audited at the end"
    if not done.repeated_shards:
        return f"each sample exactly once, {audited}"
    tails = f"{done.repeated_samples:,} samples of {done.repeated_shards} shards"
    return f"at most one shard's tail repeated for each lost rank ({tails}), {audited}"


def _failures(job: JobView) -> str:
    allowed = job.spec.retry
    return (
        f"{job.preemptions} preemptions, "
        f"{job.infrastructure_failures} of {allowed.infrastructure} infrastructure failures, "
        + (
            f"{job.user_errors} of {allowed.user_errors} errors of the script"
            if allowed.user_errors
            else f"{job.user_errors} errors of the script (none is retried: retry.user_errors)"
        )
    )


def _times(job: JobView, now: datetime) -> str:
    parts = [f"submitted {job.submitted_at.astimezone():%Y-%m-%d %H:%M:%S}"]
    if job.started_at is not None:
        parts.append(f"started {duration((job.started_at - job.submitted_at).total_seconds())} later")
        parts.append(f"took {duration(((job.finished_at or now) - job.started_at).total_seconds())}")
    return ", ".join(parts)
