"""Baseline of IBM's evaluation (Saxena et al., MASCOTS'20): elastic sizes with a fixed batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from service.domain.allocation.knapsack.problem import Solve
from service.domain.policies.elastic_dp import ElasticDp
from service.domain.policies.framework.policy import Choices, RoundInput


@dataclass(frozen=True, slots=True)
class ElasticFixed:
    """Greatest sum of scaling factors, as `elastic-dp`, while every job keeps the batch of its job file.

    The paper compares its policy with this one, which scales slots but not batches. The goodput of a round
    is then that of the job's own batch in every configuration, and a job with another batch returns to it.
    """

    name: ClassVar[str] = "elastic-fixed"
    keeps_batch: ClassVar[bool] = True

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices with the greatest sum of scaling factors."""
        return ElasticDp().choose(given, solve)
