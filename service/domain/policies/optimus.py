"""Optimus policy (Peng et al., EuroSys'18): slots where they shorten the time to completion most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.framework.loss_curve import fit_loss, with_point
from service.domain.policies.framework.marginal_gain import MarginalGain
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.framework.policy import Choices, RoundHistory, RoundInput
from service.domain.policies.framework.speedup import known_length


@dataclass(frozen=True, slots=True)
class Optimus:
    """Slots one after the other to the job whose time to completion falls most per share of the slots.

    Every job first gets its smallest size, in the order of submission. Then the job with the greatest (Q /
    speed(now) - Q / speed(next size)) / share of the added slots grows (section 4.1). The speed is the fitted
    one of the round, for all-reduce; the paper fits parameter servers.

    Q is the work that the job declares. Otherwise Q follows from the losses that it reports as the metric
    `loss`, by the fit of 1 / (b0 * k + b1) + b2: the job has converged when an epoch lowers the loss by less
    than `convergence`. A job without either has as many slot-seconds ahead as behind, and its gains are
    multiplied by `unsure`. As in the paper, a change costs nothing and there are no priorities.
    """

    name: ClassVar[str] = "optimus"
    unsure: float = parameter(
        0.95, "Factor on the gain of a job whose remaining work is a guess.", above=0, at_most=1
    )
    convergence: float = parameter(
        0.01, "Decrease of the loss in an epoch at which a job ends, of its largest loss.", above=0, below=1
    )

    def advance(self, given: RoundInput, history: RoundHistory) -> tuple[MarginalGain, Mapping[str, Any]]:
        """Return the policy of this round, with the work that loss curves predict, and the losses so far."""
        reports = history.reports
        if reports is None:
            return MarginalGain(name=self.name, unsure=self.unsure), {}
        before = history.state.get("losses", {})
        losses, fitted = {}, np.full(len(history.job_ids), np.nan)
        for row in np.flatnonzero(~known_length(given)).tolist():
            done, loss = float(reports.done[row]), float(reports.loss[row])
            points = with_point(before.get(history.job_ids[row], []), done, loss)
            if points:
                losses[history.job_ids[row]] = points
                fitted[row] = self._work_left(points, done, float(reports.epoch_samples[row]))
        round_policy = MarginalGain(name=self.name, unsure=self.unsure, fitted=fitted)
        return round_policy, {"losses": losses} if losses else {}

    def _work_left(self, points: list[list[float]], done: float, epoch_samples: float) -> float:
        """Return the samples until convergence, NaN without a fit.

        If the length of an epoch is unknown, it is the mean distance of the losses.
        """
        samples, loss = np.array(points).T
        curve = fit_loss(samples, loss)
        if curve is None:
            return float("nan")
        if not epoch_samples > 0:
            epoch_samples = float(samples[-1] - samples[0]) / (len(samples) - 1)
        return max(0.0, curve.converged_at(epoch_samples, self.convergence) - done)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices without loss curves, for callers without state."""
        return MarginalGain(name=self.name, unsure=self.unsure).choose(given, solve)
