"""A job's forecasts at its marks: kept when a round decides about it, and scored when it has succeeded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import numpy as np

from headway.contract.forecasts import KeptForecast
from headway.contract.jobs import JobState
from service.domain.allocation.plan import Action, Decision, Plan
from service.domain.allocation.round import Round, change_s
from service.domain.jobs import Job, class_of
from service.domain.perf.forecast import forecast
from service.domain.perf.marks import due_mark, scored, verdict
from service.usecases.forecasts import left_of
from service.usecases.ports import Transaction
from service.usecases.search import is_visiting
from service.usecases.transition import record


def chosen_columns(plan: Plan) -> Mapping[str, tuple[int, int]]:
    """Row and column of every job that a plan gives something."""
    return {
        job.id: (row, int(column))
        for row, (job, column) in enumerate(zip(plan.round.jobs, plan.choices.chosen, strict=True))
        if column >= 0
    }


def mark_to_keep(decision: Decision, job: Job, at: tuple[int, int] | None) -> float | None:
    """The mark that the job has come to and for which a forecast is to be kept with this decision; None for none. A visit
    of its search, where it will not stay, is not forecast.
    """
    starts = decision.action is Action.START and job.generation == 0
    goes_on = job.state is JobState.RUNNING and decision.action is not Action.VACATE
    if at is None or not (starts or goes_on) or is_visiting(job):
        return None
    return due_mark(job.progress, starts=starts)


async def keep_forecast(
    tx: Transaction, plan: Plan, decision: Decision, job: Job, at: tuple[int, int] | None, now: datetime
) -> Job:
    """The locked job with a forecast for what it is given at `at` (row and column), if it has come to a mark. It is for the
    caller to save the job.

    What nobody knows, its speed or how much there is to do, is not forecast.
    """
    share = mark_to_keep(decision, job, at)
    if at is None or share is None:
        return job
    kept = await _forecast(tx, plan.round, job, at, share, now)
    if kept is None:
        return job
    return replace(
        job, progress=job.progress.model_copy(update={"forecasts": [*job.progress.forecasts, kept]})
    )


async def score_forecasts(tx: Transaction, job: Job, now: datetime) -> Job:
    """The locked job, which has just succeeded, with what came of its forecasts, and an event that says it. It is for the
    caller to save it.
    """
    kept = job.progress.forecasts
    if not kept:
        return job
    after = [scored(one, *await tx.decision_queries.used_since(job.id, one.at, now)) for one in kept]
    job = replace(job, progress=job.progress.model_copy(update={"forecasts": after}))
    message = verdict(after)
    if message:
        data = {"forecasts": [one.model_dump(mode="json") for one in after]}
        await record(tx, job, "forecast_scored", message=message, now=now, data=data)
    return job


async def _forecast(
    tx: Transaction, round_: Round, job: Job, at: tuple[int, int], share: float, now: datetime
) -> KeptForecast | None:
    row, column = at
    table, configurations = round_.table, round_.columns.by_kind
    worth = float(table.efficiency[row, column])
    if not (round_.learned.measured[row] or round_.learned.related[row]) or not worth > 0:
        return None
    said = job.progress.total_samples is not None
    left = left_of(job, [] if said else await tx.decision_queries.ended_samples(class_of(job.spec)))
    if not math.isfinite(left.samples[0]):
        return None
    moves = round_.given.current[row] not in {-1, column}
    expected = forecast(
        goodput=table.goodput[row, column] / worth,
        low=table.low[row, column] / worth,
        remaining=left.samples,
        remaining_spread=left.spread,
        usd_per_h=configurations.usd_per_h[column],
        pause_s=change_s(job) if moves else 0.0,
    )
    priced = bool(configurations.usd_per_h.any())
    cost, late_cost = float(expected.cost_p50_usd[0]), float(expected.cost_p90_usd[0])
    return KeptForecast(
        share=share,
        at=now,
        samples=job.progress.samples,
        device_kind=configurations.kinds[int(configurations.kind[column])],
        slots=int(configurations.slots[column]),
        time_s=float(expected.time_p50_s[0]),
        time_p90_s=float(expected.time_p90_s[0]),
        cost_usd=cost if priced and math.isfinite(cost) else None,
        cost_p90_usd=late_cost if priced and math.isfinite(late_cost) else None,
        usd_per_slot_h=_prices(round_, column),
    )


def _prices(round_: Round, column: int) -> dict[str, float]:
    """Of a slot-hour of each kind; of the column's kind, its own."""
    configurations = round_.columns.by_kind
    per_slot = configurations.usd_per_h / np.maximum(configurations.slots, 1)
    prices = {
        kind: float(per_slot[configurations.kind == index].min())
        for index, kind in enumerate(configurations.kinds)
        if (configurations.kind == index).any()
    }
    return {**prices, configurations.kinds[int(configurations.kind[column])]: float(per_slot[column])}
