"""Forecasts of a job's duration and cost at every size, for a stored job or before its submit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from headway.contract import spec_warnings
from headway.contract.spec import JobSpec
from headway.contract.views.forecasts import ForecastView, PlanView, PredictionScore, ScoredPrediction, Work
from headway.contract.views.forecasts import WorkSource as SourceView
from headway.contract.views.jobs import TERMINAL_STATES, JobView
from service.domain.allocation.configurations.settled import settled_job
from service.domain.allocation.inputs.round import Round, build_round
from service.domain.cluster.snapshot import SlotKey, Snapshot
from service.domain.jobs.job import Job, class_of
from service.domain.perf.forecast import Z90, Remaining, WorkSource, remaining_of
from service.domain.perf.scores import error_ratio, inside, score
from service.domain.policies.framework.followed import following
from service.domain.policies.registry import POLICIES
from service.usecases.jobs.curves import curve
from service.usecases.jobs.deadlines import outlook_in, past_deadline
from service.usecases.jobs.planned import planned
from service.usecases.jobs.submit import check_devices
from service.usecases.ports.transactions import Transaction

_ENDED = Work(samples=0, samples_p90=0, source=SourceView.SCRIPT, reason="the job has ended")

_NOT_STARTED = "its script says how long it trains once it has started, and no job of its class has ended"


async def forecast_job(
    tx: Transaction, view: JobView, *, usd_per_slot_h: Mapping[str, float], now: datetime
) -> ForecastView:
    """Return the forecast of the job at each size. It must be the first statement of its transaction."""
    snapshot = await tx.rounds.snapshot(now, usd_per_slot_h)
    predictions = await tx.round_queries.predictions(view.id)
    job = snapshot.jobs.get(view.id)
    if job is None:
        waits = view.state not in TERMINAL_STATES
        work = Work(samples=None, samples_p90=None, source=SourceView.UNKNOWN, reason=view.message)
        work, configurations = work if waits else _ENDED, []
    else:
        left = left_of(job, await tx.round_queries.ended_samples(class_of(job.spec)))
        work = work_of(
            left, view.progress.position_text, view.progress.unit, started=view.started_at is not None
        )
        # Building a round is pure computation. It runs in a thread, so that other requests are served
        # meanwhile.
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
        goal_target=view.progress.goal_target,
    )


async def plan_job(
    tx: Transaction, spec: JobSpec, *, usd_per_slot_h: Mapping[str, float], now: datetime
) -> PlanView:
    """Return the forecast of a job as if it were submitted now.

    It must be the first statement of its transaction.

    Raise InvalidField for an unknown device kind or a deadline that is over, as a submit does.
    """
    snapshot = await tx.rounds.snapshot(now, usd_per_slot_h)
    await check_devices(tx, spec)
    if (over := past_deadline(spec, now)) is not None:
        raise over
    job, job_class = planned(spec, now), class_of(spec)
    measured = await tx.round_queries.measured_of_class(job_class)
    left = left_of(job, await tx.round_queries.ended_samples(job_class))
    with_class = replace(snapshot, class_measurements={**snapshot.class_measurements, job_class: measured})
    round_ = await asyncio.to_thread(build_round, alone(with_class, job))
    return PlanView(
        name=spec.name,
        at=now,
        job_class=job_class,
        work=work_of(left, started=False),
        configurations=curve(round_, left),
        warnings=warnings_of(spec, round_, knows_class=bool(measured)),
        deadline=await outlook_in(tx, with_class, spec, now),
    )


def warnings_of(spec: JobSpec, round_: Round, *, knows_class: bool) -> list[str]:
    """Return warnings that the user should read before submitting."""
    wanted, usable = spec.resources.devices, round_.scope.usable_slots(spec)
    found = []
    if not usable:
        there = ", ".join(round_.scope.capacities) or "none yet"
        found.append(f"no node has {' or '.join(wanted) or 'any slot'}; kinds in this cluster: {there}")
    most = spec.elastic.most_together(usable)
    low, high = spec.elastic.min, spec.elastic.max
    if usable and low > most:
        found.append(
            f"the job needs at least {low} slots {spec.elastic.kinds_text}, but the cluster has {most}: it would wait"
        )
    elif usable and high > most:
        found.append(
            f"the job gets at most {most} slots, since no device kind has more; elastic.max is {high}"
        )
    if not knows_class:
        found.append(
            f"no measurements of the class {class_of(spec)} exist: speeds are guesses until one of its jobs has run"
        )
    return [*found, *spec_warnings.warnings_of(spec)]


def alone(snapshot: Snapshot, job: Job) -> Snapshot:
    """Return the snapshot reduced to a decision about this job, in any state.

    All other jobs keep their slots.
    """
    running = {SlotKey(node, slot) for node, slots in job.allocation.items() for slot in slots}
    # During a change, only the slots of ranks that still train count.
    held = [key for key in snapshot.slots_held_by(job.id) if key in running]
    others = {key: holder for key, holder in snapshot.held.items() if holder != job.id}
    alone = replace(
        snapshot,
        jobs={job.id: settled_job(job, held)},
        held={**others, **dict.fromkeys(held, job.id)},
    )
    return following(alone, POLICIES.of_setting(snapshot.policy))


def left_of(job: Job, ended_samples: Sequence[float]) -> Remaining:
    """Return the remaining work of the job, as arrays of length one.

    `ended_samples` are the sample counts of ended jobs of its class.
    """
    return remaining_of([job], {class_of(job.spec): ended_samples})


def work_of(left: Remaining, position: str = "", unit: str = "samples", *, started: bool) -> Work:
    """Return the remaining work as the API shows it, with its unit, and the position in steps or epochs where it has one.

    `started`: the job's script has run, so that it could have said how long it trains.
    """
    samples, source = float(left.samples[0]), WorkSource(int(left.source[0]))
    reason = source.reason if started or source is not WorkSource.UNKNOWN else _NOT_STARTED
    known = math.isfinite(samples)
    return Work(
        samples=samples if known else None,
        samples_p90=samples * math.exp(Z90 * float(left.spread[0])) if known else None,
        source=SourceView[source.name],
        reason=f"{reason}; now at {position}" if position else reason,
        unit=unit,
    )


def score_of(predictions: Sequence[ScoredPrediction]) -> PredictionScore:
    """Return the accuracy of the predictions made for one job."""
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
