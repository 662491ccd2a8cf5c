"""The page of one job: its state with the reason, its end and cost, and its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from headway.contract.spec_after import AfterEnd
from headway.contract.views.decisions import ExplanationView
from headway.contract.views.forecasts import ForecastView
from headway.contract.views.jobs import EventView, JobProgress, JobState, JobView, Reason
from service.console.html.badges import has_ended, tone_of_job
from service.console.html.fragments import Content, Fact, Fragment, Listing
from service.console.html.text import (
    NONE,
    between,
    charge,
    duration,
    iso,
    limit_words,
    number,
    percent,
    plural,
    short,
    stamp,
    usd,
)
from service.console.pages.jobs import end_of, size_text
from service.console.pages.outlook import Outlook, outlook_of
from service.console.pictures.job_curves import (
    Chart,
    KeptRow,
    OptionRow,
    goodput_chart,
    kept_rows,
    metrics_charts,
    option_rows,
    prediction_text,
    sizes_chart,
)
from service.usecases.ports.jobs import SizeChange
from service.usecases.ports.sweeps import TrialOf


@dataclass(frozen=True, slots=True)
class Head:
    """The head of the page."""

    id: str
    name: str
    project: str
    owner: str
    """Name of its owner; empty if unknown."""
    hue: str
    state: str
    tone: str
    reason: str
    outlook: Outlook
    warnings: tuple[str, ...]
    """Facts by which the result may differ from that of an undisturbed run."""
    trial_of: TrialOf | None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An event of the job."""

    sequence: int
    at: str
    at_iso: str
    kind: str
    message: str
    detail: str


@dataclass(frozen=True, slots=True)
class Actions:
    """The actions that the viewer may perform on the job now."""

    id: str
    name: str
    verbs: tuple[str, ...]
    low: int
    high: int
    size: int
    pinned: int | None
    priority: int


