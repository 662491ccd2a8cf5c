"""Forecasts at milestones of a job: stored when a round decides about it, and scored when it has succeeded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import numpy as np

from headway.contract.views.forecasts import KeptForecast
from headway.contract.views.jobs import JobState
from service.domain.allocation.decision.plan import Action, Decision, Plan
from service.domain.allocation.inputs.round import Round
from service.domain.contention.costs import change_s
from service.domain.jobs.job import Job, class_of
from service.domain.jobs.work import worth_of_work
from service.domain.perf.forecast import forecast
from service.domain.perf.milestones import reached_milestone, scored
from service.usecases.jobs.forecasts import left_of
from service.usecases.jobs.search import is_visiting
from service.usecases.ports.transactions import Transaction


def chosen_columns(plan: Plan) -> Mapping[str, tuple[int, int]]:
    """Return the row and column of every job to which a plan gives slots."""
    return {
        job.id: (row, int(column))
        for row, (job, column) in enumerate(zip(plan.round.jobs, plan.choices.chosen, strict=True))
        if column >= 0
    }


def due_milestone(decision: Decision, job: Job, at: tuple[int, int] | None) -> float | None:
    """Return the milestone at which a forecast is to be stored with this decision, or None.

    A visit of the job's search is not forecast, since the job will not stay at that size.
    """
    starts = decision.action is Action.START and job.generation == 0
    goes_on = job.state is JobState.RUNNING and decision.action is not Action.VACATE
    if at is None or not (starts or goes_on) or is_visiting(job):
        return None
    return reached_milestone(job.progress, starts=starts)


async def keep_forecast(
    tx: Transaction, plan: Plan, decision: Decision, job: Job, at: tuple[int, int] | None, now: datetime
) -> Job:
    """Return the locked job with a forecast for its configuration at `at` (row and column), if it has reached
    a milestone.

    The caller saves the job. Without a known speed or amount of work, no forecast is stored.
    """
    share = due_milestone(decision, job, at)
    if at is None or share is None:
        return job
    kept = await _forecast(tx, plan.round, job, at, share, now)
    if kept is None:
        return job
    return replace(
        job, progress=job.progress.model_copy(update={"forecasts": [*job.progress.forecasts, kept]})
    )


async def scored_forecasts(tx: Transaction, job: Job, now: datetime) -> tuple[KeptForecast, ...]:
    """Return the forecasts of a job, scored as if it had succeeded now."""
    kept = job.progress.forecasts
    return tuple([scored(one, *await tx.round_queries.used_since(job.id, one.at, now)) for one in kept])


async def _forecast(
    tx: Transaction, round_: Round, job: Job, at: tuple[int, int], share: float, now: datetime
) -> KeptForecast | None:
    row, column = at
    table, configurations = round_.estimates.table, round_.columns.by_kind
    worth = float(worth_of_work(job, table.efficiency[row, column], table.counted[row, column]))
    if not round_.estimates.known[row] or not table.efficiency[row, column] > 0:
        return None
    total_known = job.progress.work_total is not None
    left = left_of(job, [] if total_known else await tx.round_queries.ended_samples(class_of(job.spec)))
    if not math.isfinite(left.samples[0]):
        return None
    moves = round_.given.current[row] not in {-1, column}
    expected = forecast(
        goodput=table.goodput[row, column] / worth,
        low=table.low[row, column] / worth,
        remaining=left.samples,
        remaining_spread=left.spread,
        usd_per_h=configurations.usd_per_h[column],
        pause_s=change_s(job, round_.scope.usual) if moves else 0.0,
    )
    priced = bool(configurations.usd_per_h.any())
    cost, late_cost = float(expected.cost_p50_usd[0]), float(expected.cost_p90_usd[0])
    return KeptForecast(
        share=share,
        at=now,
        samples=job.progress.samples,
        device_kind=configurations.kind_name(int(column)),
        slots=int(configurations.slots[column]),
        time_s=float(expected.time_p50_s[0]),
        time_p90_s=float(expected.time_p90_s[0]),
        cost_usd=cost if priced and math.isfinite(cost) else None,
        cost_p90_usd=late_cost if priced and math.isfinite(late_cost) else None,
        usd_per_slot_h=_prices(round_, column),
    )


def _prices(round_: Round, column: int) -> dict[str, float]:
    """Return the price of a slot-hour by device kind: the column's own price for its kind, the lowest price
    for others. Mixes of kinds have no price of their own.
    """
    configurations = round_.columns.by_kind
    alone = ~configurations.mixed
    per_slot = configurations.usd_per_h / np.maximum(configurations.slots, 1)
    prices = {
        kind: float(per_slot[(configurations.kind == index) & alone].min())
        for index, kind in enumerate(configurations.kinds)
        if ((configurations.kind == index) & alone).any()
    }
    own = {configurations.kinds[int(configurations.kind[column])]: float(per_slot[column])}
    return {**prices, **own} if alone[column] else prices
