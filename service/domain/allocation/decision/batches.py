"""Global batch of a decision, chosen together with its slots, with its text for users."""

from __future__ import annotations

from service.domain.allocation.decision.explain import Case
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.cluster.pools import slots_of
from service.domain.perf.batch import BatchChoice, choose_batch, planned_batch
from service.domain.perf.efficiency import countable

_UNSCALED = ": its learning rate does not follow the batch (lr_rule: none), so a larger batch makes no more progress in a step"

_NOTABLE = 0.1
"""Smallest difference of the measured exponent from 1 that users are told."""


def batch_on_new_slots(case: Case, slots: int) -> BatchChoice | None:
    """Return the batch of a job that gets `slots` slots: the one that the goodput table plans, within the tried range.

    A search that chose the column has chosen its batch, too. Return None for a job that keeps its batch: it does not adapt
    it, its speed is unknown, or the slots are not those of the chosen column.
    """
    round_, row, column = case.round, case.row, case.column
    searched = round_.search.batch_at(case.job.id, row, column)
    if searched is not None and int(round_.columns.configurations.slots[column]) == slots:
        return BatchChoice(searched, batch_text(case, searched, slots))
    if not case.job.adapts or not round_.estimates.known[row] or column == NOTHING:
        return None
    planned = int(round_.estimates.table.global_batch[row, column])
    if not planned or int(round_.columns.configurations.slots[column]) != slots:
        return None
    batch = planned_batch(case.job, round_.snapshot, planned, slots)
    return BatchChoice(batch, batch_text(case, batch, slots))


def batch_on_same_slots(case: Case) -> BatchChoice | None:
    """Return the batch on the job's present slots: that of its search, else the one that measurements suggest.

    Return None if the service does not choose it, or while the search waits for other slots.
    """
    choice = choose_batch(case.job, case.round.snapshot, _effect(case))
    search = case.round.search
    if choice is None or case.job.id not in search.batches:
        return choice
    here = search.batch_at(case.job.id, case.row, int(case.round.scope.current[case.row]))
    return None if here is None else BatchChoice(here, case.search)


def batch_text(case: Case, batch: int, slots: int) -> str:
    """Return the batch of a job on its slots as a clause."""
    effect = _effect(case)
    measured = (
        f"; by the losses of its class, the efficiency of a larger batch is the predicted one to the power {effect:.1f}"
        if abs(effect - 1.0) >= _NOTABLE
        else ""
    )
    return f"batch {batch:,} at {slots_of(slots, None)}{'' if case.job.scales_rate else _UNSCALED}{measured}"


def counted_effect(case: Case) -> float:
    """Return the exponent by which the ranks of the job are to count their progress."""
    return countable(_effect(case))


def _effect(case: Case) -> float:
    """Return the measured exponent of the efficiency; 1 without evidence."""
    effects = case.round.estimates.learned.models.batch_effect
    return 1.0 if effects is None else float(effects[case.row])
