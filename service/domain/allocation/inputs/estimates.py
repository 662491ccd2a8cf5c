"""Estimates of a round: the speed of every job in every configuration, from the measurements so far."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from service.domain.allocation.configurations.masks import MeasuredConfigurations, measured_configurations
from service.domain.allocation.configurations.scope import RoundScope
from service.domain.allocation.limits.risk import kept_share
from service.domain.allocation.limits.spending import Prospects, prospects_of
from service.domain.contention.costs import RESTART_S, change_s
from service.domain.perf.learned import LearnedModels, learn
from service.domain.perf.tables import GoodputTable, goodput_table
from service.domain.shared.arrays import BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Estimated speeds of the jobs (J,) of a round.

    Attributes:
        learned: the models of speed.
        measured: the configurations with measurements.
        table: goodput without spot interruptions.
        prospects: goodput after spot interruptions, and the remaining work.
    """

    learned: LearnedModels
    measured: MeasuredConfigurations
    table: GoodputTable
    prospects: Prospects

    @property
    def known(self) -> BoolArray:
        """Mask (J,) of the jobs whose speed is known, because the job or its class was measured."""
        return self.learned.measured | self.learned.related


def estimates_of(scope: RoundScope) -> Estimates:
    """Return the estimates for the jobs of a round."""
    snapshot, jobs, columns = scope.snapshot, scope.jobs, scope.columns
    learned = learn(
        jobs,
        columns.by_kind.kinds,
        snapshot.measurements,
        snapshot.class_measurements,
        snapshot.loss_histories,
    )
    if snapshot.keeps_batch:
        learned = replace(learned, models=replace(learned.models, adapts=np.zeros(len(jobs), dtype=np.bool_)))
    measured = measured_configurations(scope)
    table = goodput_table(learned.models, columns.by_kind, measured.observed)
    prospects = prospects_of(
        jobs,
        scope.current,
        learned,
        table,
        share=kept_share(
            jobs,
            columns,
            snapshot.hazard_per_h,
            restart_s=RESTART_S,
            pause_s=lambda job: change_s(job, scope.usual),
        ),
        start_s=[change_s(job, scope.usual) for job in jobs],
    )
    return Estimates(learned=learned, measured=measured, table=table, prospects=prospects)