@dataclass(frozen=True, slots=True)
class JobPage:
    """All contents of the page."""

    head: Head
    facts: tuple[Fact, ...]
    parameters: tuple[Fact, ...]
    actions: Actions
    options: tuple[OptionRow, ...]
    limits: tuple[str, ...]
    metrics: tuple[Chart, ...]
    learning: str
    """Text in place of charts of metrics; empty if there are charts, or before the job starts."""
    begun: bool
    """True if the job ever held slots. Before that, the page leaves out sections about its training."""
    charts: tuple[Chart, ...]
    kept: tuple[KeptRow, ...]
    prediction: str
    ledger: tuple[Fact, ...]
    failures: tuple[Fact, ...]
    steps: tuple[HistoryEntry, ...]
    places: tuple[tuple[str, str], ...]

    def contents(self) -> list[Content]:
        """Return the fragments of the page."""
        chart_fragments = [fragment for chart in self.charts for fragment in chart.fragments()]
        return [
            Fragment("job-head", "job_head", self.head),
            Fragment("job-facts", "facts", ("job-facts", self.facts)),
            Fragment("job-parameters", "facts", ("job-parameters", self.parameters)),
            Fragment("job-actions", "job_actions", self.actions),
            Fragment("job-options", "options", self.options),
            Fragment("job-limits", "limits", self.limits),
            Fragment("no-learning", "no_learning", (self.learning, not self.metrics)),
            Listing(
                "learning", tuple(Fragment(f"chart-{one.name}", "metric_chart", one) for one in self.metrics)
            ),
            *chart_fragments,
            Fragment("job-kept", "kept", (self.kept, self.prediction)),
            Fragment("job-ledger", "facts", ("job-ledger", self.ledger)),
            Fragment("job-failures", "facts", ("job-failures", self.failures)),
            Fragment("begun-checkpoints", "begun", self.begun),
            Fragment("begun-log", "begun", self.begun),
            Fragment("job-places", "places", self.places),
            Listing("steps", tuple(Fragment(f"step-{one.sequence}", "step", one) for one in self.steps)),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobViews:
    """The data of the page."""

    job: JobView
    present: str
    """Reason for the job's present size: the message of the last decision since, or else the job's own
    message."""
    colour: int
    explanation: ExplanationView
    forecast: ForecastView
    events: Sequence[EventView]
    sizes: Sequence[SizeChange]
    series: Mapping[str, Sequence[tuple[datetime, int, float]]]
    trial_of: TrialOf | None = None
    """The sweep of a job that is a trial."""


def job_page(views: JobViews, *, may_control: bool, now: datetime) -> JobPage:
    """Return the page. With `may_control`, the viewer may change the job."""
    job, forecast = views.job, views.forecast
    begun = job.started_at is not None or bool(views.sizes)
    return JobPage(
        head=Head(
            id=job.id,
            name=job.name,
            project=job.project,
            owner=job.owner or "",
            hue=f"job-{views.colour}" if begun else "unheld",
            state=job.state.lower(),
            tone=tone_of_job(job.state),
            reason=job.reason,
            outlook=outlook_of(job, views.present, forecast),
            warnings=tuple(job.progress.warnings),
            trial_of=views.trial_of,
        ),
        facts=_facts(job, forecast) if begun else _facts_before(job),
        parameters=tuple(Fact(name, str(value)) for name, value in sorted(job.spec.parameters.items())),
        actions=_actions(job, may_control=may_control),
        options=option_rows(views.explanation, forecast),
        limits=_limits(views.explanation),
        metrics=metrics_charts(views.series),
        learning="The script has reported nothing: run.report(loss=...) draws a curve here."
        if begun and not views.series
        else "",
        begun=begun,
        charts=(
            sizes_chart(views.sizes, views.events, job, now),
            goodput_chart(forecast),
        ),
        kept=kept_rows(forecast),
        prediction=prediction_text(forecast) if begun else "",
        ledger=_ledger(job) if begun else (),
        failures=_failures(job, views.events) if begun else (),
        steps=tuple(_step(one) for one in reversed(views.events)),
        places=tuple((node, _ranges(slots)) for node, slots in sorted(job.allocation.items())),
    )


def _facts(job: JobView, forecast: ForecastView) -> tuple[Fact, ...]:
    done, cost = job.progress, job.cost
    share = done.work_share
    present = next((one for one in forecast.configurations if "present" in one.marks), None)
    end = end_of(job)
    if has_ended(job) and job.finished_at is not None:
        took_s = (job.finished_at - (job.started_at or job.submitted_at)).total_seconds()
        ends = Fact("Duration", duration(took_s), f"ended {stamp(job.finished_at)}")
    elif present is not None and present.time_s is not None:
        ends = Fact("Ends in", duration(present.time_s), _at_most(present.time_s, present.time_p90_s))
    elif end is not None:
        ends = Fact("Ends in", duration(end[0]), "at the present speed")
    else:
        ends = Fact("Ends in", NONE, forecast.work.reason if job.size else "it has no slots now")
    spent = Fact("Cost so far", charge(cost.usd) if cost else NONE, _expected(job))
    total = f"of {short(done.work_total)} {done.unit}" if done.work_total else "length not known"
    return (
        Fact(
            "Progress",
            percent(share) if share is not None else short(done.samples),
            done.position_text or total,
            share,
        ),
        ends,
        spent,
        Fact(
            "Slots",
            size_text(job),
            f"fixed at {job.pinned_size} by request" if job.pinned_size else _kind(job),
        ),
        *_target(job),
        Fact("Priority", str(job.spec.priority), "of 100"),
        Fact(
            "Speed",
            f"{short(done.samples_per_s)}/s" if done.samples_per_s is not None and job.size else NONE,
            _batch(job),
        ),
    )


def _target(job: JobView) -> tuple[Fact, ...]:
    """Return the fact about the target of a job that has one."""
    target = job.progress.goal_target
    if target is None:
        return ()
    sign = {True: "≤ ", False: "≥ ", None: ""}[target.falls]
    if target.reached_samples is not None:
        note = f"reached at {short(target.reached_samples)} {job.progress.unit}"
    elif target.expected_work is not None:
        note = f"expected at {short(target.expected_work)} {job.progress.unit}"
    else:
        note = "its values do not yet show when it is reached"
    present = NONE if target.present is None else f"{target.present:.4g}"
    return (Fact(f"{target.metric} until {sign}{target.value:.4g}", present, note),)


def _facts_before(job: JobView) -> tuple[Fact, ...]:
    """Return the facts about a job that never held slots."""
    return (
        Fact("Slots", size_text(job), _kind(job)),
        Fact("Submitted", stamp(job.submitted_at)),
        Fact("Priority", str(job.spec.priority), "of 100"),
        *_after(job),
        *_origin(job),
    )


def _after(job: JobView) -> tuple[Fact, ...]:
    """Return the fact about the jobs that a job starts after, if there are any."""
    if not job.spec.after:
        return ()
    names = ", ".join(
        one.job if one.on is AfterEnd.SUCCEEDED else f"{one.job} ({one.on})" for one in job.spec.after
    )
    waits = job.reason is Reason.AFTER and job.state is JobState.PENDING
    return (Fact("After", names, job.message if waits else ""),)


def _origin(job: JobView) -> tuple[Fact, ...]:
    """Return the fact about the checkpoint of another job that a job started from, if it did."""
    origin = job.progress.started_from
    if origin is None:
        return ()
    return (Fact("Started from", origin.job, f"{origin.checkpoint}, at {number(origin.samples)} samples"),)


def _at_most(time_s: float, p90_s: float | None) -> str:
    at_most = between(time_s, p90_s).partition(", ")[2]
    return f"with 90 % {at_most}" if at_most else "as forecast"


def _expected(job: JobView) -> str:
    cost = job.cost
    if cost is None:
        return "nothing has been charged"
    if cost.left_usd is not None:
        return f"{usd(cost.left_usd)} left of its limit"
    if cost.unpriced and not cost.usd:
        return "its slots have no price"
    if cost.expected_usd is not None and not has_ended(job):
        return f"about {usd(cost.expected_usd)} in all"
    return "some slots had no price" if cost.unpriced else ""


def _kind(job: JobView) -> str:
    return f"resize: {job.spec.elastic.resize}"


def _batch(job: JobView) -> str:
    batch = job.progress.global_batch
    if job.progress.unit != "samples" or not batch:
        return f"{job.progress.unit} per second"
    return f"batch of {batch:,}"


def _actions(job: JobView, *, may_control: bool) -> Actions:
    verbs: list[str] = []
    if may_control and not has_ended(job) and job.state is not JobState.CANCELLING:
        verbs = ["resume" if job.state is JobState.PAUSED else "pause", "resize", "prioritize", "cancel"]
    elif may_control and job.state in {JobState.FAILED, JobState.CANCELLED}:
        verbs = ["resume"]
    low, high = job.spec.elastic.min, job.spec.elastic.max
    size, priority = job.size or low, job.spec.priority
    return Actions(job.id, job.name, tuple(verbs), low, high, size, job.pinned_size, priority)


def _limits(explanation: ExplanationView) -> tuple[str, ...]:
    rows = [
        f"One more {limit_words(one.name)} would be worth {number(one.price)} to the cluster "
        f"({explanation.unit}); all {number(one.capacity)} are taken."
        for one in explanation.binding
    ]
    waits = not any(one.note == "current" for one in explanation.options)
    more = [
        f"With one more {limit_words(one.row)} the job could {'run on' if waits else 'have'} "
        f"{plural(one.slots, f'{one.device_kind} slot')}{'' if waits else f', {one.speedup:.2f} times as fast'}."
        for one in explanation.outlook
    ]
    return tuple(rows + more)


def _audit(done: JobProgress) -> Fact:
    """Return the result of the audits: of epochs, or of data without epochs at the end of training."""
    exact = f"{done.epochs_exact} of {done.epochs_audited}" if done.epochs_audited else NONE
    if done.gradients_lost:
        return Fact("Samples in a step exactly once", "no", f"read: {exact} audits, but gradients were lost")
    if done.draws:
        return Fact("Random draws used exactly once", exact, "audited at the end")
    if done.shards is None:
        return Fact("Epochs with every sample exactly once", exact, "of the audited epochs")
    tails = f"; {number(done.repeated_samples)} repeated after losses" if done.repeated_shards else ""
    return Fact("Stream with every sample exactly once", exact, f"audited at the end{tails}")


def _ledger(job: JobView) -> tuple[Fact, ...]:
    done = job.progress
    saved = done.checkpoint_samples
    behind = (
        f"{short(max(0, done.samples - saved))} behind training"
        if saved is not None
        else "none has been saved"
    )
    return (
        Fact(
            f"{done.unit.capitalize()} trained",
            number(done.samples),
            f"epoch {done.epoch}" if done.epoch is not None else "",
        ),
        _audit(done),
        *_origin(job),
        Fact(f"Repeated {done.unit}", number(done.lost_samples), "after failures that restored a checkpoint"),
        Fact("Repeated steps", number(done.lost_steps), "at most one for each loss of ranks"),
        Fact("Last checkpoint", f"at {number(saved)}" if saved is not None else NONE, behind),
        Fact(
            "Time between checkpoints",
            duration(done.checkpoint_every_s),
            f"for {done.losses.per_h:.2g} expected losses per hour" if done.losses else "",
        ),
        Fact("Last pause", duration(done.pause_s), "of the last resize in place"),
    )


def _failures(job: JobView, events: Sequence[EventView]) -> tuple[Fact, ...]:
    retry = job.spec.retry
    return (
        Fact("Preemptions", number(job.preemptions), _last_preemption(events)),
        Fact(
            "Changes that no user requested",
            number(job.progress.imposed_count),
            f"{job.progress.imposed_s:.1f} s of training",
        ),
        Fact(
            "Infrastructure failures",
            number(job.infrastructure_failures),
            f"of {retry.infrastructure} allowed",
        ),
        Fact(
            "Failures of the script",
            number(job.user_errors),
            f"of {retry.user_errors} allowed" if retry.user_errors else "none is retried: retry.user_errors",
        ),
    )


def _last_preemption(events: Sequence[EventView]) -> str:
    """Return when and for which jobs the job lost its slots last, as its event says."""
    lost = [one for one in events if one.kind == "vacate" and one.reason is Reason.PREEMPTED]
    if not lost:
        return "not counted as failures"
    last = max(lost, key=lambda one: one.sequence)
    return f"not counted as failures; the last one, {stamp(last.at)}: {last.message}"


def _step(event: EventView) -> HistoryEntry:
    pause = event.data.get("pause_s")
    return HistoryEntry(
        sequence=event.sequence,
        at=f"{event.at.astimezone(UTC):%H:%M:%S} UTC",
        at_iso=iso(event.at),
        kind=event.kind.replace("_", " "),
        message=event.message,
        detail=f"paused {pause:.2f} s"
        if isinstance(pause, int | float) and "paused" not in event.message
        else "",
    )


def _ranges(slots: Sequence[int]) -> str:
    """Return slots as ranges, such as `0–3, 6`."""
    found: list[list[int]] = []
    for slot in sorted(slots):
        if found and slot == found[-1][1] + 1:
            found[-1][1] = slot
        else:
            found.append([slot, slot])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in found)
