"""Outlook on a deadline at submit, and the admission of a job by it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from headway.contract.spec import JobSpec
from headway.contract.views.forecasts import DeadlineOutlook, DeadlineVerdict
from service.domain.allocation.configurations.settled import settled
from service.domain.allocation.decision.deadline_texts import nearest_slots, outlook_of
from service.domain.allocation.inputs.round import build_round
from service.domain.cluster.snapshot import Snapshot
from service.domain.jobs.job import class_of
from service.domain.shared.errors import DeadlineRefused, InvalidField
from service.usecases.jobs.planned import planned
from service.usecases.ports.transactions import Transaction, Transactions

_ADMITTED = frozenset({DeadlineVerdict.FEASIBLE, DeadlineVerdict.FEASIBLE_FROM})
_NO_PROMISE = "; this is no promise, as other deadlines may precede it (`goal.admit: reject` promises it)"


async def outlook_at_submit(
    transactions: Transactions, spec: JobSpec, *, usd_per_slot_h: Mapping[str, float], now: datetime
) -> DeadlineOutlook | None:
    """Return the outlook on the deadline of a job that is submitted now; None without a deadline."""
    if spec.goal.deadline is None:
        return None
    async with transactions.begin() as tx:
        snapshot = await tx.rounds.snapshot(now, usd_per_slot_h)
        return await outlook_in(tx, snapshot, spec, now)


async def outlook_in(
    tx: Transaction, snapshot: Snapshot, spec: JobSpec, now: datetime
) -> DeadlineOutlook | None:
    """Return the outlook on the deadline of a job beside the jobs of a snapshot; None without a deadline."""
    if spec.goal.deadline is None:
        return None
    job, job_class = planned(spec, now), class_of(spec)
    measured, ended = snapshot.class_measurements, snapshot.ended_samples
    if job_class not in measured:
        measured = {**measured, job_class: await tx.round_queries.measured_of_class(job_class)}
    if job_class not in ended:
        ended = {**ended, job_class: tuple(await tx.round_queries.ended_samples(job_class))}
    after = settled(snapshot)
    with_job = replace(
        after, jobs={**after.jobs, job.id: job}, class_measurements=measured, ended_samples=ended
    )
    # Building a round is pure computation. It runs in a thread, so that other requests are served meanwhile.
    return await asyncio.to_thread(_outlook, with_job, job.id)


def _outlook(snapshot: Snapshot, job_id: str) -> DeadlineOutlook | None:
    round_ = build_round(snapshot)
    row = next(row for row, job in enumerate(round_.jobs) if job.id == job_id)
    outlook = outlook_of(round_, row)
    if outlook is None or outlook.verdict is DeadlineVerdict.UNKNOWN:
        return outlook
    if outlook.verdict in _ADMITTED:
        promised = round_.jobs[row].spec.goal.admit == "reject"
        return outlook if promised else outlook.model_copy(update={"message": outlook.message + _NO_PROMISE})
    slots = nearest_slots(snapshot, job_id)
    if slots is None:
        return outlook
    message = f"{outlook.message}; with elastic.max {slots} it would be met"
    return outlook.model_copy(update={"nearest_slots": slots, "message": message})


def past_deadline(spec: JobSpec, now: datetime) -> InvalidField | None:
    """Return the error for a job whose deadline is over; None for any other."""
    deadline = spec.goal.deadline
    if deadline is None or deadline > now:
        return None
    return InvalidField(
        "goal.deadline", f"goal.deadline: {deadline:%Y-%m-%d %H:%M} UTC is over; give a later time, or none"
    )


def refusal_of(spec: JobSpec, outlook: DeadlineOutlook | None) -> DeadlineRefused | None:
    """Return the error for a job that is to be refused (`goal.admit: reject`), since its deadline is not feasible.

    None for a job that is accepted.
    """
    if spec.goal.admit != "reject" or outlook is None or outlook.verdict in _ADMITTED:
        return None
    if outlook.verdict is DeadlineVerdict.UNKNOWN:
        advice = "submit the first job of its class with `goal.admit: try`"
    else:
        advice = "change `goal.deadline` or `elastic`, or set `goal.admit: try`"
    return DeadlineRefused(f"{spec.name} is refused: {outlook.message}; {advice}")
