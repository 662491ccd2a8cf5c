"""What a job is expected to take at every size: of one that was submitted, or before it is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from headway.contract.forecasts import (
    ForecastView,
    PlanView,
    PredictionScore,
    ScoredPrediction,
    Work,
)
from headway.contract.forecasts import WorkSource as SourceView
from headway.contract.jobs import JobState, JobView, Reason
from headway.contract.spec import JobSpec
from service.domain.allocation.eligibility import settled_job
from service.domain.allocation.round import Round, build_round
from service.domain.cluster import SlotKey, Snapshot
from service.domain.jobs import Job, class_of
from service.domain.perf.forecast import Z90, Remaining, WorkSource, learn_totals, remaining_samples
from service.domain.perf.scores import error_ratio, inside, score
from service.usecases.curves import curve
from service.usecases.ports import Transaction
from service.usecases.submit import check_devices

_NOT_STORED = "plan"
_ENDED = Work(samples=0, samples_p90=0, source=SourceView.SCRIPT, reason="the job has ended")


async def forecast_job(
    tx: Transaction, view: JobView, *, usd_per_slot_h: Mapping[str, float], now: datetime
) -> ForecastView:
    """What the job would take at each size. It must be the first thing that its transaction does."""
    snapshot = await tx.decisions.snapshot(now, usd_per_slot_h)
    predictions = await tx.decision_queries.predictions(view.id)
    job = snapshot.jobs.get(view.id)
    if job is None:
        work, configurations = _ENDED, []
    else:
        left = left_of(job, await tx.decision_queries.ended_samples(class_of(job.spec)))
        work = work_of(left)
        # A round of its own is pure computation: in a thread, so that other requests go on meanwhile.
        round_ = await asyncio.to_thread(build_round, alone(snapshot, job))
        configurations = curve(round_, left)
    return ForecastView(
        job_id=view.id,
        name=view.name,
        at=now,
        work=work,
        configurations=configurations,
        score=score_of(predictions),
        predictions=predictions,
        kept=view.progress.forecasts,
        search=view.progress.search,
    )


async def plan_job(
    tx: Transaction, spec: JobSpec, *, usd_per_slot_h: Mapping[str, float], now: datetime
) -> PlanView:
    """What a job would take if it was submitted now. It must be the first thing that its transaction does.

    Raises InvalidField for a device kind that nobody knows, as a submit does.
    """
    snapshot = await tx.decisions.snapshot(now, usd_per_slot_h)
    await check_devices(tx, spec)
    job, job_class = planned(spec, now), class_of(spec)
    measured = await tx.decision_queries.measured_of_class(job_class)
    left = left_of(job, await tx.decision_queries.ended_samples(job_class))
    shown = replace(snapshot, class_measurements={job_class: measured})
    round_ = await asyncio.to_thread(build_round, alone(shown, job))
    return PlanView(
        name=spec.name,
        at=now,
        job_class=job_class,
        work=work_of(left),
        configurations=curve(round_, left),
        warnings=warnings_of(spec, round_, knows_class=bool(measured)),
    )


def warnings_of(spec: JobSpec, round_: Round, *, knows_class: bool) -> list[str]:
    """What its user should know before submitting."""
    wanted, usable = spec.resources.devices, round_.usable_slots(spec)
    found = []
    if not usable:
        there = ", ".join(round_.rooms) or "none yet"
        found.append(f"no node has {' or '.join(wanted) or 'any slot'}; kinds in this cluster: {there}")
    most = max(usable.values(), default=0)
    low, high = spec.elastic.min, spec.elastic.max
    if usable and low > most:
        found.append(f"it needs at least {low} slots of one kind, and the cluster has {most}: it would wait")
    elif usable and high > most:
        found.append(
            f"it will not have more than {most} slots, since no kind has more; elastic.max is {high}"
        )
    if not knows_class:
        found.append(
            f"nothing was measured of its class {class_of(spec)}: speeds are guesses until it has run"
        )
    return found


def alone(snapshot: Snapshot, job: Job) -> Snapshot:
    """The snapshot as if only this job was decided about, whatever it does at the moment: all others stay."""
    running = {SlotKey(node, slot) for node, slots in job.allocation.items() for slot in slots}
    # Of a change under way only what still trains counts.
    held = [key for key in snapshot.slots_held_by(job.id) if key in running]
    others = {key: holder for key, holder in snapshot.held.items() if holder != job.id}
    return replace(
        snapshot, jobs={job.id: settled_job(job, held)}, held={**others, **dict.fromkeys(held, job.id)}
    )


def planned(spec: JobSpec, now: datetime) -> Job:
    """The job that a submit would store."""
    return Job(
        id=_NOT_STORED,
        spec=spec,
        state=JobState.PENDING,
        reason=Reason.SUBMITTED,
        message="",
        submitted_at=now,
        state_since=now,
    )


def left_of(job: Job, ended_samples: Sequence[float]) -> Remaining:
    """What the job has left, as arrays of one; `ended_samples` are what ended jobs of its class took."""
    totals = learn_totals(np.zeros(len(ended_samples), np.int64), np.array(ended_samples, np.float64), 1)
    total = job.progress.total_samples
    return remaining_samples(
        np.array([job.progress.samples], np.float64),
        np.array([math.nan if total is None else total]),
        np.zeros(1, np.int64),
        totals,
    )


def work_of(left: Remaining) -> Work:
    """The same for people."""
    samples, source = float(left.samples[0]), WorkSource(int(left.source[0]))
    known = math.isfinite(samples)
    return Work(
        samples=samples if known else None,
        samples_p90=samples * math.exp(Z90 * float(left.spread[0])) if known else None,
        source=SourceView[source.name],
        reason=source.reason,
    )


def score_of(predictions: Sequence[ScoredPrediction]) -> PredictionScore:
    """How good the predictions of one job were."""
    figures = np.array([(one.predicted, one.low, one.high, one.measured) for one in predictions], np.float64)
    predicted, low, high, measured = figures.reshape(len(predictions), 4).T
    scores = score(
        np.zeros(len(predictions), np.int64), 1, error_ratio(predicted, measured), inside(low, high, measured)
    )
    return PredictionScore(
        count=int(scores.count[0]),
        median_ratio=_number(scores.median_ratio[0]),
        median_error=_number(scores.median_error[0]),
        p90_error=_number(scores.p90_error[0]),
        coverage=_number(scores.coverage[0]),
    )


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
