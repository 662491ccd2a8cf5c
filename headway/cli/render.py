"""Contract models as tables and lines for people. Values in, renderables out; `now` is an argument."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.contract.agents import NodeState
from headway.contract.dollars import dollars
from headway.contract.forecasts import KeptForecast, SearchView
from headway.contract.health import QuarantineView
from headway.contract.jobs import (
    TERMINAL_STATES,
    EventView,
    JobProgress,
    JobState,
    JobView,
)
from headway.contract.nodes import NodeView, SlotView

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
_NODE_STYLES = {
    NodeState.READY: "green",
    NodeState.CORDONED: "yellow",
    NodeState.DRAINING: "yellow",
    NodeState.DRAINED: "dim",
    NodeState.LOST: "bold red",
}


def jobs_table(jobs: Sequence[JobView], now: datetime) -> Table:
    """The table of `ps`."""
    table = columns("NAME", "STATE", "SIZE", "PROGRESS", "SAMPLES/S", "AGE")
    table.columns[2].justify = table.columns[4].justify = table.columns[5].justify = "right"
    table.add_column("WHY", overflow="fold")
    for job in jobs:
        table.add_row(
            job.name,
            state_text(job.state),
            size(job),
            progress(job.progress),
            rate(job.progress.samples_per_s),
            duration((now - job.submitted_at).total_seconds()),
            Text(brief(job.message)),
        )
    return table


def job_page(job: JobView, events: Sequence[EventView], now: datetime) -> RenderableType:
    """The page of `describe`."""
    spec, done = job.spec, job.progress
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    pinned = f", kept there by `headway resize {job.name} {job.pinned_size}`" if job.pinned_size else ""
    rows: list[tuple[str, RenderableType]] = [
        ("state", state_text(job.state) + Text(f"  {job.reason}")),
        ("why", Text(job.message)),
        ("id", job.id),
        ("project", f"{job.project}, priority {spec.priority}"),
        ("command", Text(spec.run)),
        ("folder", Text(f"{spec.workdir or '-'}{f'  ({spec.bundle[:19]}…)' if spec.bundle else ''}")),
        ("size", f"{size(job)} slots, {spec.elastic.sizes} sizes, resize {spec.elastic.resize}{pinned}"),
        ("slots", holdings(job)),
        ("progress", progress(done)),
        ("speed", _speed(job)),
        ("batch", _batch(done)),
        ("metrics", metrics(done) or "none reported yet"),
        ("checkpoint", _checkpoint(done)),
        ("epochs", _epochs(done)),
        ("failures", _failures(job)),
        ("changes", _changes(done)),
        *(() if done.search is None else (("search", Text(search_text(done.search))),)),
        *(("forecast", Text(kept_text(one))) for one in done.forecasts),
        ("cost", cost_text(job)),
        ("generation", _generation(job)),
        ("times", _times(job, now)),
    ]
    for label, value in rows:
        facts.add_row(label, value)
    heading = Text(job.name, style="bold")
    if not events:
        return Group(heading, facts)
    return Group(
        heading,
        facts,
        Text("\nlast events", style="dim"),
        *(event_line(event, short=True) for event in events),
    )


def event_line(event: EventView, *, short: bool = False) -> Text:
    """One line of `events`; more, indented, when its message has more and `short` does not forbid it."""
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


def nodes_table(nodes: Sequence[NodeView]) -> Table:
    """The table of `nodes`."""
    table = columns("NAME", "STATE", "ADDRESS", "KIND", "BUSY", "LEASE", "CONTAINERS")
    table.columns[4].justify = table.columns[5].justify = "right"
    table.add_column("SLOTS", overflow="fold")
    table.add_column("WHY", overflow="fold")
    for node in nodes:
        busy = sum(slot.job_id is not None for slot in node.slots)
        table.add_row(
            node.name,
            Text(node.state, style=_NODE_STYLES[node.state]),
            node.address,
            ", ".join(sorted({slot.device_kind for slot in node.slots})),
            f"{busy}/{len(node.slots)}",
            f"{node.lease_remaining_s:.0f}s" if node.lease_remaining_s >= 0 else "over",
            node.container_engine or "-",
            holders(node.slots),
            Text("\n".join([*([node.message] if node.message else []), *_quarantines(node.slots)])),
        )
    return table


def _quarantines(slots: Iterable[SlotView]) -> list[str]:
    return [f"slot {slot.index}: {quarantine(slot.quarantine)}" for slot in slots if slot.quarantine]


def quarantine(one: QuarantineView) -> str:
    """Why a slot gets no job, and until when: `in quarantine since 12:00:05, fatal: Xid 79: ...; until it is released`."""
    until = (
        "until it is released" if one.probe_at is None else f"next probe {one.probe_at.astimezone():%H:%M:%S}"
    )
    return f"in quarantine since {one.since.astimezone():%m-%d %H:%M:%S}, {one.grade}: {one.message}; {until}"


def holders(slots: Iterable[SlotView]) -> str:
    """Who holds which slot: `digits 0-1, free 2-3`."""
    indices: dict[str, list[int]] = {}
    for slot in sorted(slots, key=lambda slot: slot.index):
        holder = slot.job_name or slot.job_id or ("quarantined" if slot.quarantine else "free")
        indices.setdefault(holder, []).append(slot.index)
    return ", ".join(f"{holder} {ranges(held)}" for holder, held in indices.items())


def holdings(job: JobView) -> str:
    """Which slots a job holds: `host-1: 0-3, host-2: 0`."""
    return ", ".join(f"{node}: {ranges(slots)}" for node, slots in sorted(job.allocation.items())) or "none"


def ranges(numbers: Iterable[int]) -> str:
    """`0-2,5` for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def brief(message: str) -> str:
    """A message in one line: of many, such as a traceback, the first and the last."""
    first, *others = message.splitlines() or [""]
    return f"{first} … {others[-1].strip()}" if others else first


