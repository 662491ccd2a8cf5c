"""Early ends of trials by asynchronous successive halving (ASHA).

L. Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2018, arXiv:1810.05934. The paper pauses trials at a
rung and promotes the best; here trials run on, and end once they are not among the best. A trial is judged again whenever
a value arrives at its rung, so the decision depends on the values alone, and not on their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headway.contract.runtime import Metrics
from headway.contract.spec_sweep import Asha
from headway.contract.views.jobs import TERMINAL_STATES, JobProgress, JobState
from service.domain.jobs.job import Job

_SHARES: Final = ("half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
"""Names of the shares 1/2 to 1/10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """The rule of a sweep: the metric, whether lower values are better, and the rungs."""

    metric: str
    minimise: bool
    asha: Asha


@dataclass(frozen=True, slots=True)
class RungValues:
    """A trial at its rungs. `values` are those of the metric when it first reached each rung, from rung 0 on.

    `judged` is False for a trial that must not end now. Its values count all the same.
    """

    number: int
    values: Sequence[float]
    judged: bool = True


def progress_at(asha: Asha, rung: int) -> int:
    """Return the progress at a rung, in the unit of the rule: min_progress x reduction^rung."""
    return int(asha.min_progress * asha.reduction**rung)


def rungs_reached(asha: Asha, progress: int) -> int:
    """Return the number of rungs at or below a progress in the unit of the rule."""
    rungs, at = 0, asha.min_progress
    while at <= progress:
        rungs, at = rungs + 1, at * asha.reduction
    return rungs


def progress_of(asha: Asha, progress: JobProgress, message: Metrics) -> int | None:
    """Return the progress at a report in the unit of the rule; None if the job does not report this unit.

    Epochs are those that are complete.
    """
    if asha.unit == "epochs":
        return max(message.epoch, progress.epochs_audited)
    if asha.unit == "samples":
        return message.samples if progress.unit == "samples" else None
    return progress.train_step if progress.unit == "samples" else message.samples


def ends(rule: Halving, trials: Sequence[RungValues]) -> Mapping[int, str]:
    """Return the numbers of the trials that end now, each with its reason.

    A trial is judged at the highest rung that it has reached, once `reduction` trials have a value there. It runs on if it
    is among the best ceil(n / reduction) of these n trials. Of equal values, that of the lower number is better.
    """
    sign = 1.0 if rule.minimise else -1.0
    rungs = max((len(one.values) for one in trials), default=0)
    ended: dict[int, str] = {}
    for rung in range(rungs):
        there = sorted(
            (one for one in trials if len(one.values) > rung),
            key=lambda one: (sign * one.values[rung], one.number),
        )
        if len(there) < rule.asha.reduction:
            continue
        kept = -(-len(there) // rule.asha.reduction)
        worst = there[kept - 1].values[rung]
        for one in there[kept:]:
            if one.judged and len(one.values) == rung + 1:
                ended[one.number] = _why(rule, one, rung, len(there), worst)
    return ended


def _why(rule: Halving, trial: RungValues, rung: int, count: int, worst: float) -> str:
    asha, value = rule.asha, trial.values[rung]
    at = progress_at(asha, rung)
    unit = asha.unit if at > 1 else asha.unit.removesuffix("s")
    side = "lower" if rule.minimise else "higher"
    bound = f"{worst:.4g} or {side}" if value != worst else f"{worst:.4g}, of equal values the first"
    return (
        f"trial {trial.number} ends at {at:,} {unit}: its {rule.metric} {value:.4g} is not among the best "
        f"{_SHARES[asha.reduction - 2]} ({bound}) of {count} trials there"
    )


def may_end(job: Job) -> bool:
    """Return True if a trial in this state may end early: those that have ended, or that their user paused, stay as they are."""
    if job.state in TERMINAL_STATES or job.pause_requested:
        return False
    return job.state not in {JobState.PAUSED, JobState.CANCELLING}
