"""Early ends of trials: values at rungs from reports, and the passes of the scheduler that judge them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from headway.contract.runtime import Metrics
from headway.contract.views.jobs import Reason
from service.domain.jobs.halving import ends, may_end, progress_of, rungs_reached
from service.domain.jobs.job import Job
from service.domain.life.life import Launch
from service.usecases.jobs import control
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.sweeps import TrialReport
from service.usecases.ports.transactions import Transaction, Transactions


async def note_values(tx: Transaction, reported: Sequence[tuple[Job, Metrics]]) -> None:
    """Keep the extremes of the metrics of trials, and their values at rungs. The jobs are locked, the reports in their order."""
    metrics = await tx.sweeps.metrics_of(sorted({job.id for job, _ in reported}))
    values: dict[str, list[float]] = {job_id: [] for job_id in metrics}
    rungs: dict[str, dict[int, float]] = {job_id: {} for job_id in metrics}
    for job, message in reported:
        trial = metrics.get(job.id)
        value = None if trial is None else message.values.get(trial.metric)
        if trial is None or value is None or not math.isfinite(value):
            continue
        values[job.id].append(value)
        progress = None if trial.asha is None else progress_of(trial.asha, job.progress, message)
        if trial.asha is not None and progress is not None:
            for rung in range(trial.rungs, rungs_reached(trial.asha, progress)):
                rungs[job.id].setdefault(rung, value)
    reports = [
        TrialReport(job_id, min(known), max(known), rungs[job_id])
        for job_id, known in values.items()
        if known
    ]
    if reports:
        await tx.sweeps.add_values(reports)
    if any(one.rungs for one in reports):
        tx.wake(WakeUp.TRIALS)


async def end_early(transactions: Transactions, launch: Launch, now: datetime) -> int:
    """End the trials that are not among the best share at their rungs. Return their number.

    A pass depends on the stored values alone, so the next leader repeats one that was cut off.

    Raises:
        Unavailable, Superseded: see `Transactions`.
    """
    async with transactions.begin() as tx:
        sweep_ids = await tx.sweeps.stopping()
    ended = 0
    for sweep_id in sweep_ids:
        async with transactions.begin() as tx:
            found = await tx.sweeps.judged(sweep_id)
        chosen = [] if found is None else [found.job_ids[number] for number in ends(found.rule, found.trials)]
        if chosen:
            async with transactions.begin() as tx:
                ended += await _end(tx, sweep_id, chosen, launch, now)
    return ended


async def _end(tx: Transaction, sweep_id: str, chosen: Sequence[str], launch: Launch, now: datetime) -> int:
    """End those of the chosen trials that the rule still ends behind the locks of their jobs. Return their number."""
    jobs = await tx.jobs.lock_many(chosen)
    found = await tx.sweeps.judged(sweep_id)
    if found is None:
        return 0
    stopped = []
    for number, why in ends(found.rule, found.trials).items():
        job = jobs.get(found.job_ids[number])
        if job is not None and may_end(job):
            await control.cancel(
                tx, job.id, force=False, launch=launch, now=now, reason=Reason.STOPPED_EARLY, message=why
            )
            stopped.append(job.id)
    if stopped:
        await tx.sweeps.note_stopped(stopped, now)
    return len(stopped)