def state_text(state: JobState) -> Text:
    """A state in its colour."""
    return Text(state, style=_JOB_STYLES[state])


def size(job: JobView) -> str:
    """`now/min-max`; an `=` says that `resize` keeps it there."""
    low, high = job.spec.elastic.min, job.spec.elastic.max
    bounds = f"{low}-{high}" if low != high else f"{low}"
    return f"{job.size}/{bounds}{'=' if job.pinned_size is not None else ''}"


def progress(done: JobProgress) -> str:
    """`62% 12,400/20,000`; the samples alone when the script does not say how many there will be."""
    if done.total_samples:
        share = min(done.samples / done.total_samples, 1.0)
        return f"{int(100 * share)}% {done.samples:,}/{done.total_samples:,}"
    return f"{done.samples:,} samples" if done.samples else "-"


def rate(samples_per_s: float | None) -> str:
    """Samples per second with three digits or more."""
    if samples_per_s is None:
        return "-"
    return f"{samples_per_s:,.0f}" if samples_per_s >= 100 else f"{samples_per_s:.3g}"


def eta(done: JobProgress) -> str:
    """Time to the end at the present speed."""
    if not done.total_samples or not done.samples_per_s:
        return "end not known yet"
    return f"about {duration(max(done.total_samples - done.samples, 0) / done.samples_per_s)} to go"


def metrics(done: JobProgress) -> str:
    """`accuracy 0.97  loss 0.11`."""
    return "  ".join(f"{name} {value:.4g}" for name, value in sorted(done.metrics.items()))


def duration(seconds: float) -> str:
    """`45s`, `3m20s`, `2h05m`, `4d02h`."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def usd(amount: float | None) -> str:
    """Dollars, or a dash where nobody knows."""
    return "-" if amount is None else dollars(amount)


def cost_text(job: JobView) -> str:
    """What a job has cost, what became of it, and what is still to come."""
    cost = job.cost
    if cost is None:
        return "nothing yet"
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
    return text + ("; without the slots that have no price" if cost.unpriced else "")


def search_text(found: SearchView) -> str:
    """Where the search for a job's configuration is, and what it has cost."""
    there = f" on {found.place}" if found.place else ""
    text = f"{found.mode}, {found.phase}{there}: {found.reason}"
    if not found.visited:
        return text
    share = "" if found.overhead_share is None else f", {found.overhead_share:.1%} of the run"
    text += f"; {found.visited} of {found.visits} sizes seen in {found.time_s:.1f} s, {max(found.overhead_s, 0.0):.1f} s lost"
    return f"{text}{share} (at most {found.bound:.0%})"


def kept_text(kept: KeptForecast) -> str:
    """A forecast that was kept, and what came of it."""
    when = "at the submit" if not kept.share else f"after {kept.share:.0%} of the work"
    cost = f", {usd(kept.cost_usd)}" if kept.cost_usd else ""
    text = f"{when}: {duration(kept.time_s)} (P90 {duration(kept.time_p90_s)}){cost} on {kept.slots} {kept.device_kind}"
    if kept.took_s is None:
        return text
    was = f", {usd(kept.cost_was_usd)}" if kept.cost_usd and kept.cost_was_usd is not None else ""
    off = "" if kept.time_ratio is None else f": {kept.time_ratio - 1:+.1%}"
    return f"{text}; it took {duration(kept.took_s)}{was}{off}"


def columns(*names: str) -> Table:
    """An empty table with these columns."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=True)
    return table


def _speed(job: JobView) -> str:
    if not job.progress.samples_per_s:
        return "-"
    speed = f"{rate(job.progress.samples_per_s)} samples/s"
    return speed if job.state in TERMINAL_STATES else f"{speed}, {eta(job.progress)}"


def _batch(done: JobProgress) -> str:
    if done.global_batch is None:
        return "-"
    most = f", may grow to {done.max_global_batch:,}" if done.max_global_batch is not None else ""
    return f"{done.global_batch:,} samples a step{most}"


def _changes(done: JobProgress) -> str:
    """Of the members, while the job trained."""
    if done.pause_s is None:
        return "none in place yet"
    steps = {0: "no step was", 1: "1 step was"}.get(done.lost_steps, f"{done.lost_steps:,} steps were")
    return f"the last one in place paused training for {done.pause_s:.2f} s; {steps} done again after losses"


def _generation(job: JobView) -> str:
    members = {0: "nobody runs", 1: "1 member"}.get(job.size, f"{job.size} members")
    return f"{job.generation}: {members}; attempt {job.attempt}"


def _checkpoint(done: JobProgress) -> str:
    if done.checkpoint_samples is None:
        return "none yet"
    lost = f"; {done.lost_samples:,} samples were trained twice after failures" if done.lost_samples else ""
    return f"at {done.checkpoint_samples:,} samples{lost}"


def _epochs(done: JobProgress) -> str:
    if not done.epochs_audited:
        return "none complete yet"
    return f"{done.epochs_exact} of {done.epochs_audited} complete ones saw every sample exactly once"


def _failures(job: JobView) -> str:
    allowed = job.spec.retry
    return (
        f"{job.preemptions} preemptions, "
        f"{job.infrastructure_failures} of {allowed.infrastructure} infrastructure failures, "
        f"{job.user_errors} of {allowed.user_errors} errors of the script"
    )


def _times(job: JobView, now: datetime) -> str:
    parts = [f"submitted {job.submitted_at.astimezone():%Y-%m-%d %H:%M:%S}"]
    if job.started_at is not None:
        parts.append(f"started {duration((job.started_at - job.submitted_at).total_seconds())} later")
        parts.append(f"took {duration(((job.finished_at or now) - job.started_at).total_seconds())}")
    return ", ".join(parts)
